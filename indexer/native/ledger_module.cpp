// kvatlas.indexer._native: the type Ledger. _native.pyi is its interface.

#include <memory>
#include <string>

#include "ledger.h"
#include "ledger_module.h"
#include "owned_batch.h"

namespace kvatlas::python {

namespace {

PyTypeObject* batch_type = nullptr;
PyTypeObject* inbox_type = nullptr;
PyTypeObject* index_type = nullptr;

template <class T>
T& checked(PyObject* object, PyTypeObject* type, const char* what) {
    if (PyObject_TypeCheck(object, type) == 0) raise(PyExc_TypeError, what);
    return value_of<T>(object);
}

// A ledger, and the index that it writes to.
struct OwnedLedger {
    explicit OwnedLedger(uint64_t seed) : ledger(seed) {}
    OwnedLedger(const OwnedLedger&) = delete;
    OwnedLedger& operator=(const OwnedLedger&) = delete;
    ~OwnedLedger() { Py_XDECREF(index); }
    Ledger ledger;
    PyObject* index = nullptr;
};

Ledger& ledger_of(PyObject* self) { return value_of<OwnedLedger>(self).ledger; }

PyObject* new_ledger(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        if (named != nullptr && PyDict_Size(named) != 0) raise(PyExc_TypeError, "Ledger takes no named arguments");
        expect_arguments(PyTuple_Size(args), 1);
        return wrap(type, new OwnedLedger(as_count(PyTuple_GetItem(args, 0), 0, "seed")));
    }, nullptr);
}

uint64_t hash_of(PyObject* object) { return as_count(object, 0, "hash"); }

uint32_t as_small(PyObject* object, const char* what) {
    const size_t value = as_count(object, 0, what);
    if (value > 0xffffffff) {
        PyErr_Format(PyExc_ValueError, "%s must be below 2**32, not %S", what, object);
        throw Raised();
    }
    return static_cast<uint32_t>(value);
}

PyObject* row_of(const HashRow& row) {
    const auto parent = static_cast<unsigned long long>(row.parent), key = static_cast<unsigned long long>(row.block_key);
    if (row.depth == 0) return Py_BuildValue("(KIO)", key, row.depth, Py_None);
    return Py_BuildValue("(KIK)", key, row.depth, parent);
}

PyObject* get_hash(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [hash] = call.arguments({"engine_hash"});
        const auto row = ledger_of(self).get(hash_of(hash));
        if (!row) Py_RETURN_NONE;
        return row_of(*row);
    }, nullptr);
}

PyObject* put_hash(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"engine_hash", "key", "depth", "parent"});
        const uint32_t depth = as_small(args[2], "depth");
        if ((depth != 0) != (args[3] != Py_None)) raise(PyExc_ValueError, "a block has a parent unless its depth is 0");
        ledger_of(self).put({hash_of(args[0]), as_count(args[1], 0, "key"), depth == 0 ? 0 : hash_of(args[3]), depth});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* pop_oldest(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const auto row = ledger_of(self).pop_oldest();
        if (!row) Py_RETURN_NONE;
        const Reference known(row_of(*row));
        return Py_BuildValue("(KO)", static_cast<unsigned long long>(row->key), known.get());
    }, nullptr);
}

PyObject* n_hashes(PyObject* self, PyObject*) {
    return guarded([&] { return number(ledger_of(self).n_hashes()); }, nullptr);
}

PyObject* chain(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"engine_hash", "n_blocks"});
        return bytes_of(ledger_of(self).chain(hash_of(args[0]), as_count(args[1], 0, "n_blocks")));
    }, nullptr);
}

template <class Item, class Get>
PyObject* column_of(const std::vector<HashRow>& rows, Get get) {
    std::vector<Item> column;
    column.reserve(rows.size());
    for (const HashRow& row : rows) column.push_back(get(row));
    return bytes_of(column);
}

PyObject* columns(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const auto rows = ledger_of(self).rows();
        const Reference hashes(column_of<uint64_t>(rows, [](const HashRow& row) { return row.key; }));
        const Reference keys(column_of<uint64_t>(rows, [](const HashRow& row) { return row.block_key; }));
        const Reference depths(column_of<uint32_t>(rows, [](const HashRow& row) { return row.depth; }));
        const Reference parents(column_of<uint64_t>(rows, [](const HashRow& row) { return row.parent; }));
        return Py_BuildValue("(OOOO)", hashes.get(), keys.get(), depths.get(), parents.get());
    }, nullptr);
}

