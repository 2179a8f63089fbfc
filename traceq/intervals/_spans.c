/* Spans of time against each other, where both are in order: one pass for all of it.
 *
 * __init__.py says what each is for, and has the same in Polars, as the reference.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../formats/_columns.h"

/* What __init__.py asks for: one more with each change between the two. */
#define INTERFACE 3

/* ------------------------------------------------------------------------ The loops */

#define PLUS_whole(one, other) plus(one, other)
#define MINUS_whole(one, other) minus(one, other)
#define PLUS_part(one, other) ((one) + (other))
#define MINUS_part(one, other) ((one) - (other))

/* Times are whole nanoseconds as recorded, and fractions in a replay. */
#define LOOPS(Time, kind)                                                               \
                                                                                        \
    /* Write spans that overlap or touch as one, with how long those before them are;   \
     * return how many there are, or -1 if they do not begin in order. */               \
    static int64_t merge_##kind(const Time *start, const Time *end, size_t count,       \
                                Time *starts, Time *ends, Time *before) {               \
        size_t made = 0;                                                                \
        for (size_t row = 0; row < count; row++) {                                      \
            if (row && start[row] < start[row - 1]) return -1;                          \
            if (end[row] <= start[row]) continue;                                       \
            if (made && start[row] <= ends[made - 1]) {                                 \
                if (end[row] > ends[made - 1]) ends[made - 1] = end[row];               \
                continue;                                                               \
            }                                                                           \
            before[made] = made ? PLUS_##kind(before[made - 1],                         \
                                              MINUS_##kind(ends[made - 1],              \
                                                           starts[made - 1]))           \
                                : 0;                                                    \
            starts[made] = start[row];                                                  \
            ends[made++] = end[row];                                                    \
        }                                                                               \
        return (int64_t)made;                                                           \
    }                                                                                   \
                                                                                        \
    /* How many of the sorted times are not after a moment, if these are at least       \
     * ``from``: what is near is found at once, what is far in few steps. */            \
    static size_t passed_##kind(const Time *times, size_t count, size_t from,           \
                                Time moment) {                                          \
        size_t step = 1, low = from, high = from;                                       \
        while (high < count && times[high] <= moment) {                                 \
            low = high + 1;                                                             \
            high += step;                                                               \
            step *= 2;                                                                  \
        }                                                                               \
        if (high > count) high = count;                                                 \
        while (low < high) {                                                            \
            size_t middle = low + (high - low) / 2;                                     \
            if (times[middle] <= moment)                                                \
                low = middle + 1;                                                       \
            else                                                                        \
                high = middle;                                                          \
        }                                                                               \
        return low;                                                                     \
    }                                                                                   \
                                                                                        \
    /* Write how much of the time before each moment merged spans cover. */             \
    static void cover_##kind(const Column *spans, const Column *moments, Time *covered) { \
        const Time *start = spans[0].values, *end = spans[1].values;                    \
        const Time *before = spans[2].values, *moment = moments->values;                \
        size_t begun = 0;                                                               \
        for (size_t row = 0; row < moments->length; row++) {                            \
            if (row && moment[row] < moment[row - 1]) begun = 0;                        \
            begun = passed_##kind(start, spans->length, begun, moment[row]);            \
            if (!begun) {                                                               \
                covered[row] = 0;                                                       \
                continue;                                                               \
            }                                                                           \
            size_t last = begun - 1;                                                    \
            Time until = moment[row] < end[last] ? moment[row] : end[last];             \
            covered[row] = PLUS_##kind(before[last], MINUS_##kind(until, start[last])); \
        }                                                                               \
    }

LOOPS(int64_t, whole)
LOOPS(double, part)

/* Parts of time between edges that are covered: their numbers, and how much of each. */
typedef struct {
    uint32_t *part;
    int64_t *covered;
    size_t count, room;
} Parts;

