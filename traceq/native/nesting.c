/* Nesting of events on their threads: pre-order, the row around each, sums by row.
 *
 * These loops carry a state along, which a query of Polars cannot. graph/nesting.py calls
 * them and has the same in Polars, as the reference. Columns come and go by Arrow's C
 * data interface, without a copy.
 */

#include "columns.h"

/* Return row numbers as a column, or free them: None if a loop could not find them, NULL
 * if a signal has ended it. */
static PyObject *rows_or_none(uint32_t *rows, size_t count, int whole,
                              const Watch *watch) {
    if (whole) return made(rows, count, "I");
    free(rows);
    return watch->stopped ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------ Rows in pre-order */

typedef struct {
    const int64_t *start, *end;
    uint32_t *order, *other; /* rows as they are, and as they will be */
    uint32_t *runs;          /* behind which row each run ends */
    Watch *watch;
} Sorting;

static int comes_before(const Sorting *sorting, uint32_t one, uint32_t other) {
    if (sorting->start[one] != sorting->start[other])
        return sorting->start[one] < sorting->start[other];
    return sorting->end[one] > sorting->end[other];
}

/* Rows that are out of order by no more than this are put where they belong at once. */
#define NEAR 8

/* Cut rows into runs that are in order; return how many, 0 after a signal. */
static size_t find_runs(Sorting *sorting, size_t first, size_t last) {
    uint32_t *order = sorting->order;
    size_t count = 0, begin = first;
    for (size_t next = first + 1; next < last; next++) {
        uint32_t row = order[next];
        size_t at = next, lowest = next - begin > NEAR ? next - NEAR : begin;
        if (!may_go_on(sorting->watch, 1)) return 0;
        if (!comes_before(sorting, row, order[at - 1])) continue;
        while (at > lowest && comes_before(sorting, row, order[at - 1])) at--;
        if (at == lowest && at > begin && comes_before(sorting, row, order[at - 1])) {
            sorting->runs[count++] = (uint32_t)(begin = next);
            continue;
        }
        memmove(order + at + 1, order + at, (next - at) * sizeof *order);
        order[at] = row;
    }
    sorting->runs[count++] = (uint32_t)last;
    return count;
}

/* Merge two neighbours; of rows that are equal the first one's come first. */
static int merge(const Sorting *sorting, size_t first, size_t middle, size_t last) {
    const uint32_t *order = sorting->order;
    size_t one = first, two = middle;
    for (size_t at = first; at < last; at++) {
        if (!may_go_on(sorting->watch, 1)) return 0;
        int second = one == middle ||
                     (two < last && comes_before(sorting, order[two], order[one]));
        sorting->other[at] = second ? order[two++] : order[one++];
    }
    return 1;
}

/* Sort rows by start, the longest first; most are in order, or are some runs that are. */
static int sort_rows(Sorting *sorting, size_t first, size_t last) {
    size_t count = find_runs(sorting, first, last);
    uint32_t *runs = sorting->runs;
    while (count > 1) {
        size_t begin = first, merged = 0;
        for (size_t run = 0; run < count; run += 2) {
            size_t middle = runs[run], end = run + 1 < count ? runs[run + 1] : middle;
            if (!merge(sorting, begin, middle, end)) return 0;
            runs[merged++] = (uint32_t)(begin = end);
        }
        memcpy(sorting->order + first, sorting->other + first,
               (last - first) * sizeof *sorting->order);
        count = merged;
    }
    return count != 0;
}

/* Put rows in pre-order: by thread, then start, the longest first. ``after`` has room
 * for two more than there are threads. */
static int find_order(Sorting *sorting, const uint32_t *thread, size_t count,
                      size_t threads, uint32_t *after) {
    for (size_t row = 0; row < count; row++) {
        if (!may_go_on(sorting->watch, 1)) return 0;
        after[thread[row] + 2]++;
    }
    for (size_t at = 2; at < threads + 2; at++) after[at] += after[at - 1];
    for (size_t row = 0; row < count; row++) {
        if (!may_go_on(sorting->watch, 1)) return 0;
        sorting->order[after[thread[row] + 1]++] = (uint32_t)row;
    }
    for (size_t at = 0; at < threads; at++)
        if (after[at + 1] > after[at] && !sort_rows(sorting, after[at], after[at + 1]))
            return 0;
    return 1;
}

static PyObject *preorder(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[3], *result = NULL;
    Column columns[3];
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2]) ||
        !take_rows(given, "Ill", columns))
        return NULL;
    const uint32_t *thread = columns[0].values;
    size_t count = columns[0].length, threads = 0;
    for (size_t row = 0; row < count; row++)
        if (thread[row] >= threads) threads = (size_t)thread[row] + 1;
    if (threads > 4 * count + 64) {
        /* Numbers are few, or they are no numbers of threads. */
        result = Py_NewRef(Py_None);
    } else {
        Watch watch = {NULL, 0, 0};
        size_t size = (count + 1) * sizeof(uint32_t);
        Sorting sorting = {columns[1].values, columns[2].values, malloc(size),
                           malloc(size),      malloc(size),      &watch};
        uint32_t *after = calloc(threads + 2, sizeof *after);
        if (sorting.order && sorting.other && sorting.runs && after) {
            watch.released = PyEval_SaveThread();
            int whole = find_order(&sorting, thread, count, threads, after);
            PyEval_RestoreThread(watch.released);
            result = rows_or_none(sorting.order, count, whole, &watch);
        } else {
            free(sorting.order);
            PyErr_NoMemory();
        }
        free(sorting.other);
        free(sorting.runs);
        free(after);
    }
    drop_columns(columns, 3);
    return result;
}

