/* Three loops over columns that a query of Polars cannot be: they carry a state along.
 *
 * sweep.py says what each is for, and calls it; nesting.py has the same in Polars, as
 * the reference. Columns come and go by Arrow's C data interface, without a copy.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../formats/_columns.h"

/* What sweep.py asks for: one more with each change between the two. */
#define INTERFACE 1

/* ------------------------------------------------------------------------ The loops */

/* The nearest row before each, of its thread, that ends no earlier; ``count`` if none.
 * Whoever is passed over ends before the one that passes, which is nearer. */
static void find_parents(const uint32_t *thread, const int64_t *end, size_t count,
                         uint32_t *parent, uint32_t *open) {
    size_t depth = 0;
    for (size_t row = 0; row < count; row++) {
        if (row && thread[row] != thread[row - 1]) depth = 0;
        while (depth && end[open[depth - 1]] < end[row]) depth--;
        parent[row] = depth ? open[depth - 1] : (uint32_t)count;
        open[depth++] = (uint32_t)row;
    }
}

static PyObject *parents(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[2];
    Column thread, end;
    if (!PyArg_ParseTuple(args, "OO", &given[0], &given[1])) return NULL;
    if (!take_column(given[0], "I", 4, &thread)) return NULL;
    if (!take_column(given[1], "l", 8, &end)) {
        drop_column(&thread);
        return NULL;
    }
    size_t count = end.length;
    uint32_t *parent = malloc((count + 1) * sizeof *parent);
    uint32_t *open = malloc((count + 1) * sizeof *open);
    PyObject *result = NULL;
    if (thread.length != count) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    } else if (!parent || !open) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        find_parents(thread.values, end.values, count, parent, open);
        Py_END_ALLOW_THREADS
        result = made(parent, count, "I");
        parent = NULL;
    }
    free(parent);
    free(open);
    drop_column(&thread);
    drop_column(&end);
    return result;
}

/* Where one arrives from each row; false if a row leads to one behind it, but the last. */
static int find_ends(const uint32_t *leads, size_t count, uint32_t *found) {
    for (size_t row = 0; row < count; row++) {
        uint32_t next = leads[row];
        if (next < row)
            found[row] = found[next];
        else if (next == row || (next == count - 1 && leads[next] == next))
            found[row] = next;
        else
            return 0;
    }
    return 1;
}

static PyObject *arrived(PyObject *self, PyObject *series) {
    (void)self;
    Column leads;
    if (!take_column(series, "I", 4, &leads)) return NULL;
    uint32_t *found = malloc((leads.length + 1) * sizeof *found);
    PyObject *result = NULL;
    if (!found) {
        PyErr_NoMemory();
    } else {
        int whole;
        Py_BEGIN_ALLOW_THREADS
        whole = find_ends(leads.values, leads.length, found);
        Py_END_ALLOW_THREADS
        if (whole) {
            result = made(found, leads.length, "I");
        } else {
            free(found);
            Py_INCREF(Py_None);
            result = Py_None;
        }
    }
    drop_column(&leads);
    return result;
}

/* A thread on its way through its rows: the next moment, and what is open. */
typedef struct {
    size_t row, last; /* the next row that begins, and behind the last */
    uint32_t *open;   /* rows that are open, the one that ends first on top */
    size_t depth;
    int64_t time; /* of its next moment, ... */
    size_t place; /* ... which is a place among all: see find_moments */
} Thread;

typedef struct {
    const int64_t *start, *end;
    size_t rows;
    size_t patience; /* how many rows may be passed until it is given up */
} Rows;

/* Find the next moment of a thread; false if there is none. */
static int next_moment(const Rows *rows, Thread *thread) {
    uint32_t top = thread->depth ? thread->open[thread->depth - 1] : 0;
    if (thread->depth &&
        (thread->row == thread->last || rows->end[top] <= rows->start[thread->row])) {
        thread->time = rows->end[top];
        thread->place = rows->rows - 1 - top;
    } else if (thread->row < thread->last) {
        thread->time = rows->start[thread->row];
        thread->place = rows->rows + thread->row;
    } else {
        return 0;
    }
    return 1;
}

/* Let the next moment pass; false if too many rows overlap and are not inside another. */
static int pass_moment(Rows *rows, Thread *thread) {
    if (thread->place < rows->rows) {
        thread->depth--;
        return 1;
    }
    uint32_t row = (uint32_t)thread->row++;
    size_t at = thread->depth++;
    for (; at && rows->end[thread->open[at - 1]] < rows->end[row]; at--) {
        thread->open[at] = thread->open[at - 1];
        if (!rows->patience--) return 0;
    }
    thread->open[at] = row;
    return 1;
}

static int is_before(const Thread *one, const Thread *other) {
    return one->time < other->time ||
           (one->time == other->time && one->place < other->place);
}

/* Move a thread down the heap, as far as others come before it. */
static void sink(Thread *heap, size_t count, size_t at) {
    Thread mine = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && is_before(&heap[child + 1], &heap[child])) child++;
        if (!is_before(&heap[child], &mine)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = mine;
}

