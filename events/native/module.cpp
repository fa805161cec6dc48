// kvatlas.events._native: decodes payloads to batches, and receives messages. _native.pyi is its interface.

#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "owned_batch.h"
#include "socket_inbox.h"

namespace {

using namespace kvatlas;
using namespace kvatlas::python;

PyTypeObject* batch_type = nullptr;

// -- Batch --------------------------------------------------------------------------------------------------------

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
        const auto n_unknown = static_cast<Py_ssize_t>(batch->n_unknown()), n_bytes = static_cast<Py_ssize_t>(batch->n_bytes());
        Reference rank(batch->rank() ? number(*batch->rank()) : Py_NewRef(Py_None));
        Reference others(positions_of_others(*batch));
        Reference wrapped(wrap(batch_type, new OwnedBatch(payload, std::move(*batch))));
        return Py_BuildValue("(OdOOnn)", wrapped.get(), timestamp, rank.get(), others.get(), n_unknown, n_bytes);
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

constexpr size_t kMaxTexts = 256;  // engines send a handful; wire.py has the same bound

// Returns one text of all events of a kind, each value once, as sent; further ones are left out. Texts that are empty or were
// not sent are one value, or none.
template <EventKind kind, std::string_view Event::*text, bool with_empty>
PyObject* texts(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        Reference found(PyList_New(0));
        std::unordered_set<std::string_view> seen;
        std::string_view last;
        for (const Event& event : value_of<OwnedBatch>(self).batch.events()) {
            const std::string_view sent = event.*text;
            if (!with_empty && sent.empty()) continue;
            if (event.kind != kind || (!seen.empty() && sent == last) || !seen.insert(sent).second) continue;
            last = sent;
            if (seen.size() > kMaxTexts) break;
            Reference shown(PyUnicode_FromStringAndSize(sent.data(), static_cast<Py_ssize_t>(sent.size())));
            if (PyList_Append(found.get(), shown.get()) < 0) throw Raised();
        }
        return found.release();
    }, nullptr);
}

PyMethodDef batch_methods[] = {
    method<event_bytes>("event_bytes"),
    {"adapters", texts<EventKind::kStored, &Event::lora, false>, METH_NOARGS, nullptr},
    {"removed_media", texts<EventKind::kRemoved, &Event::medium, true>, METH_NOARGS, nullptr},
    {"size", batch_size, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot batch_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<OwnedBatch>)},
    {Py_tp_methods, batch_methods},
    {Py_tp_doc, const_cast<char*>("A batch of engine events; made by decode_batch.")},
    {0, nullptr},
};
PyType_Spec batch_spec = {"kvatlas.events._native.Batch", sizeof(Object<OwnedBatch>), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, batch_slots};

// -- Inbox --------------------------------------------------------------------------------------------------------

SocketInbox& inbox_of(PyObject* self) { return static_cast<SocketInbox&>(value_of<Inbox>(self)); }

PyObject* new_inbox(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        if (named != nullptr && PyDict_Size(named) != 0) raise(PyExc_TypeError, "Inbox takes no named arguments");
        expect_arguments(PyTuple_Size(args), 3);
        const char* library = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(args, 0), nullptr);
        if (library == nullptr) throw Raised();
        void* socket = PyLong_AsVoidPtr(PyTuple_GetItem(args, 1));
        if (socket == nullptr && PyErr_Occurred() != nullptr) throw Raised();
        const size_t max_queued_bytes = as_count(PyTuple_GetItem(args, 2), 0, "max_queued_bytes");
        return wrap<Inbox>(type, new SocketInbox(library, socket, max_queued_bytes));
    }, nullptr);
}

PyObject* next_message(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        SocketInbox& inbox = inbox_of(self);
        if (!inbox.peek()) Py_RETURN_NONE;
        Reference frames(PyList_New(0));
        for (const std::string_view frame : inbox.frames()) {
            const Reference bytes(PyBytes_FromStringAndSize(frame.data(), static_cast<Py_ssize_t>(frame.size())));
            if (PyList_Append(frames.get(), bytes.get()) < 0) throw Raised();
        }
        inbox.hand_over();
        return frames.release();
    }, nullptr);
}

PyObject* collect(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [argument] = call.arguments({"seconds"});
        const double seconds = PyFloat_AsDouble(argument);
        if (PyErr_Occurred() != nullptr) throw Raised();
        {
            const WithoutGil released;
            inbox_of(self).collect(std::chrono::duration<double>(seconds));
        }
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* lost(PyObject* self, PyObject*) {
    return guarded([&] {
        const Lost lost = inbox_of(self).lost();
        return Py_BuildValue("(nni)", static_cast<Py_ssize_t>(lost.n_too_many_parts), static_cast<Py_ssize_t>(lost.n_queue_full), lost.error);
    }, nullptr);
}

PyObject* is_skipping(PyObject* self, PyObject*) { return PyBool_FromLong(inbox_of(self).is_skipping()); }

PyObject* close_inbox(PyObject* self, PyObject*) {
    inbox_of(self).close();
    Py_RETURN_NONE;
}

PyMethodDef inbox_methods[] = {
    {"next", next_message, METH_NOARGS, nullptr},
    method<collect>("collect"),
    {"lost", lost, METH_NOARGS, nullptr},
    {"is_skipping", is_skipping, METH_NOARGS, nullptr},
    {"close", close_inbox, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot inbox_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_inbox)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Inbox>)},
    {Py_tp_methods, inbox_methods},
    {Py_tp_doc, const_cast<char*>("Messages of a ZMQ socket; used by kvatlas.events.native_inbox.")},
    {0, nullptr},
};
PyType_Spec inbox_spec = {"kvatlas.events._native.Inbox", sizeof(Object<Inbox>), 0, Py_TPFLAGS_DEFAULT, inbox_slots};

int add_types(PyObject* module) {
    return guarded([&] {
        batch_type = reinterpret_cast<PyTypeObject*>(add_type(module, "Batch", &batch_spec));
        Py_DECREF(add_type(module, "Inbox", &inbox_spec));
        return 0;
    }, -1);
}

PyMethodDef functions[] = {
    method<decode_batch>("decode_batch"),
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_types)},
    {0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.events._native", nullptr, 0, functions, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
