/* The events of a trace that are written as PyTorch writes them, scanned into columns.
 *
 * scan.py says what this is for, and feeds it. The reference is Python: events.py and
 * tables.py read whatever this leaves. An event is taken only if its text reads
 *
 *     ph": "X", ... "ts": 1.5, "dur": 2.5, "args": {"key": value, ...}
 *
 * with any blanks, times in plain decimal digits, and arguments without objects among
 * them. Which arguments become columns it is told; it knows no category and no table.
 *
 * The text comes from strangers: nothing is read before it was compared with the end of
 * the text, nothing recurses, and no part of the text is searched again and again, so
 * that the time is linear in its length.
 */

#include "columns.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* What a column holds where an event has no such argument. Texts count from 1. */
#define NO_NUMBER INT64_MIN
#define NO_TEXT 0

/* With more digits a number may not fit; a time gets three more. */
#define MOST_TIME_DIGITS 15
#define MOST_DIGITS 18
/* A text that finds no free slot is left to the reference: nobody can make it slow. */
#define MOST_PROBES 256
#define MOST_COLUMNS 64
#define LONGEST_RUN (1 << 16)

typedef enum { TAKEN, FLOW, ODD, FAILED } Verdict;

/* ------------------------------------------------------------------ Distinct texts */

typedef struct {
    uint64_t hash;
    size_t start;
    size_t length;
    int table; /* of what stands before the times: which table it goes to, or -1 */
} Text;

typedef struct {
    char *bytes;
    size_t used, room;
    Text *known;
    uint32_t count, known_room;
    uint32_t *slots; /* the number of a text, from 1; 0 is free */
    uint32_t mask;
} Texts;

static void free_texts(Texts *texts) {
    free(texts->bytes);
    free(texts->known);
    free(texts->slots);
}

static uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

/* Two halves that do not wait for each other: a text is read twice as fast. */
static uint64_t hash_of(const char *text, size_t length, uint64_t seed) {
    uint64_t hash = seed ^ length, other = ~seed, word;
    for (; length >= 16; text += 16, length -= 16) {
        memcpy(&word, text, 8);
        hash = mixed(hash, word);
        memcpy(&word, text + 8, 8);
        other = mixed(other, word);
    }
    hash = mixed(hash, other);
    if (length >= 8) {
        memcpy(&word, text, 8);
        hash = mixed(hash, word);
        text += 8;
        length -= 8;
    }
    word = 0;
    memcpy(&word, text, length);
    return mixed(mixed(hash, word), 0);
}

/* Return the slot that holds a text, or the free one where it belongs; -1 if none. */
static int64_t slot_of(const Texts *texts, const char *text, size_t length,
                       uint64_t hash) {
    if (!texts->slots) return -1;
    uint32_t slot = (uint32_t)hash & texts->mask;
    for (uint32_t step = 1; step <= MOST_PROBES; step++) {
        uint32_t number = texts->slots[slot];
        if (!number) return slot;
        const Text *known = &texts->known[number - 1];
        if (known->hash == hash && known->length == length &&
            !memcmp(texts->bytes + known->start, text, length))
            return slot;
        slot = (slot + step) & texts->mask;
    }
    return -1;
}

static int grow_slots(Texts *texts) {
    uint32_t size = texts->slots ? (texts->mask + 1) * 2 : 1024;
    uint32_t *slots = calloc(size, sizeof *slots);
    if (!slots) return 0;
    for (uint32_t number = 1; number <= texts->count; number++) {
        uint32_t slot = (uint32_t)texts->known[number - 1].hash & (size - 1);
        for (uint32_t step = 1; slots[slot]; step++) slot = (slot + step) & (size - 1);
        slots[slot] = number;
    }
    free(texts->slots);
    texts->slots = slots;
    texts->mask = size - 1;
    return 1;
}