/* ------------------------------------------------------------------ The row around each */

/* The nearest row before each, of its thread, that ends no earlier, or nowhere.
 * Whoever is passed over ends before the one that passes, which is nearer. */
static int find_parents(const uint32_t *thread, const int64_t *end, size_t count,
                        uint32_t nowhere, uint32_t *parent, uint32_t *open,
                        Watch *watch) {
    size_t depth = 0;
    for (size_t row = 0; row < count; row++) {
        if (!may_go_on(watch, 1)) return 0;
        if (row && thread[row] != thread[row - 1]) depth = 0;
        while (depth && end[open[depth - 1]] < end[row]) depth--;
        parent[row] = depth ? open[depth - 1] : nowhere;
        open[depth++] = (uint32_t)row;
    }
    return 1;
}

static PyObject *parents(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[2], *result = NULL;
    Column columns[2];
    unsigned int nowhere;
    if (!PyArg_ParseTuple(args, "IOO", &nowhere, &given[0], &given[1]) ||
        !take_rows(given, "Il", columns))
        return NULL;
    size_t count = columns[0].length;
    uint32_t *parent = malloc((count + 1) * sizeof *parent);
    uint32_t *open = malloc((count + 1) * sizeof *open);
    if (parent && open) {
        Watch watch = {PyEval_SaveThread(), 0, 0};
        int whole = find_parents(columns[0].values, columns[1].values, count, nowhere,
                                 parent, open, &watch);
        PyEval_RestoreThread(watch.released);
        result = rows_or_none(parent, count, whole, &watch);
    } else {
        free(parent);
        PyErr_NoMemory();
    }
    free(open);
    drop_columns(columns, 2);
    return result;
}

/* Where one arrives from each row; false if a row leads to one behind it, but the last. */
static int find_ends(const uint32_t *leads, size_t count, uint32_t *ends, Watch *watch) {
    for (size_t row = 0; row < count; row++) {
        uint32_t next = leads[row];
        if (!may_go_on(watch, 1)) return 0;
        if (next < row)
            ends[row] = ends[next];
        else if (next == row || (next == count - 1 && leads[next] == next))
            ends[row] = next;
        else
            return 0;
    }
    return 1;
}

static PyObject *arrived(PyObject *Py_UNUSED(self), PyObject *series) {
    Column leads;
    PyObject *result = NULL;
    if (!take_columns(&series, "I", &leads)) return NULL;
    uint32_t *ends = malloc((leads.length + 1) * sizeof *ends);
    if (ends) {
        Watch watch = {PyEval_SaveThread(), 0, 0};
        int whole = find_ends(leads.values, leads.length, ends, &watch);
        PyEval_RestoreThread(watch.released);
        result = rows_or_none(ends, leads.length, whole, &watch);
    } else {
        PyErr_NoMemory();
    }
    drop_column(&leads);
    return result;
}

/* ------------------------------------------------------------------------ Sums by row */

/* Add each value to the sum of its row; false if there is no such row. */
static int add_up(const uint32_t *row, const int64_t *value, size_t count, int64_t *sums,
                  size_t rows, Watch *watch) {
    for (size_t at = 0; at < count; at++) {
        if (row[at] >= rows || !may_go_on(watch, 1)) return 0;
        sums[row[at]] = plus(sums[row[at]], value[at]);
    }
    return 1;
}

static PyObject *sums(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *given[2], *result = NULL;
    Column columns[2];
    unsigned int rows;
    if (!PyArg_ParseTuple(args, "IOO", &rows, &given[0], &given[1]) ||
        !take_rows(given, "Il", columns))
        return NULL;
    int64_t *added = calloc((size_t)rows + 1, sizeof *added);
    if (added) {
        Watch watch = {PyEval_SaveThread(), 0, 0};
        int whole = add_up(columns[0].values, columns[1].values, columns[0].length, added,
                           rows, &watch);
        PyEval_RestoreThread(watch.released);
        if (whole) {
            result = made(added, rows, "l");
        } else {
            free(added);
            if (!watch.stopped)
                PyErr_SetString(PyExc_ValueError, "a value of a row that is not there");
        }
    } else {
        PyErr_NoMemory();
    }
    drop_columns(columns, 2);
    return result;
}

PyMethodDef nesting_methods[] = {
    {"preorder", preorder, METH_VARARGS, "The rows in pre-order."},
    {"parents", parents, METH_VARARGS, "The row around each, in pre-order."},
    {"arrived", arrived, METH_O, "Where one arrives from each row."},
    {"sums", sums, METH_VARARGS, "The sum of the values of each row."},
    {NULL, NULL, 0, NULL},
};
