/* The Arrow C data interface, as its specification gives it, and its way into Python. */

#ifndef TRACEQ_ARROW_H
#define TRACEQ_ARROW_H

#include "native.h"

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

static inline void drop_arrow_schema(PyObject *capsule) {
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release) schema->release(schema);
    free(schema);
}

static inline void drop_arrow_array(PyObject *capsule) {
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release) array->release(array);
    free(array);
}

/* Return (schema, array) for Python, or NULL; both are its own from here on. */
static inline PyObject *arrow_capsules(struct ArrowSchema *schema,
                                       struct ArrowArray *array) {
    PyObject *result = NULL, *array_capsule = NULL;
    PyObject *schema_capsule = PyCapsule_New(schema, "arrow_schema", drop_arrow_schema);
    if (schema_capsule)
        array_capsule = PyCapsule_New(array, "arrow_array", drop_arrow_array);
    if (array_capsule) result = Py_BuildValue("(OO)", schema_capsule, array_capsule);
    if (!schema_capsule) {
        schema->release(schema);
        free(schema);
    }
    if (!array_capsule) {
        array->release(array);
        free(array);
    }
    Py_XDECREF(schema_capsule);
    Py_XDECREF(array_capsule);
    return result;
}

#endif
