// The part of the module that publisher_module.cpp adds.
#pragma once

#include "python.h"

namespace kvatlas::python {

// Adds decode_batch, Batch and Books to the module, which has Index already.
void add_publisher_types(PyObject* module);

}  // namespace kvatlas::python