static int add_part(Parts *parts, size_t part, int64_t covered) {
    if (parts->count && parts->part[parts->count - 1] == part) {
        int64_t *last = &parts->covered[parts->count - 1];
        *last = plus(*last, covered);
        return 1;
    }
    if (parts->count == parts->room) {
        parts->room = 2 * parts->room + 64;
        uint32_t *part_room = realloc(parts->part, parts->room * sizeof *part_room);
        if (part_room) parts->part = part_room;
        int64_t *room = realloc(parts->covered, parts->room * sizeof *room);
        if (room) parts->covered = room;
        if (!part_room || !room) return 0;
    }
    parts->part[parts->count] = (uint32_t)part;
    parts->covered[parts->count++] = covered;
    return 1;
}

/* Find which of the parts between edges merged spans cover; false without memory. */
static int find_parts(const Column *spans, const Column *edges, Parts *parts) {
    const int64_t *start = spans[0].values, *end = spans[1].values;
    const int64_t *edge = edges->values;
    size_t last = edges->length ? edges->length - 1 : 0, passed = 0;
    for (size_t row = 0; row < spans->length; row++) {
        passed = passed_whole(edge, edges->length, passed, start[row]);
        size_t part = passed ? passed - 1 : 0;
        for (; part < last && edge[part] < end[row]; part++) {
            int64_t from = start[row] > edge[part] ? start[row] : edge[part];
            int64_t to = end[row] < edge[part + 1] ? end[row] : edge[part + 1];
            if (!add_part(parts, part, minus(to, from))) return 0;
        }
    }
    return 1;
}

/* Write which spans have any of the sorted moments in them, or at their start; return
 * how many, or -1 if they do not begin in order. */
static int64_t find_holding(const Column *spans, const Column *moments, uint32_t *found) {
    const int64_t *start = spans[0].values, *dur = spans[1].values;
    const int64_t *moment = moments->values;
    size_t next = 0;
    int64_t count = 0;
    for (size_t row = 0; row < spans->length; row++) {
        if (row && start[row] < start[row - 1]) return -1;
        while (next < moments->length && moment[next] < start[row]) next++;
        if (next == moments->length) break;
        if (minus(moment[next], start[row]) < dur[row]) found[count++] = (uint32_t)row;
    }
    return count;
}

/* ------------------------------------------------------------------ As Python calls them */

/* Return numbers of which the first are kept, without the room behind them. */
static PyObject *made_of(void *values, size_t length, size_t width, const char *format) {
    void *kept = realloc(values, (length + 1) * width);
    return made(kept ? kept : values, length, format);
}

static PyObject *merged(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2], *result = NULL;
    Column spans[2];
    int fractions;
    if (!PyArg_ParseTuple(args, "OOp", &given[0], &given[1], &fractions)) return NULL;
    if (!take_columns(given, fractions ? "gg" : "ll", spans)) return NULL;
    size_t count = spans[0].length, size = (count + 1) * 8;
    void *starts = malloc(size), *ends = malloc(size), *before = malloc(size);
    if (spans[1].length != count) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    } else if (!starts || !ends || !before) {
        PyErr_NoMemory();
    } else {
        int64_t found;
        Py_BEGIN_ALLOW_THREADS
        found = fractions ? merge_part(spans[0].values, spans[1].values, count, starts,
                                       ends, before)
                          : merge_whole(spans[0].values, spans[1].values, count, starts,
                                        ends, before);
        Py_END_ALLOW_THREADS
        if (found < 0) {
            result = none();
        } else {
            const char *format = fractions ? "g" : "l";
            size_t length = (size_t)found;
            PyObject *parts[] = {made_of(starts, length, 8, format),
                                 made_of(ends, length, 8, format),
                                 made_of(before, length, 8, format)};
            result = all_of(parts, 3);
            starts = ends = before = NULL;
        }
    }
    free(starts);
    free(ends);
    free(before);
    drop_columns(spans, 2);
    return result;
}

static PyObject *until(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[4], *result = NULL;
    Column columns[4];
    int fractions;
    if (!PyArg_ParseTuple(args, "OOOOp", &given[0], &given[1], &given[2], &given[3],
                          &fractions))
        return NULL;
    if (!take_columns(given, fractions ? "gggg" : "llll", columns)) return NULL;
    size_t count = columns[3].length;
    void *covered = malloc((count + 1) * 8);
    if (columns[1].length != columns->length || columns[2].length != columns->length) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    } else if (!covered) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        if (fractions)
            cover_part(columns, &columns[3], covered);
        else
            cover_whole(columns, &columns[3], covered);
        Py_END_ALLOW_THREADS
        result = made(covered, count, fractions ? "g" : "l");
        covered = NULL;
    }
    free(covered);
    drop_columns(columns, 4);
    return result;
}

