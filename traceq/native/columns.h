/* Columns of numbers, from Polars and to it, by Arrow's C data interface. */

#ifndef TRACEQ_COLUMNS_H
#define TRACEQ_COLUMNS_H

#include "arrow.h"

/* --------------------------------------------------------------- Columns come in */

typedef struct {
    struct ArrowSchema schema;
    struct ArrowArray array;
    const void *values;
    size_t length;
} Column;

/* A column that was dropped, or is all zeros, has nothing to drop. */
static inline void drop_column(Column *column) {
    if (column->array.release) column->array.release(&column->array);
    if (column->schema.release) column->schema.release(&column->schema);
}

/* Take the only chunk of a Series of this format, which has no nulls. */
static inline int take_column(PyObject *series, char format, Column *column) {
    static const int64_t nothing = 0;
    memset(column, 0, sizeof *column);
    column->values = &nothing;
    PyObject *capsule = PyObject_CallMethod(series, "__arrow_c_stream__", NULL);
    if (!capsule) return 0;
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    int whole = stream && stream->release;
    whole = whole && !stream->get_schema(stream, &column->schema);
    whole = whole && column->schema.format[0] == format && !column->schema.format[1];
    whole = whole && !stream->get_next(stream, &column->array);
    /* What has no rows has no chunk. */
    if (whole && column->array.release) {
        struct ArrowArray *array = &column->array;
        whole = array->n_buffers == 2 && !array->null_count && array->length >= 0 &&
                array->length < UINT32_MAX;
        if (whole && array->length) {
            column->length = (size_t)array->length;
            column->values = (const char *)array->buffers[1] +
                             array->offset * (format == 'I' ? 4 : 8);
        }
        struct ArrowArray more = {0};
        whole = whole && !stream->get_next(stream, &more);
        if (more.release) {
            more.release(&more);
            whole = 0;
        }
    }
    Py_DECREF(capsule);
    if (whole) return 1;
    drop_column(column);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "not one chunk of numbers without nulls");
    return 0;
}

static inline void drop_columns(Column *columns, size_t count) {
    for (size_t at = 0; at < count; at++) drop_column(&columns[at]);
}

/* Take columns of these formats, one letter for each, or none of them. */
static inline int take_columns(PyObject *const *given, const char *formats,
                               Column *columns) {
    for (size_t at = 0; formats[at]; at++) {
        if (!take_column(given[at], formats[at], &columns[at])) {
            drop_columns(columns, at);
            return 0;
        }
    }
    return 1;
}

static inline int refused(void) {
    PyErr_SetString(PyExc_ValueError, "columns that do not fit each other");
    return 0;
}

/* Take columns of these formats that have one length, or none of them. */
static inline int take_rows(PyObject *const *given, const char *formats,
                            Column *columns) {
    size_t count = strlen(formats), at = 1;
    if (!take_columns(given, formats, columns)) return 0;
    while (at < count && columns[at].length == columns[0].length) at++;
    if (at >= count) return 1;
    drop_columns(columns, count);
    return refused();
}

/* --------------------------------------------------------------- Columns go out */

static inline void release_numbers(struct ArrowArray *array) {
    free(array->private_data);
    free(array->buffers);
    array->release = NULL;
}

static inline void release_format(struct ArrowSchema *schema) { schema->release = NULL; }

/* Return the schema and the array of numbers, which are freed by whoever gets them. */
static inline PyObject *made(void *values, size_t length, const char *format) {
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    struct ArrowArray *array = calloc(1, sizeof *array);
    const void **buffers = calloc(2, sizeof *buffers);
    if (!schema || !array || !buffers) {
        free(schema);
        free(array);
        free(buffers);
        free(values);
        return PyErr_NoMemory();
    }
    schema->format = format;
    schema->name = "";
    schema->release = release_format;
    buffers[1] = values;
    array->length = (int64_t)length;
    array->n_buffers = 2;
    array->buffers = buffers;
    array->private_data = values;
    array->release = release_numbers;
    return arrow_capsules(schema, array);
}

/* Return a tuple of what was made, which is given away; NULL if any of it was not. */
static inline PyObject *all_of(PyObject *const *parts, Py_ssize_t count) {
    PyObject *result = PyTuple_New(count);
    for (Py_ssize_t at = 0; at < count; at++) {
        if (result && parts[at])
            PyTuple_SetItem(result, at, parts[at]);
        else
            Py_XDECREF(parts[at]);
        if (!parts[at]) Py_CLEAR(result);
    }
    return result;
}

/* ------------------------------------------------------------------- Whole numbers */

/* As Polars adds and subtracts: what is beyond all numbers begins again. */
static inline int64_t plus(int64_t one, int64_t other) {
    return (int64_t)((uint64_t)one + (uint64_t)other);
}

static inline int64_t minus(int64_t one, int64_t other) {
    return (int64_t)((uint64_t)one - (uint64_t)other);
}

/* ------------------------------------------------------------------------- Signals */

/* This many rows take far less than 0.1 s. */
#define CHECKED_ROWS (1 << 21)

/* A loop that runs without Python's lock, and lets signals be handled now and then. */
typedef struct {
    PyThreadState *released;
    size_t rows; /* since they were looked for */
    int stopped; /* whether a handler has raised */
} Watch;

/* Count rows that were passed; false if the loop has to end. */
static inline int may_go_on(Watch *watch, size_t rows) {
    if (watch->stopped) return 0;
    watch->rows += rows;
    if (watch->rows < CHECKED_ROWS) return 1;
    watch->rows = 0;
    PyEval_RestoreThread(watch->released);
    watch->stopped = PyErr_CheckSignals() != 0;
    watch->released = PyEval_SaveThread();
    return !watch->stopped;
}

#endif
