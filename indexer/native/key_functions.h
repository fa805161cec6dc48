// Keys of blocks, as functions of the module. _native.pyi describes them.
#pragma once

#include "python.h"

namespace kvatlas {

PyObject* prefix_keys(PyObject* module, python::Call call);
PyObject* chain_keys(PyObject* module, python::Call call);
PyObject* xxh3_64(PyObject* module, python::Call call);

}  // namespace kvatlas
