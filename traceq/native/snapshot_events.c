/* The events of a memory snapshot, read from the bytes of its pickle into columns.
 *
 * pickled_columns.py says what this is for, and calls it. The reference is Python:
 * pickled_events.py reads whatever this leaves. An event is taken only if it is made of
 * the commands with which Python pickles what torch records:
 *
 *     } put (  key value  key value ...  key ] put ( get get ... e  u
 *
 * and each of its values is a number, or is none, as in the events before it.
 *
 * The bytes come from strangers: none is read before it was compared with the end,
 * nothing recurses, and each byte is looked at once.
 */

#include "native.h"

#define MOST_KEYS 16
#define LONGEST_TEXT 4096
/* What a column holds where an event does not have its key. */
#define MISSING INT64_MIN

enum { NO_KIND, NUMBER, CODED };

typedef struct {
    const uint8_t *start;
    size_t length;
} Slice;

/* A value that an event makes: a text, a pair of numbers, or a list of frames. */
typedef struct {
    Slice made, put;
    int column, is_stack;
} Made;

typedef struct {
    uint8_t *bytes;
    size_t used, room;
} Buffer;

typedef struct {
    const uint8_t *at, *end;
    uint32_t places; /* of the memo, that a file of this size can have */
    int implicit;    /* whether puts do not name their place */
    Slice keys[MOST_KEYS];
    uint8_t kinds[MOST_KEYS];
    int key_count;
    int64_t row[MOST_KEYS];
    Made made[MOST_KEYS];
    int made_count;
} Reader;

static size_t left(const Reader *reader) { return (size_t)(reader->end - reader->at); }

static uint64_t little(const uint8_t *bytes, size_t count) {
    uint64_t found = 0;
    while (count--) found = found << 8 | bytes[count];
    return found;
}

/* ------------------------------------------------ One command each; 0 if it is not */

static int read_byte(Reader *reader, uint8_t byte) {
    if (!left(reader) || *reader->at != byte) return 0;
    reader->at++;
    return 1;
}

static int read_put(Reader *reader, Slice *put) {
    const uint8_t *at = reader->at;
    size_t length = reader->implicit ? 1 : 5;
    if (left(reader) < length || *at != (reader->implicit ? 0x94 : 'r')) return 0;
    if (!reader->implicit && little(at + 1, 4) >= reader->places) return 0;
    *put = (Slice){at, length};
    reader->at += length;
    return 1;
}

static int read_get(Reader *reader, uint32_t *place) {
    const uint8_t *at = reader->at;
    size_t length = left(reader) && *at == 'j' ? 5 : 2;
    if (left(reader) < length || (*at != 'j' && *at != 'h')) return 0;
    *place = (uint32_t)little(at + 1, length - 1);
    reader->at += length;
    return 1;
}

static int read_number(Reader *reader, int64_t *number) {
    const uint8_t *at = reader->at;
    if (left(reader) < 2) return 0;
    size_t begin = 1, length;
    switch (*at) {
    case 'K': length = 1; break;
    case 'M': length = 2; break;
    case 'J': length = 4; break;
    case 0x8a: /* its length comes first */
        begin = 2;
        length = at[1];
        break;
    default: return 0;
    }
    if (length < 1 || length > 8 || left(reader) < begin + length) return 0;
    uint64_t bits = little(at + begin, length);
    if ((*at == 'J' || *at == 0x8a) && length < 8 && at[begin + length - 1] & 0x80)
        bits |= ~(uint64_t)0 << (8 * length);
    memcpy(number, &bits, sizeof bits);
    reader->at += begin + length;
    return 1;
}

static int read_text(Reader *reader) {
    const uint8_t *at = reader->at;
    size_t begin = left(reader) && *at == 'X' ? 5 : 2;
    if (left(reader) < begin || (*at != 'X' && *at != 0x8c)) return 0;
    size_t length = (size_t)little(at + 1, begin - 1);
    if (length > LONGEST_TEXT || left(reader) < begin + length) return 0;
    reader->at += begin + length;
    return 1;
}

/* What fills a list of frames, if anything does. */
static int read_frames(Reader *reader) {
    uint32_t place;
    if (!left(reader)) return 0;
    if (*reader->at == 'u') return 1;
    if (!read_byte(reader, '(')) return read_get(reader, &place) && read_byte(reader, 'a');
    while (left(reader) >= 5 && *reader->at == 'j') reader->at += 5;
    while (read_get(reader, &place)) continue;
    return read_byte(reader, 'e');
}

