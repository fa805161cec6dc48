// Helpers of the module `_native`.
#pragma once

#include <memory>

#include "passage.h"
#include "python.h"

namespace kvatlas::http2 {

void add_server_type(PyObject* module);

// Takes the passage out of its capsule, which can be used once.
std::unique_ptr<Passage> taken_passage(PyObject* capsule);

}  // namespace kvatlas::http2
