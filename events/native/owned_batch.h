// The content of a Python object of type `kvatlas.events._native.Batch`. The index reads it in place: both extension
// modules are built from this header, and the index checks the type.
#pragma once

#include <utility>

#include "batch.h"
#include "python.h"

namespace kvatlas::python {

// The texts of the batch point into the payload.
struct OwnedBatch {
    OwnedBatch(PyObject* bytes, Batch decoded) : payload(Py_NewRef(bytes)), batch(std::move(decoded)) {}
    Reference payload;
    Batch batch;
};

}  // namespace kvatlas::python