/* Make room for one more text of this length; false if there is no memory. */
static int reserve(Texts *texts, size_t length) {
    if (texts->count >= INT32_MAX / 4) return 0;
    if ((!texts->slots || texts->count >= texts->mask / 2) && !grow_slots(texts))
        return 0;
    if (texts->count == texts->known_room) {
        uint32_t room = texts->known_room ? texts->known_room * 2 : 256;
        Text *known = realloc(texts->known, room * sizeof *known);
        if (!known) return 0;
        texts->known = known;
        texts->known_room = room;
    }
    if (!texts->bytes || texts->room - texts->used < length) {
        size_t room = texts->room ? texts->room : 1 << 16;
        while (room - texts->used < length) room *= 2;
        char *bytes = realloc(texts->bytes, room);
        if (!bytes) return 0;
        texts->bytes = bytes;
        texts->room = room;
    }
    return 1;
}

/* Return the number of a text; 0 if it has none. */
static uint32_t find(const Texts *texts, const char *text, size_t length, uint64_t hash) {
    int64_t slot = slot_of(texts, text, length, hash);
    return slot < 0 ? 0 : texts->slots[slot];
}

/* Give a new text its number; ODD if it can have none. */
static Verdict put(Texts *texts, const char *text, size_t length, uint64_t hash,
                   int table, uint32_t *number) {
    if (!reserve(texts, length)) return FAILED;
    int64_t slot = slot_of(texts, text, length, hash);
    if (slot < 0) return ODD;
    memcpy(texts->bytes + texts->used, text, length);
    texts->known[texts->count] = (Text){hash, texts->used, length, table};
    texts->used += length;
    *number = texts->slots[slot] = ++texts->count;
    return TAKEN;
}

/* ------------------------------------------------------------------- What is asked */

typedef enum { IGNORED, NUMBER, TEXT, REFUSED } Kind;

typedef struct {
    char *name;
    size_t length;
    Kind kind;
    int column;
    int in_span;   /* The table's span runs from the first of these keys ... */
    int ends_span; /* ... to the first of these behind the last of those. */
} Key;

typedef struct {
    Key *keys;
    int key_count;
    int number_count, text_count;
    int64_t **numbers; /* columns: ts and dur, then arguments */
    uint32_t **texts;  /* columns: the number of the head, then of arguments' texts */
    Texts *known;      /* the distinct texts of these; those of the first are unused */
    size_t rows, room;
} Table;

typedef struct {
    PyObject_HEAD
    PyObject *classify;
    char *separator;
    size_t separator_length, brace;
    uint64_t seed;
    Texts heads;
    Table *tables;
    int table_count;
    int busy;
} Scanner;

/* Make room for more rows; false if there is no memory. Columns that grow as a whole are
 * moved without a copy, and given back to the system when they are freed. */
static int grow_rows(Table *table) {
    size_t room = table->room ? table->room * 2 : 1024;
    for (int i = 0; i < table->number_count; i++) {
        int64_t *column = realloc(table->numbers[i], room * sizeof *column);
        if (!column) return 0;
        table->numbers[i] = column;
    }
    for (int i = 0; i < table->text_count; i++) {
        uint32_t *column = realloc(table->texts[i], room * sizeof *column);
        if (!column) return 0;
        table->texts[i] = column;
    }
    table->room = room;
    return 1;
}

/* ------------------------------------------------------------------------ Scanning */

typedef struct {
    Scanner *scanner;
    const char *end;
    const char *ts; /* the key ts that was found last; the next one, if not passed */
    PyThreadState *released;
    const char *event_end;
    const char *checked; /* up to where signals were looked for */
    int stopped;         /* whether a handler has raised */
} Scan;

static int is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* The end of what is read as one run of blanks, or as one word: whatever is longer is
 * left to the reference. */
static const char *run_end(const char *at, const char *end) {
    return end - at > LONGEST_RUN ? at + LONGEST_RUN : end;
}

static const char *skip_blanks(const char *at, const char *end) {
    end = run_end(at, end);
    while (at < end && is_blank(*at)) at++;
    return at;
}

static const char *skip_commas(const char *at, const char *end) {
    end = run_end(at, end);
    while (at < end && (is_blank(*at) || *at == ',')) at++;
    return at;
}

