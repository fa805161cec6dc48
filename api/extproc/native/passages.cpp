#include "passages.h"

#include <memory>

#include "response_passage.h"

namespace kvatlas::extproc {

using namespace kvatlas::python;

namespace {

bool as_bool(PyObject* object) {
    const int answer = PyObject_IsTrue(object);
    if (answer < 0) throw Raised();
    return answer != 0;
}

void destroy(PyObject* capsule) {
    delete static_cast<http2::Passage*>(PyCapsule_GetPointer(capsule, http2::PASSAGE_CAPSULE));
}

}  // namespace

PyObject* response_passage(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"gives_back", "has_begun", "leaves_end", "reads", "is_skipping", "held"});
        const size_t reads = as_count(args[3], 0, "reads");
        if (reads > 2) raise(PyExc_ValueError, "reads must be 0, 1 or 2");
        const Buffer held(args[5], 1, "B", "held");
        UsageScan scan(static_cast<Reads>(reads), as_bool(args[4]), {static_cast<const char*>(held.data()), held.n_bytes()});
        std::unique_ptr<http2::Passage> passage =
            std::make_unique<ResponsePassage>(as_bool(args[0]), as_bool(args[1]), as_bool(args[2]), std::move(scan));
        Reference capsule(PyCapsule_New(passage.get(), http2::PASSAGE_CAPSULE, destroy));
        passage.release();
        return capsule.release();
    }, nullptr);
}

}  // namespace kvatlas::extproc