/* ------------------------------------------------------------------------- Events */

static int is_number(const Reader *reader) {
    return left(reader) && memchr("KMJ\x8a", *reader->at, 4) != NULL;
}

/* Read a value that is made here, and put in the memo. */
static int read_made(Reader *reader, int column) {
    Made *made = &reader->made[reader->made_count++];
    const uint8_t *start = reader->at;
    int64_t number;
    made->column = column;
    made->is_stack = 0;
    if (read_byte(reader, ']')) {
        if (!read_put(reader, &made->put)) return 0;
        const uint8_t *frames = reader->at;
        if (!read_frames(reader)) return 0;
        made->is_stack = reader->at > frames;
        made->made = made->is_stack ? (Slice){frames, (size_t)(reader->at - frames)}
                                    : (Slice){start, 1};
        return 1;
    }
    if (is_number(reader)) {
        if (!read_number(reader, &number) || !read_number(reader, &number) ||
            !read_byte(reader, 0x86))
            return 0;
    } else if (!read_text(reader)) {
        return 0;
    }
    made->made = (Slice){start, (size_t)(reader->at - start)};
    return read_put(reader, &made->put);
}

static int read_value(Reader *reader, int column, uint8_t *kind) {
    uint32_t place;
    const uint8_t *start = reader->at;
    *kind = CODED;
    if (read_get(reader, &place)) {
        reader->row[column] = place;
        return 1;
    }
    if (read_number(reader, &reader->row[column])) {
        if (!is_number(reader)) {
            *kind = NUMBER;
            return reader->row[column] != MISSING;
        }
        reader->at = start;
    }
    return read_made(reader, column);
}

static int same(Slice one, Slice other) {
    return one.length == other.length && !memcmp(one.start, other.start, one.length);
}

/* Return the column of a key, which is probably the next one; -1 if there is none. */
static int column_of(Reader *reader, Slice key, int next) {
    if (next < reader->key_count && same(key, reader->keys[next])) return next;
    for (int i = 0; i < reader->key_count; i++)
        if (same(key, reader->keys[i])) return i;
    if (reader->key_count == MOST_KEYS) return -1;
    reader->keys[reader->key_count] = key;
    reader->kinds[reader->key_count] = NO_KIND;
    return reader->key_count++;
}

/* Read one event; 0 if it is none, or not like the ones before. */
static int read_event(Reader *reader, Slice *put) {
    int column = -1;
    uint32_t seen = 0;
    reader->made_count = 0;
    for (int i = 0; i < MOST_KEYS; i++) reader->row[i] = MISSING;
    if (!read_byte(reader, '}') || !read_put(reader, put) || !read_byte(reader, '('))
        return 0;
    while (!read_byte(reader, 'u')) {
        Slice key = {reader->at, 0};
        uint32_t place;
        uint8_t kind;
        if (!read_get(reader, &place)) return 0;
        key.length = (size_t)(reader->at - key.start);
        column = column_of(reader, key, column + 1);
        if (column < 0 || seen & 1u << column || !read_value(reader, column, &kind))
            return 0;
        seen |= 1u << column;
        if (reader->kinds[column] == NO_KIND) reader->kinds[column] = kind;
        if (reader->kinds[column] != kind) return 0;
    }
    /* The list that it is in may go on in another part. */
    if (left(reader) >= 2 && reader->at[0] == 'e' && reader->at[1] == '(')
        reader->at += 2;
    return seen != 0;
}

/* -------------------------------------------------------------------- What is told */

static int add(Buffer *buffer, const void *bytes, size_t length) {
    if (buffer->room - buffer->used < length) {
        size_t room = 2 * buffer->room + length + 4096;
        uint8_t *grown = realloc(buffer->bytes, room);
        if (!grown) return no_memory();
        buffer->bytes = grown;
        buffer->room = room;
    }
    memcpy(buffer->bytes + buffer->used, bytes, length);
    buffer->used += length;
    return 1;
}