static int reads(const char *at, const char *end, const char *word, size_t length) {
    return (size_t)(end - at) >= length && !memcmp(at, word, length);
}

#define READS(at, end, word) reads(at, end, word, sizeof(word) - 1)

static int ends_at(const Scanner *scanner, const char *at, const char *end) {
    return at == end ||
           reads(at, end, scanner->separator, scanner->separator_length);
}

/* A part of the text that takes far less than 0.1 s. */
#define CHECKED_BYTES (4 << 20)

/* Let signals be handled now and then; false if a handler has raised. */
static int go_on(Scan *scan, const char *at) {
    if (scan->stopped) return 0;
    if (at - scan->checked < CHECKED_BYTES) return 1;
    scan->checked = at;
    PyEval_RestoreThread(scan->released);
    scan->stopped = PyErr_CheckSignals() != 0;
    scan->released = PyEval_SaveThread();
    return !scan->stopped;
}

/* Return where the next separator begins, or the end. */
static const char *next_separator(Scan *scan, const char *at, const char *end) {
    const Scanner *scanner = scan->scanner;
    size_t brace = scanner->brace;
    while ((size_t)(end - at) > brace && go_on(scan, at)) {
        const char *found = memchr(at + brace, '}', (size_t)(end - at) - brace);
        if (!found) break;
        at = found - brace;
        if (reads(at, end, scanner->separator, scanner->separator_length)) return at;
        at++;
    }
    return end;
}

/* Return the next key ts, or the end. */
static const char *next_ts(Scan *scan, const char *at) {
    if (scan->ts && scan->ts >= at) return scan->ts;
    /* By its last character: there are fewer colons than quotes. */
    const char *colon = at;
    while (colon < scan->end && go_on(scan, colon)) {
        colon = memchr(colon, ':', (size_t)(scan->end - colon));
        if (!colon) break;
        if (colon - at >= 4 && !memcmp(colon - 4, "\"ts\"", 4))
            return scan->ts = colon - 4;
        colon++;
    }
    return scan->ts = scan->end;
}

/* Read microseconds as nanoseconds; return where they end, or NULL. */
static const char *read_time(const char *at, const char *end, int64_t *time) {
    at = skip_blanks(at, end);
    const char *first = at;
    int64_t number = 0;
    while (at < end && is_digit(*at)) {
        if (at - first == MOST_TIME_DIGITS) return NULL;
        number = number * 10 + (*at++ - '0');
    }
    if (at == first) return NULL;
    int decimals = 0;
    if (at < end && *at == '.') {
        for (at++; at < end && is_digit(*at); at++) {
            if (++decimals > 3) return NULL;
            number = number * 10 + (*at - '0');
        }
        if (!decimals) return NULL;
    }
    for (; decimals < 3; decimals++) number *= 10;
    *time = number;
    return at;
}

/* Read a whole number that fills its text; return false if it is something else. */
static int read_number(const char *at, const char *end, int64_t *value) {
    int negative = at < end && *at == '-';
    at += negative;
    if (at == end || end - at > MOST_DIGITS) return 0;
    int64_t number = 0;
    for (; at < end; at++) {
        if (!is_digit(*at)) return 0;
        number = number * 10 + (*at - '0');
    }
    *value = negative ? -number : number;
    return 1;
}

/* Return what follows a string whose first quote is at ``at``; NULL if nothing does. */
static const char *skip_string(Scan *scan, const char *at) {
    const char *end = scan->end, *quote = at++;
    while (go_on(scan, at)) {
        /* A quote is searched for again only if the last one was escaped. */
        if (quote < at) quote = memchr(at, '"', (size_t)(end - at));
        if (!quote) return NULL;
        const char *escape = memchr(at, '\\', (size_t)(quote - at));
        if (!escape) return quote + 1;
        /* The character behind a backslash means nothing. It is no later than the
         * quote, so this is within the text. */
        at = escape + 2;
    }
    return NULL;
}

/* Return what follows a list of numbers, strings and such lists; NULL if it is another,
 * as where a quote is missing and what should be outside of strings is inside. */
