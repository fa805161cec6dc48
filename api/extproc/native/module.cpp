// kvatlas.api.extproc._native: makes passages for sessions. _native.pyi describes its interface.

#include <memory>

#include "python.h"
#include "response_passage.h"

namespace {

using namespace kvatlas;
using namespace kvatlas::python;

bool as_bool(PyObject* object) {
    const int answer = PyObject_IsTrue(object);
    if (answer < 0) throw Raised();
    return answer != 0;
}

void destroy(PyObject* capsule) {
    delete static_cast<http2::Passage*>(PyCapsule_GetPointer(capsule, http2::PASSAGE_CAPSULE));
}

PyObject* response_passage(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"gives_back", "has_begun", "reads", "is_skipping", "held"});
        const size_t reads = as_count(args[2], 0, "reads");
        if (reads > 2) raise(PyExc_ValueError, "reads must be 0, 1 or 2");
        const Buffer held(args[4], 1, "B", "held");
        extproc::UsageScan scan(static_cast<extproc::Reads>(reads), as_bool(args[3]),
                                {static_cast<const char*>(held.data()), held.n_bytes()});
        std::unique_ptr<http2::Passage> passage =
            std::make_unique<extproc::ResponsePassage>(as_bool(args[0]), as_bool(args[1]), std::move(scan));
        Reference capsule(PyCapsule_New(passage.get(), http2::PASSAGE_CAPSULE, destroy));
        passage.release();
        return capsule.release();
    }, nullptr);
}

PyMethodDef methods[] = {
    method<response_passage>("response_passage"),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.api.extproc._native", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
