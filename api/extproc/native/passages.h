// Passages as Python objects.
#pragma once

#include "python.h"

namespace kvatlas::extproc {

// Returns a capsule for `Session.pass_messages`. See _native.pyi.
PyObject* response_passage(PyObject* module, python::Call call);

}  // namespace kvatlas::extproc
