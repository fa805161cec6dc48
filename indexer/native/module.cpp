// kvatlas.indexer._native: layouts and the type Index. _native.pyi is its interface.

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "figure_matrix.h"
#include "index.h"
#include "key_functions.h"
#include "ledger_module.h"
#include "packed_layout.h"
#include "python.h"
#include "reuse_module.h"

namespace {

using namespace kvatlas;
using namespace kvatlas::python;

KeySpan span_of(const Buffer& keys) { return {keys.data(), keys.n_bytes() / sizeof(uint64_t)}; }

// -- layouts ------------------------------------------------------------------------------------------------------

Reference item(PyObject* sequence, Py_ssize_t i) { return Reference(PySequence_GetItem(sequence, i)); }

PyObject* new_layouts(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        expect_arguments(PyTuple_Size(args) + (named == nullptr ? 0 : 3 * PyDict_Size(named)), 2);  // none has a name
        auto layouts = std::make_unique<Layouts>();
        const Buffer places(PyTuple_GetItem(args, 1), 8, "QL", "places");
        PackedReader next_place(span_of(places));
        for_each(PyTuple_GetItem(args, 0), [&](PyObject* packed) {
            const Buffer numbers(packed, 8, "QL", "packed layouts");
            add_layout(*layouts, PackedReader(span_of(numbers)), next_place);
        });
        if (!next_place.is_at_end()) raise(PyExc_ValueError, "there are more places than layouts");
        return wrap(type, layouts.release());
    }, nullptr);
}

PyType_Slot layouts_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_layouts)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Layouts>)},
    {Py_tp_doc, const_cast<char*>("Layouts of several ranks, compiled for Index.match_into.")},
    {0, nullptr},
};
PyType_Spec layouts_spec = {"kvatlas.indexer._native.Layouts", sizeof(Object<Layouts>), 0, Py_TPFLAGS_DEFAULT, layouts_slots};

// -- index --------------------------------------------------------------------------------------------------------

// Runs an operation of the index without the GIL; raises KeyError with the number of a holder that is not open.
template <class Operation>
auto run(PyObject* holder, Operation operation) {
    try {
        const WithoutGil released;
        return operation();
    } catch (const UnknownHolder&) {
    }
    PyErr_SetObject(PyExc_KeyError, holder);
    throw Raised();
}

// Impossible holder numbers are unknown, not malformed: the reference raises KeyError too.
HolderId holder_of(PyObject* object) {
    const auto value = as_word(object);
    if (!value || *value > 0xffffffff) {
        PyErr_SetObject(PyExc_KeyError, object);
        throw Raised();
    }
    return static_cast<HolderId>(*value);
}

PyObject* new_index(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        expect_arguments(PyTuple_Size(args) + (named == nullptr ? 0 : PyDict_Size(named)), 0);
        return wrap(type, new Index());
    }, nullptr);
}

PyObject* open_holder(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        return number(run(Py_None, [&] { return value_of<Index>(self).open(); }));
    }, nullptr);
}

using Forget = void (Index::*)(HolderId);
template <Forget operation>
PyObject* forget(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"holder"});
        const HolderId holder = holder_of(argument);
        run(argument, [&] { (value_of<Index>(self).*operation)(holder); });
        Py_RETURN_NONE;
    }, nullptr);
}

using Change = size_t (Index::*)(HolderId, KeySpan);
template <Change operation>
PyObject* change(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"holder", "keys"});
        const HolderId holder = holder_of(args[0]);
        const Buffer keys = keys_buffer(args[1]);
        return number(run(args[0], [&] { return (value_of<Index>(self).*operation)(holder, span_of(keys)); }));
    }, nullptr);
}

PyObject* touch(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"holder", "keys"});
        const HolderId holder = holder_of(args[0]);
        const Buffer keys = keys_buffer(args[1]);
        run(args[0], [&] { value_of<Index>(self).touch(holder, span_of(keys)); });
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* set_capacity(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"holder", "n_blocks"});
        const HolderId holder = holder_of(args[0]);
        std::optional<size_t> n_blocks;
        if (args[1] != Py_None) n_blocks = as_count(args[1], 0, "n_blocks");
        return number(run(args[0], [&] { return value_of<Index>(self).set_capacity(holder, n_blocks); }));
    }, nullptr);
}

PyObject* has(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"holder", "key"});
        const HolderId holder = holder_of(args[0]);
        const auto key = as_word(args[1]);
        const bool is_held = run(args[0], [&] { return value_of<Index>(self).has(holder, key.value_or(0)); });
        return PyBool_FromLong(key && is_held);
    }, nullptr);
}

PyObject* size(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"holder"});
        const HolderId holder = holder_of(argument);
        return number(run(argument, [&] { return value_of<Index>(self).size(holder); }));
    }, nullptr);
}

