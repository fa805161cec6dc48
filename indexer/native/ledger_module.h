// The part of the module that ledger_module.cpp adds.
#pragma once

#include "python.h"

namespace kvatlas::python {

// Adds Ledger to the module, which has Index already.
void add_ledger_type(PyObject* module);

}  // namespace kvatlas::python