static const char *skip_list(Scan *scan, const char *at) {
    const char *end = scan->end;
    size_t depth = 0;
    while (at < end) {
        char c = *at;
        if (!go_on(scan, at)) return NULL;
        if (is_digit(c) || is_blank(c) || c == ',' || c == '-' || c == '.' ||
            c == '+' || c == 'e' || c == 'E') {
            at++;
        } else if (c == '[') {
            depth++;
            at++;
        } else if (c == ']') {
            at++;
            if (!--depth) return at;
        } else if (c == '"') {
            at = skip_string(scan, at);
            if (!at || at == end || !(is_blank(*at) || *at == ',' || *at == ']'))
                return NULL;
        } else {
            return NULL;
        }
    }
    return NULL;
}

static const char *skip_value(Scan *scan, const char *at) {
    const char *end = scan->end;
    if (at == end) return NULL;
    if (*at == '"') return skip_string(scan, at);
    if (*at == '[') return skip_list(scan, at);
    const char *first = at;
    end = run_end(at, end);
    while (at < end && (is_digit(*at) || (*at >= 'a' && *at <= 'z') ||
                        (*at >= 'A' && *at <= 'Z') || *at == '.' || *at == '-' ||
                        *at == '+'))
        at++;
    return at == first ? NULL : at;
}

/* Give a text its number; ODD if it can have none. */
static Verdict number_of(Texts *texts, const char *text, size_t length, uint64_t seed,
                         uint32_t *number) {
    uint64_t hash = hash_of(text, length, seed);
    *number = find(texts, text, length, hash);
    return *number ? TAKEN : put(texts, text, length, hash, -1, number);
}

/* Ask Python which table the events with this head go to. */
static int ask(Scan *scan, const char *text, size_t length, int *table) {
    PyEval_RestoreThread(scan->released);
    PyObject *answer = PyObject_CallFunction(scan->scanner->classify, "y#", text,
                                             (Py_ssize_t)length);
    long number = answer ? PyLong_AsLong(answer) : -1;
    int failed = PyErr_Occurred() != NULL;
    Py_XDECREF(answer);
    scan->released = PyEval_SaveThread();
    if (failed) return 0;
    *table = number >= 0 && number < scan->scanner->table_count ? (int)number : -1;
    return 1;
}

/* Give a head its number and its table; ODD if its events are not taken. */
static Verdict head_of(Scan *scan, const char *text, size_t length, uint32_t *number,
                       Table **table) {
    Scanner *scanner = scan->scanner;
    Texts *heads = &scanner->heads;
    /* Without a key ts of its own, an event would take that of another. This comes
     * before the hash: the next ts may be far away for each of many events. */
    if (next_separator(scan, text, text + length) < text + length) return ODD;
    uint64_t hash = hash_of(text, length, scanner->seed);
    *number = find(heads, text, length, hash);
    if (!*number) {
        int asked;
        if (!ask(scan, text, length, &asked)) return FAILED;
        Verdict verdict = put(heads, text, length, hash, asked, number);
        if (verdict != TAKEN) return verdict;
    }
    int found = heads->known[*number - 1].table;
    if (found < 0) return ODD;
    *table = &scanner->tables[found];
    return TAKEN;
}

/* Return the key of this name, or NULL; keys mostly come in the order of ``expected``. */
static Key *key_named(Table *table, const char *name, size_t length, int *expected) {
    for (int i = 0; i < table->key_count; i++) {
        int at = *expected + i;
        if (at >= table->key_count) at -= table->key_count;
        Key *key = &table->keys[at];
        if (key->length == length && !memcmp(key->name, name, length)) {
            *expected = at + 1 < table->key_count ? at + 1 : 0;
            return key;
        }
    }
    return NULL;
}

