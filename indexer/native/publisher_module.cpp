// kvatlas.indexer._native: the Python side of batches and books. _native.pyi describes what it offers.

#include <memory>
#include <string>

#include "books.h"
#include "publisher_module.h"

namespace kvatlas::python {

namespace {

// -- batches ------------------------------------------------------------------------------------------------------

// A batch and the payload that its texts point into.
struct OwnedBatch {
    OwnedBatch(PyObject* bytes, Batch decoded) : payload(Py_NewRef(bytes)), batch(std::move(decoded)) {}
    Reference payload;
    Batch batch;
};

PyTypeObject* batch_type = nullptr;
PyTypeObject* index_type = nullptr;

template <class T>
T& checked(PyObject* object, PyTypeObject* type, const char* what) {
    if (PyObject_TypeCheck(object, type) == 0) raise(PyExc_TypeError, what);
    return value_of<T>(object);
}

PyObject* positions_of_others(const Batch& batch) {
    Reference positions(PyList_New(0));
    for (size_t i = 0; i < batch.events().size(); ++i) {
        if (batch.events()[i].kind != EventKind::kOther) continue;
        if (PyList_Append(positions.get(), Reference(number(i)).get()) < 0) throw Raised();
    }
    return positions.release();
}

PyObject* decode_batch(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [payload] = call.arguments({"payload"});
        char* data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(payload, &data, &size) < 0) throw Raised();
        std::optional<Batch> batch;
        {
            const WithoutGil released;
            batch = Batch::decode({data, static_cast<size_t>(size)});
        }
        if (!batch) Py_RETURN_NONE;
        const double timestamp = batch->timestamp();
        Reference rank(batch->rank() ? number(*batch->rank()) : Py_NewRef(Py_None));
        Reference others(positions_of_others(*batch));
        Reference wrapped(wrap(batch_type, new OwnedBatch(payload, std::move(*batch))));
        return Py_BuildValue("(OdOO)", wrapped.get(), timestamp, rank.get(), others.get());
    }, nullptr);
}

PyObject* event_bytes(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"position"});
        const auto& events = value_of<OwnedBatch>(self).batch.events();
        const size_t position = as_count(argument, 0, "position");
        if (position >= events.size()) raise(PyExc_IndexError, "the batch has no such event");
        const auto bytes = events[position].bytes;
        return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    }, nullptr);
}

PyObject* batch_size(PyObject* self, PyObject*) { return number(value_of<OwnedBatch>(self).batch.events().size()); }

// One text of all events of a kind, each once, as it was sent.
template <EventKind kind, std::string_view Event::*text>
PyObject* texts(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        Reference found(PyList_New(0));
        std::vector<std::string_view> seen;
        for (const Event& event : value_of<OwnedBatch>(self).batch.events()) {
            const std::string_view sent = event.*text;
            if (event.kind != kind || std::ranges::find(seen, sent) != seen.end()) continue;
            seen.push_back(sent);
            Reference shown(PyUnicode_FromStringAndSize(sent.data(), static_cast<Py_ssize_t>(sent.size())));
            if (PyList_Append(found.get(), shown.get()) < 0) throw Raised();
        }
        return found.release();
    }, nullptr);
}

PyMethodDef batch_methods[] = {
    method<event_bytes>("event_bytes"),
    {"adapters", texts<EventKind::kStored, &Event::lora>, METH_NOARGS, nullptr},
    {"removed_media", texts<EventKind::kRemoved, &Event::medium>, METH_NOARGS, nullptr},
    {"size", batch_size, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot batch_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<OwnedBatch>)},
    {Py_tp_methods, batch_methods},
    {Py_tp_doc, const_cast<char*>("A batch of engine events; made by decode_batch.")},
    {0, nullptr},
};
PyType_Spec batch_spec = {"kvatlas.indexer._native.Batch", sizeof(Object<OwnedBatch>), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, batch_slots};

// -- books --------------------------------------------------------------------------------------------------------

// Books, and the index that they write to.
struct OwnedBooks {
    explicit OwnedBooks(uint64_t seed) : books(seed) {}
    OwnedBooks(const OwnedBooks&) = delete;
    OwnedBooks& operator=(const OwnedBooks&) = delete;
    ~OwnedBooks() { Py_XDECREF(index); }
    Books books;
    PyObject* index = nullptr;
};

Books& books_of(PyObject* self) { return value_of<OwnedBooks>(self).books; }

PyObject* new_books(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        if (named != nullptr && PyDict_Size(named) != 0) raise(PyExc_TypeError, "Books takes no named arguments");
        expect_arguments(PyTuple_Size(args), 1);
        return wrap(type, new OwnedBooks(as_count(PyTuple_GetItem(args, 0), 0, "seed")));
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
        const auto row = books_of(self).get(hash_of(hash));
        if (!row) Py_RETURN_NONE;
        return row_of(*row);
    }, nullptr);
}