/* Make a heap of the threads, by their first moments; return how many there are. */
static size_t make_heap(const Rows *rows, const uint32_t *thread, uint32_t *open,
                        Thread *heap) {
    size_t count = 0;
    for (size_t row = 0, first = 0; row < rows->rows; row++) {
        if (row + 1 < rows->rows && thread[row + 1] == thread[row]) continue;
        heap[count] = (Thread){first, row + 1, open + first, 0, 0, 0};
        next_moment(rows, &heap[count++]);
        first = row + 1;
    }
    for (size_t at = count / 2; at-- > 0;) sink(heap, count, at);
    return count;
}

typedef struct {
    Column start, end, parent, thread, edges;
} Tree;

static void drop_tree(Tree *tree) {
    drop_column(&tree->start);
    drop_column(&tree->end);
    drop_column(&tree->parent);
    drop_column(&tree->thread);
    drop_column(&tree->edges);
}

static size_t count_threads(const uint32_t *thread, size_t rows) {
    size_t count = 0;
    for (size_t row = 0; row < rows; row++) count += !row || thread[row] != thread[row - 1];
    return count;
}

/* Write what is open from each moment on; 0 if it was given up, -1 without memory.
 * Moments of one time are in the order of their places: ends are first, the last row's
 * before the others', then starts, then edges. */
static int find_moments(const Tree *tree, uint32_t nothing, uint32_t nobody,
                        int64_t *times, uint32_t *at, uint32_t *rank) {
    Rows rows = {tree->start.values, tree->end.values, tree->start.length,
                 8 * tree->start.length};
    const uint32_t *parent = tree->parent.values, *thread = tree->thread.values;
    const int64_t *edge = tree->edges.values, *last_edge = edge + tree->edges.length;
    uint32_t *open = malloc((rows.rows + 1) * sizeof *open);
    Thread *heap = malloc((count_threads(thread, rows.rows) + 1) * sizeof *heap);
    int found = open && heap ? 1 : -1;
    size_t count = found > 0 ? make_heap(&rows, thread, open, heap) : 0, made = 0;
    while (found > 0 && (count || edge < last_edge)) {
        if (!count || (edge < last_edge && *edge < heap->time)) {
            times[made] = *edge++;
            at[made] = nothing;
            rank[made++] = nobody;
            continue;
        }
        int ends = heap->place < rows.rows;
        size_t row = ends ? rows.rows - 1 - heap->place : heap->place - rows.rows;
        times[made] = heap->time;
        at[made] = ends ? parent[row] : (uint32_t)row;
        rank[made++] = thread[row];
        if (!pass_moment(&rows, heap)) found = 0;
        if (!next_moment(&rows, heap)) *heap = heap[--count];
        sink(heap, count, 0);
    }
    free(open);
    free(heap);
    return found;
}

static PyObject *moments(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *given[5], *result = NULL;
    unsigned int nothing, nobody;
    Tree tree;
    memset(&tree, 0, sizeof tree);
    if (!PyArg_ParseTuple(args, "OOOOOII", &given[0], &given[1], &given[2], &given[3],
                          &given[4], &nothing, &nobody))
        return NULL;
    int64_t *times = NULL;
    uint32_t *at = NULL, *rank = NULL;
    if (take_column(given[0], "l", 8, &tree.start) &&
        take_column(given[1], "l", 8, &tree.end) &&
        take_column(given[2], "I", 4, &tree.parent) &&
        take_column(given[3], "I", 4, &tree.thread) &&
        take_column(given[4], "l", 8, &tree.edges)) {
        size_t rows = tree.start.length, count = 2 * rows + tree.edges.length;
        int found = -1;
        if (tree.end.length != rows || tree.parent.length != rows ||
            tree.thread.length != rows) {
            PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        } else {
            times = malloc((count + 1) * sizeof *times);
            at = malloc((count + 1) * sizeof *at);
            rank = malloc((count + 1) * sizeof *rank);
            if (times && at && rank) {
                Py_BEGIN_ALLOW_THREADS
                found = find_moments(&tree, nothing, nobody, times, at, rank);
                Py_END_ALLOW_THREADS
            }
            if (found < 0) PyErr_NoMemory();
        }
        if (!found) {
            Py_INCREF(Py_None);
            result = Py_None;
        } else if (found > 0) {
            PyObject *one = made(times, count, "l"), *two = made(at, count, "I");
            PyObject *three = made(rank, count, "I");
            times = NULL;
            at = rank = NULL;
            if (one && two && three) result = Py_BuildValue("(OOO)", one, two, three);
            Py_XDECREF(one);
            Py_XDECREF(two);
            Py_XDECREF(three);
        }
    }
    free(times);
    free(at);
    free(rank);
    drop_tree(&tree);
    return result;
}

static PyMethodDef methods[] = {
    {"parents", parents, METH_VARARGS, "The row around each, in pre-order."},
    {"arrived", arrived, METH_O, "Where one arrives from each row."},
    {"moments", moments, METH_VARARGS, "What is open from each moment on."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sweep", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sweep(void) {
    PyObject *found = PyModule_Create(&module);
    if (found && PyModule_AddIntConstant(found, "INTERFACE", INTERFACE)) Py_CLEAR(found);
    return found;
}