/* Read ``{"key": value, ...}`` into the columns; set where it ends. */
static Verdict read_args(Scan *scan, Table *table, const char **at_, int64_t *numbers,
                         uint32_t *texts) {
    const char *at = *at_ + 1, *end = scan->end;
    const char *span = NULL, *span_end = NULL;
    uint64_t seen = 0;
    int expected = 0;
    at = skip_blanks(at, end);
    while (at < end && *at == '"') {
        const char *name = at;
        at = skip_string(scan, at);
        if (!at || at == end || *at != ':') return ODD;
        size_t length = (size_t)(at - name) - 2;
        Key *key = key_named(table, name + 1, length, &expected);
        /* The reference searches the text for a quote, a key and a quote. */
        if (!key && memchr(name + 1, '\\', length)) return ODD;
        const char *value = skip_blanks(at + 1, end);
        at = skip_value(scan, value);
        if (!at) return ODD;
        if (!go_on(scan, at)) return FAILED;
        if (key) {
            /* Which of two counts, the reference tells by what they hold. */
            if (seen >> (key - table->keys) & 1) return ODD;
            seen |= (uint64_t)1 << (key - table->keys);
            if (key->kind == REFUSED) return ODD;
            if (key->kind == NUMBER && !read_number(value, at, &numbers[key->column]))
                return ODD;
            if (key->kind == TEXT) {
                Verdict verdict =
                    number_of(&table->known[key->column], value, (size_t)(at - value),
                              scan->scanner->seed, &texts[key->column]);
                if (verdict != TAKEN) return verdict;
            }
            if (key->in_span) {
                if (!span) span = name;
                span_end = NULL;
            } else if (key->ends_span && span && !span_end) {
                span_end = name;
            }
        }
        at = skip_blanks(at, end);
        if (at == end || *at != ',') break;
        at = skip_blanks(at + 1, end);
        if (at == end || *at != '"') return ODD;
    }
    if (at == end || *at != '}') return ODD;
    at++;
    if (span) {
        if (!span_end) span_end = at;
        int column = table->text_count - 1; /* a span is the last of the texts */
        Verdict verdict =
            number_of(&table->known[column], span, (size_t)(span_end - span),
                      scan->scanner->seed, &texts[column]);
        if (verdict != TAKEN) return verdict;
    }
    *at_ = at;
    return TAKEN;
}

/* Read the event that begins at ``at``, behind its brace and its first quote. */
static Verdict read_event(Scan *scan, const char *at) {
    const char *begin = at, *end = scan->end;
    if (!READS(at, end, "ph\":")) return ODD;
    at = skip_blanks(at + 4, end);
    if (end - at < 3 || at[0] != '"' || at[2] != '"') return ODD;
    char phase = at[1];
    if (phase == 's' || phase == 't' || phase == 'f') return FLOW;
    if (phase != 'X' && phase != 'i') return ODD;

    const char *ts = next_ts(scan, at);
    if (ts == end) return ODD;
    uint32_t head;
    Table *table = NULL;
    Verdict verdict = head_of(scan, begin, (size_t)(ts - begin), &head, &table);
    if (verdict != TAKEN) return verdict;

    int64_t numbers[MOST_COLUMNS];
    uint32_t texts[MOST_COLUMNS];
    for (int i = 0; i < table->number_count; i++) numbers[i] = NO_NUMBER;
    for (int i = 0; i < table->text_count; i++) texts[i] = NO_TEXT;
    texts[0] = head;
    at = read_time(ts + 5, end, &numbers[0]);
    if (!at) return ODD;
    const char *key = skip_commas(at, end);
    if (READS(key, end, "\"dur\":")) {
        at = read_time(key + 6, end, &numbers[1]);
        if (!at) return ODD;
        key = skip_commas(at, end);
    } else if (phase == 'X') {
        return ODD;
    } else {
        numbers[1] = 0;
    }
    if (READS(key, end, "\"args\":")) {
        at = skip_blanks(key + 7, end);
        if (at == end || *at != '{') return ODD;
        verdict = read_args(scan, table, &at, numbers, texts);
        if (verdict != TAKEN) return verdict;
    }
    if (!ends_at(scan->scanner, at, end)) return ODD;

    if (table->rows == table->room && !grow_rows(table)) return FAILED;
    size_t row = table->rows++;
    for (int i = 0; i < table->number_count; i++) table->numbers[i][row] = numbers[i];
    for (int i = 0; i < table->text_count; i++) table->texts[i][row] = texts[i];
    scan->event_end = at;
    return TAKEN;
}

