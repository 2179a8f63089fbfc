/* Sources of the extension: what module.c takes from each of them. */

#ifndef TRACEQ_NATIVE_H
#define TRACEQ_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline int no_memory(void) {
    PyErr_NoMemory();
    return 0;
}

extern PyMethodDef scan_methods[], snapshot_methods[], nesting_methods[], replay_methods[];
extern PyType_Spec scanner_spec;

#endif