uint32_t as_position(PyObject* object) {
    const size_t value = as_count(object, 0, "position");
    if (value > 0xffffffff) raise(PyExc_ValueError, "position is beyond every row");
    return static_cast<uint32_t>(value);
}

PyObject* run_rows(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"keys"});
        const Buffer keys = keys_buffer(argument);
        const Presence found = run(Py_None, [&] { return value_of<Index>(self).presence(span_of(keys)); });
        Reference rows(PyList_New(static_cast<Py_ssize_t>(found.n_runs())));
        for (size_t i = 0; i < found.n_runs(); ++i) {
            Reference mask(integer_of(found.mask(i)));
            Reference row(Py_BuildValue("(nO)", static_cast<Py_ssize_t>(found.ends[i]), mask.get()));
            PyList_SetItem(rows.get(), static_cast<Py_ssize_t>(i), row.release());
        }
        return rows.release();
    }, nullptr);
}

// No type derives from Layouts, so its destructor identifies it.
const Layouts& layouts_of(PyObject* object) {
    if (PyType_GetSlot(Py_TYPE(object), Py_tp_dealloc) != reinterpret_cast<void*>(deallocate<Layouts>))
        raise(PyExc_TypeError, "layouts must be Layouts");
    return value_of<Layouts>(object);
}

// Returns a tuple of `n` figures of a column, from line `first` on.
PyObject* figures_of(const FigureMatrix& matrix, size_t row, size_t first, size_t n) {
    Reference tuple(PyTuple_New(static_cast<Py_ssize_t>(n)));
    for (size_t i = 0; i < n; ++i) {
        PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), Reference(PyLong_FromLong(matrix.at(first + i, row))).release());
    }
    return tuple.release();
}

PyObject* held_columns(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"figures"});
        const FigureMatrix matrix(argument);
        const size_t n_tiers = matrix.n_tiers();
        Reference found(PyList_New(0));
        for (size_t row = 0; row < matrix.n_rows(); ++row) {
            bool is_held = false;
            for (size_t tier = 0; tier < n_tiers; ++tier) is_held |= matrix.at(tier, row) != 0;
            if (!is_held) continue;
            const Reference tiers(figures_of(matrix, row, 0, n_tiers)), runs(figures_of(matrix, row, n_tiers, n_tiers));
            const auto beside = [&](size_t line) { return static_cast<int>(matrix.at(2 * n_tiers + line, row)); };
            const Reference column(Py_BuildValue("(nOOiiiii)", static_cast<Py_ssize_t>(row), tiers.get(), runs.get(), beside(0), beside(1),
                                                 beside(2), beside(3), beside(4)));
            if (PyList_Append(found.get(), column.get()) < 0) throw Raised();
        }
        return found.release();
    }, nullptr);
}

PyObject* predict_columns(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"figures", "wanted", "block_size", "n_tokens"});
        const FigureMatrix matrix(args[0]);
        const size_t block_size = as_count(args[2], 1, "block_size"), n_tokens = as_count(args[3], 0, "n_tokens");
        Figures figures = matrix.figures();
        for_each(args[1], [&](PyObject* pair) {
            const size_t row = as_count(item(pair, 0).get(), 0, "row"), n_blocks = as_count(item(pair, 1).get(), 0, "n_blocks");
            if (row >= matrix.n_rows()) raise(PyExc_IndexError, "no such row");
            if (n_blocks > 0x7fffffff) raise(PyExc_ValueError, "n_blocks must be below 2**31");
            figures.predict(row, n_blocks, n_tokens, block_size);
        });
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* row_of(const Interleaved& match) {
    Reference runs(PyTuple_New(static_cast<Py_ssize_t>(match.runs.size())));
    for (size_t i = 0; i < match.runs.size(); ++i) {
        const TierRun& run = match.runs[i];
        Reference pair(Py_BuildValue("(nn)", static_cast<Py_ssize_t>(run.tier), static_cast<Py_ssize_t>(run.n_blocks)));
        PyTuple_SetItem(runs.get(), static_cast<Py_ssize_t>(i), pair.release());
    }
    return Py_BuildValue("(nnO)", static_cast<Py_ssize_t>(match.row), static_cast<Py_ssize_t>(match.number), runs.get());
}