/* What was not taken: which piece of the text it is, and where it stands. */
typedef struct {
    size_t index, start, end;
} Piece;

typedef struct {
    size_t events, flows;
    Piece *odd;
    size_t odd_count, odd_room;
} Left;

static int leave(Left *left, size_t index, size_t start, size_t end) {
    if (left->odd_count == left->odd_room) {
        size_t room = left->odd_room ? left->odd_room * 2 : 64;
        Piece *odd = realloc(left->odd, room * sizeof *odd);
        if (!odd) return 0;
        left->odd = odd;
        left->odd_room = room;
    }
    left->odd[left->odd_count++] = (Piece){index, start, end};
    return 1;
}

/* Read the pieces of a text between separators; false if there is no memory or Python
 * has raised. */
static int read_pieces(Scan *scan, const char *text, Left *left) {
    const Scanner *scanner = scan->scanner;
    const char *at = text;
    for (;;) {
        Verdict verdict = go_on(scan, at) ? read_event(scan, at) : FAILED;
        if (verdict == FAILED || scan->stopped) return 0;
        const char *end = verdict == TAKEN ? scan->event_end
                                           : next_separator(scan, at, scan->end);
        size_t index = left->events++;
        if (verdict == FLOW) left->flows++;
        if (verdict == ODD &&
            !leave(left, index, (size_t)(at - text), (size_t)(end - text)))
            return 0;
        if (end == scan->end) return !scan->stopped;
        at = end + scanner->separator_length;
    }
}

/* -------------------------------------------------------------------------- Python */

/* Return the columns of a table, whose memory they take over; the table is empty then. */
static PyObject *taken_columns(Table *table) {
    int numbers = table->number_count, count = numbers + table->text_count;
    PyObject *columns[2 * MOST_COLUMNS];
    for (int i = 0; i < count; i++) {
        if (i < numbers) {
            columns[i] = made(table->numbers[i], table->rows, "l");
            table->numbers[i] = NULL;
        } else {
            columns[i] = made(table->texts[i - numbers], table->rows, "I");
            table->texts[i - numbers] = NULL;
        }
    }
    table->rows = table->room = 0;
    return all_of(columns, count);
}

static int append(PyObject *list, PyObject *item) {
    if (!item) return 0;
    int failed = PyList_Append(list, item);
    Py_DECREF(item);
    return !failed;
}

/* Return (events, flows, [(index, text)]). */
static PyObject *told(const char *text, const Left *left) {
    PyObject *odd = PyList_New(0), *result = NULL;
    int whole = odd != NULL;
    for (size_t i = 0; whole && i < left->odd_count; i++) {
        const Piece *piece = &left->odd[i];
        whole = append(odd, Py_BuildValue("(ny#)", (Py_ssize_t)piece->index,
                                          text + piece->start,
                                          (Py_ssize_t)(piece->end - piece->start)));
    }
    if (whole)
        result = Py_BuildValue("(nnO)", (Py_ssize_t)left->events,
                               (Py_ssize_t)left->flows, odd);
    Py_XDECREF(odd);
    return result;
}

/* Return whether a scanner was made as a whole, and no thread is scanning with it. */
static int is_idle(const Scanner *scanner) {
    if (!scanner->busy && scanner->classify) return 1;
    PyErr_SetString(PyExc_RuntimeError, "the scanner is at work, or was not made");
    return 0;
}