template <class Item>
Item item_of(const Buffer& buffer, size_t i) {
    Item value;
    std::memcpy(&value, static_cast<const char*>(buffer.data()) + i * sizeof value, sizeof value);
    return value;
}

PyObject* put_columns(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"hashes", "keys", "depths", "parents"});
        const Buffer hashes(args[0], 8, "QL", "hashes"), keys(args[1], 8, "QL", "keys");
        const Buffer depths(args[2], 4, "IL", "depths"), parents(args[3], 8, "QL", "parents");
        const size_t n_rows = hashes.n_bytes() / 8;
        if (keys.n_bytes() != n_rows * 8 || depths.n_bytes() != n_rows * 4 || parents.n_bytes() != n_rows * 8)
            raise(PyExc_ValueError, "columns must have the same number of rows");
        Ledger& ledger = ledger_of(self);
        for (size_t i = 0; i < n_rows; ++i)
            ledger.put({item_of<uint64_t>(hashes, i), item_of<uint64_t>(keys, i), item_of<uint64_t>(parents, i), item_of<uint32_t>(depths, i)});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* expect_hash(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [hash] = call.arguments({"engine_hash"});
        ledger_of(self).expect(hash_of(hash));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* expect_only(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"hashes"});
        const Buffer hashes(argument, 8, "QL", "hashes");
        ledger_of(self).expect_only({hashes.data(), hashes.n_bytes() / 8});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* n_expected(PyObject* self, PyObject*) {
    return guarded([&] { return number(ledger_of(self).n_expected()); }, nullptr);
}

using Forget = void (Ledger::*)();
template <Forget operation>
PyObject* forget(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        (ledger_of(self).*operation)();
        Py_RETURN_NONE;
    }, nullptr);
}

std::vector<HolderId> holder_list(PyObject* sequence) {
    std::vector<HolderId> holders;
    for_each(sequence, [&](PyObject* holder) { holders.push_back(as_small(holder, "holder")); });
    return holders;
}

PyObject* bind_index(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"index", "block_size", "own", "shared"});
        auto& index = checked<Index>(args[0], index_type, "index must be an Index");
        const uint32_t block_size = as_small(args[1], "block_size");
        auto own = holder_list(args[2]), shared = holder_list(args[3]);
        auto& owned = value_of<OwnedLedger>(self);
        owned.ledger.bind(index, block_size, std::move(own), std::move(shared));
        Py_XDECREF(std::exchange(owned.index, Py_NewRef(args[0])));
        Py_RETURN_NONE;
    }, nullptr);
}

std::string text_of(PyObject* object) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(object, &size);
    if (text == nullptr) throw Raised();
    return {text, static_cast<size_t>(size)};
}

bool flag_of(PyObject* object) {
    const int truth = PyObject_IsTrue(object);
    if (truth < 0) throw Raised();
    return truth != 0;
}

PyObject* add_route(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"medium", "group", "cache_kind", "window", "holder", "is_fastest", "is_only_group", "is_shared",
                                          "lookahead", "sends_extras", "takes_removals", "chunk", "is_chunk_given", "copies"});
        Route route;
        route.medium = text_of(args[0]);
        route.group = as_small(args[1], "group");
        if (args[2] != Py_None) route.cache_kind = text_of(args[2]);
        route.window = as_small(args[3], "window");
        route.holder = as_small(args[4], "holder");
        route.is_fastest = flag_of(args[5]);
        route.is_only_group = flag_of(args[6]);
        route.is_shared = flag_of(args[7]);
        route.lookahead = as_small(args[8], "lookahead");
        route.sends_extras = flag_of(args[9]);
        route.takes_removals = flag_of(args[10]);
        route.chunk = as_small(args[11], "chunk");
        route.is_chunk_given = flag_of(args[12]);
        route.copies = holder_list(args[13]);
        ledger_of(self).add_route(std::move(route));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* apply(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"batch", "begin", "n_blocks"});
        const Batch& batch = checked<OwnedBatch>(args[0], batch_type, "batch must be a Batch").batch;
        const size_t begin = as_count(args[1], 0, "begin"), n_blocks = as_count(args[2], 0, "n_blocks");
        Applied done;
        {
            const WithoutGil released;
            done = ledger_of(self).apply(batch, begin, n_blocks);
        }
        return Py_BuildValue("(nnnn)", static_cast<Py_ssize_t>(done.position), static_cast<Py_ssize_t>(done.n_evicted),
                             static_cast<Py_ssize_t>(done.n_unknown), static_cast<Py_ssize_t>(done.n_blocks));
    }, nullptr);
}

