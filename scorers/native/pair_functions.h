// Functions of the module for the costs of pairs; _native.pyi has their interfaces.
#pragma once

#include "python.h"

namespace kvatlas::scorers {

PyObject* pair_times(PyObject* module, python::Call call);
PyObject* placement_sums(PyObject* module, python::Call call);

}  // namespace kvatlas::scorers
