// kvatlas.indexer._native: the type ReuseDistances. _native.pyi is its interface.

#include "reuse_distance.h"
#include "reuse_module.h"

namespace kvatlas::python {

namespace {

double as_double(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
    return value;
}

std::optional<double> as_optional(PyObject* object) {
    return object == Py_None ? std::nullopt : std::optional(as_double(object));
}

std::span<const uint64_t> words_of(const Buffer& words) {
    return {static_cast<const uint64_t*>(words.data()), words.n_bytes() / sizeof(uint64_t)};
}

PyObject* new_distances(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        if (named != nullptr && PyDict_Size(named) != 0) raise(PyExc_TypeError, "ReuseDistances takes no named arguments");
        expect_arguments(PyTuple_Size(args), 3);
        const size_t max_keys = as_count(PyTuple_GetItem(args, 0), 1, "max_keys");
        const size_t max_halvings = as_count(PyTuple_GetItem(args, 1), 0, "max_halvings");
        if (max_keys > size_t{1} << 30) raise(PyExc_ValueError, "max_keys must be at most 2**30");
        if (max_halvings > 63) raise(PyExc_ValueError, "max_halvings must be at most 63");
        const auto half_life_s = as_optional(PyTuple_GetItem(args, 2));
        return wrap(type, new ReuseDistances(max_keys, static_cast<unsigned>(max_halvings), half_life_s));
    }, nullptr);
}

// The GIL stays: a prompt takes a few microseconds.
PyObject* use(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"keys", "stride", "n_blocks", "now"});
        const Buffer keys = keys_buffer(args[0]);
        const size_t stride = as_count(args[1], 1, "stride");
        value_of<ReuseDistances>(self).use(words_of(keys), stride, as_optional(args[2]), as_double(args[3]));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* hits(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"capacities", "now"});
        const Buffer capacities(args[0], 8, "QL", "capacities");
        const std::vector<double> found = value_of<ReuseDistances>(self).hits(words_of(capacities), as_double(args[1]));
        Reference list(PyList_New(static_cast<Py_ssize_t>(found.size())));
        for (size_t i = 0; i < found.size(); ++i) {
            PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), Reference(PyFloat_FromDouble(found[i])).release());
        }
        return list.release();
    }, nullptr);
}

PyObject* n_blocks(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [now] = call.arguments({"now"});
        return PyFloat_FromDouble(value_of<ReuseDistances>(self).n_blocks(as_double(now)));
    }, nullptr);
}

PyObject* halvings(PyObject* self, PyObject*) { return number(value_of<ReuseDistances>(self).halvings()); }

PyObject* n_sampled(PyObject* self, PyObject*) { return number(value_of<ReuseDistances>(self).n_keys()); }

PyMethodDef reuse_methods[] = {
    method<use>("use"),
    method<hits>("hits_of"),
    method<n_blocks>("n_blocks_at"),
    {"halvings", halvings, METH_NOARGS, nullptr},
    {"n_sampled", n_sampled, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot reuse_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_distances)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<ReuseDistances>)},
    {Py_tp_methods, reuse_methods},
    {Py_tp_doc, const_cast<char*>("Reuse distances; used by kvatlas.indexer.native_reuse.NativeReuseDistances.")},
    {0, nullptr},
};
PyType_Spec reuse_spec = {"kvatlas.indexer._native.ReuseDistances", sizeof(Object<ReuseDistances>), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, reuse_slots};

}  // namespace

void add_reuse_type(PyObject* module) { Py_DECREF(add_type(module, "ReuseDistances", &reuse_spec)); }

}  // namespace kvatlas::python