static PyObject *between(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[3], *result = NULL;
    Column columns[3];
    Parts parts = {NULL, NULL, 0, 0};
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2])) return NULL;
    if (!take_columns(given, "lll", columns)) return NULL;
    if (columns[1].length != columns->length) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    } else {
        int found;
        Py_BEGIN_ALLOW_THREADS
        found = find_parts(columns, &columns[2], &parts);
        Py_END_ALLOW_THREADS
        if (found) {
            PyObject *columns_made[] = {made_of(parts.part, parts.count, 4, "I"),
                                        made_of(parts.covered, parts.count, 8, "l")};
            parts.part = NULL;
            parts.covered = NULL;
            result = all_of(columns_made, 2);
        } else {
            PyErr_NoMemory();
        }
    }
    free(parts.part);
    free(parts.covered);
    drop_columns(columns, 3);
    return result;
}

static PyObject *holding(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[3], *result = NULL;
    Column columns[3];
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2])) return NULL;
    if (!take_columns(given, "lll", columns)) return NULL;
    uint32_t *rows = malloc((columns->length + 1) * sizeof *rows);
    if (columns[1].length != columns->length) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    } else if (!rows) {
        PyErr_NoMemory();
    } else {
        int64_t found;
        Py_BEGIN_ALLOW_THREADS
        found = find_holding(columns, &columns[2], rows);
        Py_END_ALLOW_THREADS
        if (found < 0) {
            result = none();
        } else {
            result = made_of(rows, (size_t)found, sizeof *rows, "I");
            rows = NULL;
        }
    }
    free(rows);
    drop_columns(columns, 3);
    return result;
}

/* Write how many of the sorted times are not after each moment; with ``before``, and of
 * whole times alone, how many are before it. */
static void count_passed(const Column *times, const Column *moments, int fractions,
                         int before, uint32_t *passed) {
    size_t found = 0;
    for (size_t row = 0; row < moments->length; row++) {
        if (fractions) {
            const double *moment = moments->values;
            if (row && moment[row] < moment[row - 1]) found = 0;
            found = passed_part(times->values, times->length, found, moment[row]);
        } else {
            const int64_t *moment = moments->values;
            if (row && moment[row] < moment[row - 1]) found = 0;
            /* No time is before the first that there is. */
            int64_t last = before && moment[row] > INT64_MIN ? moment[row] - 1 : moment[row];
            found = passed_whole(times->values, times->length, found, last);
        }
        passed[row] = (uint32_t)found;
    }
}

static PyObject *passed(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2], *result = NULL;
    Column columns[2];
    int fractions, before;
    if (!PyArg_ParseTuple(args, "OOpp", &given[0], &given[1], &fractions, &before))
        return NULL;
    if (!take_columns(given, fractions ? "gg" : "ll", columns)) return NULL;
    size_t count = columns[1].length;
    uint32_t *found = malloc((count + 1) * sizeof *found);
    if (!found) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        count_passed(&columns[0], &columns[1], fractions, before, found);
        Py_END_ALLOW_THREADS
        result = made(found, count, "I");
    }
    drop_columns(columns, 2);
    return result;
}

static PyMethodDef methods[] = {
    {"merged", merged, METH_VARARGS, "Spans in order, those that touch as one."},
    {"until", until, METH_VARARGS, "How much is covered before each moment."},
    {"between", between, METH_VARARGS, "Which parts between edges are covered."},
    {"passed", passed, METH_VARARGS, "How many of the times are before each moment."},
    {"holding", holding, METH_VARARGS, "Which spans have any of the moments in them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_spans", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__spans(void) {
    PyObject *found = PyModule_Create(&module);
    if (found && PyModule_AddIntConstant(found, "INTERFACE", INTERFACE)) Py_CLEAR(found);
    return found;
}