/* Return the number of what makes a value, a new one if it is not known; -1 on error. */
static Py_ssize_t number_of(PyObject *known, Slice made) {
    PyObject *commands =
        PyBytes_FromStringAndSize((const char *)made.start, (Py_ssize_t)made.length);
    if (!commands) return -1;
    Py_ssize_t number = -1;
    PyObject *found = PyDict_GetItemWithError(known, commands);
    if (found) {
        number = PyLong_AsSsize_t(found);
    } else if (!PyErr_Occurred()) {
        PyObject *next = PyLong_FromSsize_t(PyDict_Size(known));
        if (next && !PyDict_SetItem(known, commands, next))
            number = PyLong_AsSsize_t(next);
        Py_XDECREF(next);
    }
    Py_DECREF(commands);
    return number;
}

/* Add what puts in the memo what the event would, and complete its row. */
static int tell(Reader *reader, Slice put, PyObject *known, Buffer *commands) {
    if (!add(commands, "N", 1) || !add(commands, put.start, put.length)) return 0;
    for (int i = 0; i < reader->made_count; i++) {
        Made *made = &reader->made[i];
        Py_ssize_t number = number_of(known, made->made);
        if (number < 0) return 0;
        reader->row[made->column] = -1 - (int64_t)number;
        if (made->is_stack) {
            uint8_t name[7] = {'C', 5};
            for (int at = 0; at < 5; at++) name[2 + at] = (uint8_t)(number >> (8 * at));
            if (!add(commands, name, sizeof name)) return 0;
        } else if (!add(commands, made->made.start, made->made.length)) {
            return 0;
        }
        if (!add(commands, made->put.start, made->put.length)) return 0;
    }
    return 1;
}

/* Return a column of all rows, as bytes. */
static PyObject *bytes_of(const Buffer *rows, int column) {
    size_t width = MOST_KEYS * sizeof(int64_t), count = rows->used / width;
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * 8));
    if (!made) return NULL;
    char *bytes = PyBytes_AsString(made);
    for (size_t row = 0; row < count; row++)
        memcpy(bytes + 8 * row, rows->bytes + row * width + 8 * (size_t)column, 8);
    return made;
}

/* Return where the last event ends, and of all of them the commands and columns. */
static PyObject *result(const Reader *reader, int key_count, Py_ssize_t end,
                        const Buffer *rows, const Buffer *commands) {
    PyObject *columns = PyList_New(0);
    for (int i = 0; columns && i < key_count; i++) {
        PyObject *numbers = bytes_of(rows, i);
        PyObject *column =
            numbers ? Py_BuildValue("(y#OO)", (const char *)reader->keys[i].start,
                                    (Py_ssize_t)reader->keys[i].length,
                                    reader->kinds[i] == CODED ? Py_True : Py_False,
                                    numbers)
                    : NULL;
        Py_XDECREF(numbers);
        if (!column || PyList_Append(columns, column)) Py_CLEAR(columns);
        Py_XDECREF(column);
    }
    if (!columns) return NULL;
    return Py_BuildValue("(ny#N)", end, (const char *)commands->bytes,
                         (Py_ssize_t)commands->used, columns);
}

static PyObject *events(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *data;
    Py_ssize_t length, begin, until;
    PyObject *known, *made = NULL;
    unsigned int places;
    size_t count = 0;
    Reader reader = {0};
    Buffer rows = {0}, commands = {0};
    if (!PyArg_ParseTuple(args, "y#nnO!Ip", &data, &length, &begin, &until, &PyDict_Type,
                          &known, &places, &reader.implicit))
        return NULL;
    if (begin < 0 || until > length || begin > until) {
        PyErr_SetString(PyExc_ValueError, "there is no such part");
        return NULL;
    }
    reader.at = (const uint8_t *)data + begin;
    reader.end = (const uint8_t *)data + until;
    reader.places = places;
    for (;;) {
        Slice put;
        const uint8_t *start = reader.at;
        int key_count = reader.key_count;
        if (!read_event(&reader, &put)) {
            made = result(&reader, key_count, start - (const uint8_t *)data, &rows,
                          &commands);
            break;
        }
        if (!tell(&reader, put, known, &commands) ||
            !add(&rows, reader.row, sizeof reader.row))
            break;
        /* Ctrl-C ends it: this many events take far less than 0.1 s. */
        if (++count % 4096 == 0 && PyErr_CheckSignals()) break;
    }
    free(rows.bytes);
    free(commands.bytes);
    return made;
}

PyMethodDef snapshot_methods[] = {
    {"events", events, METH_VARARGS, "Read the events that begin at a place."},
    {NULL, NULL, 0, NULL},
};