/* Scan bytes from one place to another: a part of a block is not copied to be scanned. */
static PyObject *scanner_feed(PyObject *self, PyObject *args) {
    Scanner *scanner = (Scanner *)self;
    PyObject *bytes;
    char *text;
    Py_ssize_t length, start, end;
    if (!PyArg_ParseTuple(args, "Snn", &bytes, &start, &end) ||
        PyBytes_AsStringAndSize(bytes, &text, &length))
        return NULL;
    if (start < 0 || start > end || end > length) {
        PyErr_SetString(PyExc_IndexError, "there is no such part");
        return NULL;
    }
    if (!is_idle(scanner)) return NULL;
    text += start;
    Scan scan = {scanner, text + (end - start), NULL, NULL, NULL, text, 0};
    Left left = {0};
    scanner->busy = 1;
    scan.released = PyEval_SaveThread();
    int whole = read_pieces(&scan, text, &left);
    PyEval_RestoreThread(scan.released);
    scanner->busy = 0;
    PyObject *result = whole ? told(text, &left) : NULL;
    if (!whole && !PyErr_Occurred()) PyErr_NoMemory();
    free(left.odd);
    return result;
}

static PyObject *scanner_take(PyObject *self, PyObject *args) {
    Scanner *scanner = (Scanner *)self;
    int table;
    if (!PyArg_ParseTuple(args, "i", &table) || !is_idle(scanner)) return NULL;
    if (table < 0 || table >= scanner->table_count) {
        PyErr_SetString(PyExc_IndexError, "there is no such table");
        return NULL;
    }
    return taken_columns(&scanner->tables[table]);
}

