// Functions of the module for the cost model; _native.pyi has their interfaces.
#pragma once

#include "python.h"

namespace kvatlas::scorers {

PyObject* cost_quantities(PyObject* module, python::Call call);
PyObject* cost_totals(PyObject* module, python::Call call);
PyObject* refine_waits(PyObject* module, python::Call call);
PyObject* same_everywhere(PyObject* module, PyObject* uncached);
PyObject* displaced_tokens(PyObject* module, python::Call call);
PyObject* fleet_costs(PyObject* module, python::Call call);
PyObject* add_observation(PyObject* module, python::Call call);
PyObject* solved(PyObject* module, python::Call call);

}  // namespace kvatlas::scorers