PyObject* match_into(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"keys", "layouts", "n_tokens", "block_size", "figures"});
        const Buffer keys = keys_buffer(args[0]);
        const Layouts& layouts = layouts_of(args[1]);
        const size_t n_tokens = as_count(args[2], 0, "n_tokens"), block_size = as_count(args[3], 1, "block_size");
        const FigureMatrix matrix(args[4]);
        if (!layouts.fit(matrix.n_tiers(), matrix.n_rows())) raise(PyExc_ValueError, "figures have too few tiers or rows for the layouts");
        Figures figures = matrix.figures();
        run(Py_None, [&] {
            const Presence presence = value_of<Index>(self).presence(span_of(keys));
            Matcher matcher(presence, n_tokens, block_size);
            figures.fill(layouts, matcher, span_of(keys).size(), block_size);
        });
        if (figures.interleaved.empty() && figures.shared.empty()) Py_RETURN_NONE;
        Reference interleaved(PyList_New(static_cast<Py_ssize_t>(figures.interleaved.size())));
        for (size_t i = 0; i < figures.interleaved.size(); ++i) {
            PyList_SetItem(interleaved.get(), static_cast<Py_ssize_t>(i), Reference(row_of(figures.interleaved[i])).release());
        }
        Reference shared(bytes_of(figures.shared));
        return PyTuple_Pack(2, interleaved.get(), shared.get());
    }, nullptr);
}

PyObject* page(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"holder", "n_rows", "cursor"});
        const HolderId holder = holder_of(args[0]);
        const size_t n_rows = as_count(args[1], 1, "n_rows");
        Page page;
        if (args[2] != Py_None) {
            page.version = as_count(item(args[2], 0).get(), 0, "version");
            page.after = as_position(item(args[2], 1).get());
        }
        run(args[0], [&] { value_of<Index>(self).read(holder, n_rows, page); });
        Reference keys(bytes_of(page.rows)), copies(bytes_of(page.copies));
        if (page.rows.empty()) return Py_BuildValue("(OOO)", keys.get(), copies.get(), Py_None);
        return Py_BuildValue("(OO(KI))", keys.get(), copies.get(), static_cast<unsigned long long>(page.version), *page.after);
    }, nullptr);
}

PyObject* contents_rows(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"holder"});
        const HolderId holder = holder_of(argument);
        const Contents found = run(argument, [&] { return value_of<Index>(self).contents(holder); });
        Reference keys(bytes_of(found.keys)), copies(bytes_of(found.copies));
        return Py_BuildValue("(OO)", keys.get(), copies.get());
    }, nullptr);
}

PyObject* sweep(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"n_keys"});
        const size_t n_keys = as_count(argument, 0, "n_keys");
        return number(run(Py_None, [&] { return value_of<Index>(self).sweep(n_keys); }));
    }, nullptr);
}

PyObject* statistics(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const Statistics found = run(Py_None, [&] { return value_of<Index>(self).statistics(); });
        return Py_BuildValue("(nnnnn)", static_cast<Py_ssize_t>(found.n_keys), static_cast<Py_ssize_t>(found.n_residencies),
                             static_cast<Py_ssize_t>(found.n_sets), static_cast<Py_ssize_t>(found.n_unswept),
                             static_cast<Py_ssize_t>(found.n_bytes));
    }, nullptr);
}

PyMethodDef index_methods[] = {
    {"open", open_holder, METH_NOARGS, nullptr},
    method<forget<&Index::close>>("close"),
    method<change<&Index::store>>("store"),
    method<change<&Index::keep>>("keep"),
    method<change<&Index::learn>>("learn"),
    method<change<&Index::remove>>("remove"),
    method<forget<&Index::clear>>("clear"),
    method<touch>("touch"),
    method<set_capacity>("set_capacity"),
    method<has>("has"),
    method<size>("size"),
    method<run_rows>("run_rows"),
    method<match_into>("match_into"),
    method<page>("page"),
    method<contents_rows>("contents_rows"),
    method<sweep>("sweep"),
    {"statistics", statistics, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot index_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_index)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Index>)},
    {Py_tp_methods, index_methods},
    {Py_tp_doc, const_cast<char*>("Block index; used by kvatlas.indexer.native_index.NativeIndex.")},
    {0, nullptr},
};
PyType_Spec index_spec = {"kvatlas.indexer._native.Index", sizeof(Object<Index>), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, index_slots};

// -- module -------------------------------------------------------------------------------------------------------

int add_types(PyObject* module) {
    return guarded([&] {
        if (PyArray_ImportNumPyAPI() < 0) throw Raised();
        Py_DECREF(add_type(module, "Index", &index_spec));
        Py_DECREF(add_type(module, "Layouts", &layouts_spec));
        add_ledger_type(module);
        add_reuse_type(module);
        return 0;
    }, -1);
}

PyMethodDef functions[] = {
    method<chain_keys>("chain_keys"),
    method<prefix_keys>("prefix_keys"),
    method<xxh3_64>("xxh3_64"),
    method<held_columns>("held_columns"),
    method<predict_columns>("predict_columns"),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_types)},
    {0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.indexer._native", nullptr, 0, functions, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
