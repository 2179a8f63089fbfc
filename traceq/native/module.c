/* Module traceq.native._native: the functions of all sources, and one INTERFACE.
 *
 * Each function has a twin in Python, the reference, with which the tests compare it.
 */

#include "native.h"

/* Checked by __init__.py: one more with each change between Python and C. */
#define INTERFACE 1

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    PyObject *scanner = PyType_FromSpec(&scanner_spec);
    if (scanner && !PyModule_AddFunctions(module, scan_methods) &&
        !PyModule_AddFunctions(module, snapshot_methods) &&
        !PyModule_AddFunctions(module, nesting_methods) &&
        !PyModule_AddFunctions(module, replay_methods) &&
        !PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) &&
        !PyModule_AddObjectRef(module, "Scanner", scanner)) {
        Py_DECREF(scanner);
        return module;
    }
    Py_XDECREF(scanner);
    Py_DECREF(module);
    return NULL;
}
