// The part of the module that reuse_module.cpp adds.
#pragma once

#include "python.h"

namespace kvatlas::python {

// Adds ReuseDistances to the module.
void add_reuse_type(PyObject* module);

}  // namespace kvatlas::python