PyObject* list_of(const std::vector<std::string>& texts) {
    Reference list(PyList_New(0));
    for (const std::string& text : texts) {
        const Reference item(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
        if (PyList_Append(list.get(), item.get()) < 0) throw Raised();
    }
    return list.release();
}

PyObject* run(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"inbox", "seq", "n_blocks", "tiers"});
        Inbox& inbox = checked<Inbox>(args[0], inbox_type, "inbox must be an Inbox");
        const size_t seq = as_count(args[1], 0, "seq"), n_blocks = as_count(args[2], 0, "n_blocks");
        std::vector<std::vector<HolderId>> tiers;
        for_each(args[3], [&](PyObject* holders) { tiers.push_back(holder_list(holders)); });
        Run done;
        {
            const WithoutGil released;
            done = ledger_of(self).run(inbox, seq, n_blocks, tiers);
        }
        const Reference timestamps(bytes_of(done.timestamps)), media(list_of(done.media)), removals(bytes_of(done.removals));
        const Reference adapters(list_of(done.adapters));
        const auto count = [](size_t n) { return static_cast<Py_ssize_t>(n); };
        return Py_BuildValue("(nn(y#OnOOOnnz))", count(done.n_evicted), count(done.n_unknown), done.topic.data(),
                             count(done.topic.size()), timestamps.get(), count(done.n_events), media.get(), removals.get(),
                             adapters.get(), count(done.n_applied), count(done.n_unknown_amid),
                             done.failure ? done.failure->c_str() : nullptr);
    }, nullptr);
}

PyObject* take_sessions(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const auto starts = ledger_of(self).take_sessions();
        if (starts.empty()) Py_RETURN_NONE;
        Reference list(PyList_New(0));
        for (const auto& [key, session] : starts) {
            const Reference item(Py_BuildValue("(Ks#)", static_cast<unsigned long long>(key), session.data(),
                                               static_cast<Py_ssize_t>(session.size())));
            if (PyList_Append(list.get(), item.get()) < 0) throw Raised();
        }
        return list.release();
    }, nullptr);
}

PyObject* take_recomputed(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const std::string evidence = ledger_of(self).take_recomputed();
        return PyBytes_FromStringAndSize(evidence.data(), static_cast<Py_ssize_t>(evidence.size()));
    }, nullptr);
}

PyMethodDef ledger_methods[] = {
    method<get_hash>("get"),
    method<put_hash>("put"),
    {"pop_oldest", pop_oldest, METH_NOARGS, nullptr},
    {"n_hashes", n_hashes, METH_NOARGS, nullptr},
    method<chain>("chain"),
    {"columns", columns, METH_NOARGS, nullptr},
    method<put_columns>("put_columns"),
    method<expect_hash>("expect"),
    method<expect_only>("expect_only"),
    {"n_expected", n_expected, METH_NOARGS, nullptr},
    {"clear", forget<&Ledger::clear>, METH_NOARGS, nullptr},
    method<bind_index>("bind"),
    method<add_route>("add_route"),
    {"forget_routes", forget<&Ledger::forget_routes>, METH_NOARGS, nullptr},
    method<apply>("apply"),
    method<run>("run"),
    {"take_sessions", take_sessions, METH_NOARGS, nullptr},
    {"take_recomputed", take_recomputed, METH_NOARGS, nullptr},
    {"expect_sessions", forget<&Ledger::expect_sessions>, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot ledger_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_ledger)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<OwnedLedger>)},
    {Py_tp_methods, ledger_methods},
    {Py_tp_doc, const_cast<char*>("The fast part of a ledger; used by kvatlas.indexer.native_ledger.")},
    {0, nullptr},
};
PyType_Spec ledger_spec = {"kvatlas.indexer._native.Ledger", sizeof(Object<OwnedLedger>), 0, Py_TPFLAGS_DEFAULT, ledger_slots};

}  // namespace

void add_ledger_type(PyObject* module) {
    const Reference events(PyImport_ImportModule("kvatlas.events._native"));
    batch_type = reinterpret_cast<PyTypeObject*>(Reference(PyObject_GetAttrString(events.get(), "Batch")).release());
    inbox_type = reinterpret_cast<PyTypeObject*>(Reference(PyObject_GetAttrString(events.get(), "Inbox")).release());
    index_type = reinterpret_cast<PyTypeObject*>(Reference(PyObject_GetAttrString(module, "Index")).release());
    Py_DECREF(add_type(module, "Ledger", &ledger_spec));
}

}  // namespace kvatlas::python