static PyObject *listed(const Texts *texts) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < texts->count; i++) {
        const Text *text = &texts->known[i];
        if (!append(list, PyUnicode_DecodeUTF8(texts->bytes + text->start,
                                               (Py_ssize_t)text->length, "replace")))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *scanner_heads(PyObject *self, PyObject *Py_UNUSED(unused)) {
    if (!is_idle((Scanner *)self)) return NULL;
    return listed(&((Scanner *)self)->heads);
}

static PyObject *scanner_texts(PyObject *self, PyObject *args) {
    Scanner *scanner = (Scanner *)self;
    int table, column;
    if (!PyArg_ParseTuple(args, "ii", &table, &column) || !is_idle(scanner)) return NULL;
    if (table < 0 || table >= scanner->table_count || column < 1 ||
        column >= scanner->tables[table].text_count) {
        PyErr_SetString(PyExc_IndexError, "there is no such column");
        return NULL;
    }
    return listed(&scanner->tables[table].known[column]);
}

static void free_table(Table *table) {
    for (int i = 0; i < table->key_count; i++) free(table->keys[i].name);
    for (int i = 0; table->numbers && i < table->number_count; i++)
        free(table->numbers[i]);
    for (int i = 0; table->texts && i < table->text_count; i++) free(table->texts[i]);
    for (int i = 0; table->known && i < table->text_count; i++) free_texts(&table->known[i]);
    free(table->keys);
    free(table->numbers);
    free(table->texts);
    free(table->known);
}

static void scanner_dealloc(PyObject *self) {
    Scanner *scanner = (Scanner *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < scanner->table_count; i++) free_table(&scanner->tables[i]);
    free(scanner->tables);
    free(scanner->separator);
    free_texts(&scanner->heads);
    Py_XDECREF(scanner->classify);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Read (numbers, texts, [(name, kind, column, in_span, ends_span)]). */
static int read_table(Table *table, PyObject *spec) {
    PyObject *keys;
    if (!PyArg_ParseTuple(spec, "iiO", &table->number_count, &table->text_count, &keys))
        return 0;
    Py_ssize_t count = PyList_Size(keys);
    if (count < 0) return 0;
    if (table->number_count < 2 || table->number_count > MOST_COLUMNS ||
        table->text_count < 1 || table->text_count > MOST_COLUMNS || count > 64) {
        table->number_count = table->text_count = 0;
        PyErr_SetString(PyExc_ValueError, "too few columns, or too many");
        return 0;
    }
    table->numbers = calloc(table->number_count, sizeof *table->numbers);
    table->texts = calloc(table->text_count, sizeof *table->texts);
    table->known = calloc(table->text_count, sizeof *table->known);
    table->keys = calloc(count + 1, sizeof *table->keys);
    if (!table->numbers || !table->texts || !table->known || !table->keys)
        return no_memory();
    for (Py_ssize_t i = 0; i < count; i++) {
        Key *key = &table->keys[i];
        const char *name;
        Py_ssize_t length;
        int kind;
        PyObject *item = PyList_GetItem(keys, i);
        if (!item || !PyArg_ParseTuple(item, "y#iipp", &name, &length, &kind,
                              &key->column, &key->in_span, &key->ends_span))
            return 0;
        int columns = kind == NUMBER ? table->number_count
                      : kind == TEXT ? table->text_count
                                     : 1;
        if (kind < IGNORED || kind > REFUSED || key->column < 0 ||
            key->column >= columns) {
            PyErr_SetString(PyExc_ValueError, "there is no such column");
            return 0;
        }
        key->kind = (Kind)kind;
        key->length = (size_t)length;
        key->name = malloc(key->length + 1);
        if (!key->name) return no_memory();
        memcpy(key->name, name, key->length);
        table->key_count++;
    }
    return 1;
}

static int scanner_init(PyObject *self, PyObject *args, PyObject *Py_UNUSED(named)) {
    Scanner *scanner = (Scanner *)self;
    const char *separator;
    Py_ssize_t length;
    PyObject *classify, *tables;
    unsigned long long seed;
    /* After a failure a part of it is there, which nothing may replace. */
    if (scanner->classify || scanner->separator || scanner->tables) {
        PyErr_SetString(PyExc_RuntimeError, "a scanner is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "y#OOK", &separator, &length, &classify, &tables, &seed))
        return -1;
    const char *brace = memchr(separator, '}', (size_t)length);
    Py_ssize_t count = PyList_Size(tables);
    if (count < 0) return -1;
    scanner->separator = malloc((size_t)length + 1);
    scanner->tables = calloc(count + 1, sizeof *scanner->tables);
    if (!scanner->separator || !scanner->tables) return no_memory() - 1;
    memcpy(scanner->separator, separator, (size_t)length);
    scanner->separator_length = (size_t)length;
    /* A file of one event has no separator, and no brace in what stands for it. */
    scanner->brace = brace ? (size_t)(brace - separator) : 0;
    scanner->seed = seed;
    for (Py_ssize_t i = 0; i < count; i++) {
        scanner->table_count++;
        PyObject *item = PyList_GetItem(tables, i);
        if (!item || !read_table(&scanner->tables[i], item)) return -1;
    }
    Py_INCREF(classify);
    scanner->classify = classify;
    return 0;
}

static PyMethodDef scanner_methods[] = {
    {"feed", scanner_feed, METH_VARARGS, "Scan whole events: bytes, start and end."},
    {"take", scanner_take, METH_VARARGS, "The columns of a table, for Arrow."},
    {"heads", scanner_heads, METH_NOARGS, "The distinct heads, by their numbers."},
    {"texts", scanner_texts, METH_VARARGS, "The distinct texts of a column."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot scanner_slots[] = {
    {Py_tp_init, scanner_init},
    {Py_tp_dealloc, scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {Py_tp_new, PyType_GenericNew},
    {0, NULL},
};

PyType_Spec scanner_spec = {"traceq.native._native.Scanner", sizeof(Scanner), 0,
                            Py_TPFLAGS_DEFAULT, scanner_slots};

/* Let blocks of this size go back to the system when they are freed. glibc keeps those
 * that are no larger than the largest one freed so far, and columns grow. Let threads
 * share one heap: what one has freed the next one uses, and nobody waits for it who
 * does not wait for Python's lock anyway. */
static PyObject *return_freed(PyObject *Py_UNUSED(self), PyObject *args) {
    int size;
    if (!PyArg_ParseTuple(args, "i", &size)) return NULL;
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, size);
    mallopt(M_ARENA_MAX, 1);
#endif
    return Py_NewRef(Py_None);
}

PyMethodDef scan_methods[] = {
    {"return_freed", return_freed, METH_VARARGS, "Give freed blocks of a size back."},
    {NULL, NULL, 0, NULL},
};