PyObject* put_hash(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"engine_hash", "key", "depth", "parent"});
        const uint32_t depth = as_small(args[2], "depth");
        if ((depth != 0) != (args[3] != Py_None)) raise(PyExc_ValueError, "a block has a parent unless its depth is 0");
        books_of(self).put({hash_of(args[0]), as_count(args[1], 0, "key"), depth == 0 ? 0 : hash_of(args[3]), depth});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* pop_oldest(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        const auto row = books_of(self).pop_oldest();
        if (!row) Py_RETURN_NONE;
        const Reference known(row_of(*row));
        return Py_BuildValue("(KO)", static_cast<unsigned long long>(row->key), known.get());
    }, nullptr);
}

PyObject* n_hashes(PyObject* self, PyObject*) {
    return guarded([&] { return number(books_of(self).n_hashes()); }, nullptr);
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
        const auto rows = books_of(self).rows();
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
        Books& books = books_of(self);
        for (size_t i = 0; i < n_rows; ++i)
            books.put({item_of<uint64_t>(hashes, i), item_of<uint64_t>(keys, i), item_of<uint64_t>(parents, i), item_of<uint32_t>(depths, i)});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* expect_hash(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [hash] = call.arguments({"engine_hash"});
        books_of(self).expect(hash_of(hash));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* expect_only(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"hashes"});
        const Buffer hashes(argument, 8, "QL", "hashes");
        books_of(self).expect_only({hashes.data(), hashes.n_bytes() / 8});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* n_expected(PyObject* self, PyObject*) {
    return guarded([&] { return number(books_of(self).n_expected()); }, nullptr);
}

using Forget = void (Books::*)();
template <Forget operation>
PyObject* forget(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        (books_of(self).*operation)();
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
        auto& owned = value_of<OwnedBooks>(self);
        owned.books.bind(index, block_size, std::move(own), std::move(shared));
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
        const auto args = call.arguments({"medium", "group", "cache_kind", "window", "holder", "is_fastest", "is_shared",
                                          "tells_extras", "takes_removals", "chunk", "is_chunk_given", "copies"});
        Route route;
        route.medium = text_of(args[0]);
        route.group = as_small(args[1], "group");
        if (args[2] != Py_None) route.cache_kind = text_of(args[2]);
        route.window = as_small(args[3], "window");
        route.holder = as_small(args[4], "holder");
        route.is_fastest = flag_of(args[5]);
        route.is_shared = flag_of(args[6]);
        route.tells_extras = flag_of(args[7]);
        route.takes_removals = flag_of(args[8]);
        route.chunk = as_small(args[9], "chunk");
        route.is_chunk_given = flag_of(args[10]);
        route.copies = holder_list(args[11]);
        books_of(self).add_route(std::move(route));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* apply(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"batch", "begin"});
        const Batch& batch = checked<OwnedBatch>(args[0], batch_type, "batch must be a Batch").batch;
        const size_t begin = as_count(args[1], 0, "begin");
        Applied done;
        {
            const WithoutGil released;
            done = books_of(self).apply(batch, begin);
        }
        return Py_BuildValue("(nnn)", static_cast<Py_ssize_t>(done.position), static_cast<Py_ssize_t>(done.n_evicted),
                             static_cast<Py_ssize_t>(done.n_unknown));
    }, nullptr);
}

PyMethodDef books_methods[] = {
    method<get_hash>("get"),
    method<put_hash>("put"),
    {"pop_oldest", pop_oldest, METH_NOARGS, nullptr},
    {"n_hashes", n_hashes, METH_NOARGS, nullptr},
    {"columns", columns, METH_NOARGS, nullptr},
    method<put_columns>("put_columns"),
    method<expect_hash>("expect"),
    method<expect_only>("expect_only"),
    {"n_expected", n_expected, METH_NOARGS, nullptr},
    {"clear", forget<&Books::clear>, METH_NOARGS, nullptr},
    method<bind_index>("bind"),
    method<add_route>("add_route"),
    {"forget_routes", forget<&Books::forget_routes>, METH_NOARGS, nullptr},
    method<apply>("apply"),
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot books_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_books)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<OwnedBooks>)},
    {Py_tp_methods, books_methods},
    {Py_tp_doc, const_cast<char*>("One publisher's books; kvatlas.indexer.native_ledger keeps them.")},
    {0, nullptr},
};
PyType_Spec books_spec = {"kvatlas.indexer._native.Books", sizeof(Object<OwnedBooks>), 0, Py_TPFLAGS_DEFAULT, books_slots};

PyMethodDef functions[] = {
    method<decode_batch>("decode_batch"),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_publisher_types(PyObject* module) {
    index_type = reinterpret_cast<PyTypeObject*>(Reference(PyObject_GetAttrString(module, "Index")).release());
    batch_type = reinterpret_cast<PyTypeObject*>(add_type(module, "Batch", &batch_spec));
    add_type(module, "Books", &books_spec);
    if (PyModule_AddFunctions(module, functions) < 0) throw Raised();
}

}  // namespace kvatlas::python
