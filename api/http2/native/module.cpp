// kvatlas.api.http2._native: the Python side of a session. _native.pyi describes its interface.

#include <memory>
#include <stdexcept>

#include "openssl.h"
#include "python.h"
#include "server_type.h"
#include "session.h"

namespace {

using namespace kvatlas;
using namespace kvatlas::python;
using http2::Event;
using http2::EventKind;
using http2::Session;

PyObject* new_session(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        static const char* const names[] = {"max_streams", "max_message_bytes", "max_early_ends", "spare_bytes", nullptr};
        unsigned int n_streams = 0;
        unsigned long long n_message_bytes = 0, n_early_ends = 0, n_spare_bytes = 0;
        if (PyArg_ParseTupleAndKeywords(args, named, "IKKK", const_cast<char**>(names), &n_streams, &n_message_bytes, &n_early_ends,
                                        &n_spare_bytes) == 0)
            throw Raised();
        return wrap(type, new Session({n_streams, static_cast<size_t>(n_message_bytes), static_cast<size_t>(n_early_ends),
                                       static_cast<size_t>(n_spare_bytes)}));
    }, nullptr);
}

int32_t stream_of(PyObject* object) {
    const size_t value = as_count(object, 1, "stream");
    if (value > 0x7fffffff) raise(PyExc_ValueError, "no stream has such a number");
    return static_cast<int32_t>(value);
}

// Decodes a path or content type from a client: every byte outside ASCII becomes one character.
PyObject* text_of(const std::string& text) {
    return PyUnicode_DecodeLatin1(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
}

PyObject* tuple_of(const Event& event) {
    const int kind = static_cast<int>(event.kind);
    switch (event.kind) {
        case EventKind::opened: {
            const Reference path(text_of(event.text)), content_type(text_of(event.more)), timeout(text_of(event.timeout));
            return Py_BuildValue("(iiOOO)", kind, event.stream, path.get(), content_type.get(), timeout.get());
        }
        case EventKind::message:
        case EventKind::passed:
            return Py_BuildValue("(iiy#)", kind, event.stream, event.text.data(), static_cast<Py_ssize_t>(event.text.size()));
        case EventKind::broken:
            return Py_BuildValue("(iiiss)", kind, event.stream, event.status, event.text.c_str(), event.more.c_str());
        default:
            return Py_BuildValue("(ii)", kind, event.stream);
    }
}

PyObject* receive(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"data", "now", "may_hold"});
        const Buffer bytes(args[0], 1, "B", "data");
        const double now = PyFloat_AsDouble(args[1]);
        if (now == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
        Session& session = value_of<Session>(self);
        try {
            session.receive({static_cast<const char*>(bytes.data()), bytes.n_bytes()}, now, as_count(args[2], 0, "may_hold"));
        } catch (const std::invalid_argument& error) {
            raise(PyExc_ValueError, error.what());
        }
        const auto events = session.take_events();
        Reference list(PyList_New(static_cast<Py_ssize_t>(events.size())));
        for (size_t i = 0; i < events.size(); ++i) {
            PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), Reference(tuple_of(events[i])).release());
        }
        return list.release();
    }, nullptr);
}

PyObject* keep(PyObject* self, PyObject* data) {
    return guarded([&]() -> PyObject* {
        const Buffer bytes(data, 1, "B", "data");
        value_of<Session>(self).keep({static_cast<const char*>(bytes.data()), bytes.n_bytes()});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* output(PyObject* self, PyObject* n) {
    return guarded([&]() -> PyObject* {
        const std::string bytes = value_of<Session>(self).take_output(as_count(n, 1, "bytes"));
        return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
    }, nullptr);
}

PyObject* send(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"stream", "message"});
        const Buffer message(args[1], 1, "B", "message");
        const std::string_view bytes{static_cast<const char*>(message.data()), message.n_bytes()};
        return PyBool_FromLong(value_of<Session>(self).send(stream_of(args[0]), bytes));
    }, nullptr);
}

PyObject* finish(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"stream", "status", "text"});
        Py_ssize_t n = 0;
        const char* text = PyUnicode_AsUTF8AndSize(args[2], &n);
        if (text == nullptr) throw Raised();
        value_of<Session>(self).finish(stream_of(args[0]), static_cast<int>(as_count(args[1], 0, "status")), {text, static_cast<size_t>(n)});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* pass(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"stream", "passage"});
        const int32_t stream = stream_of(args[0]);
        value_of<Session>(self).pass(stream, http2::taken_passage(args[1]));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* leave(PyObject* self, PyObject* stream) {
    return guarded([&]() -> PyObject* {
        const std::string report = value_of<Session>(self).leave(stream_of(stream));
        return PyBytes_FromStringAndSize(report.data(), static_cast<Py_ssize_t>(report.size()));
    }, nullptr);
}

PyObject* unsent(PyObject* self, PyObject* stream) {
    return guarded([&]() -> PyObject* { return number(value_of<Session>(self).unsent(stream_of(stream))); }, nullptr);
}

template <void (Session::*operation)()>
PyObject* plain(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        (value_of<Session>(self).*operation)();
        Py_RETURN_NONE;
    }, nullptr);
}

template <void (Session::*operation)(int32_t)>
PyObject* on_stream(PyObject* self, PyObject* stream) {
    return guarded([&]() -> PyObject* {
        (value_of<Session>(self).*operation)(stream_of(stream));
        Py_RETURN_NONE;
    }, nullptr);
}

template <bool (Session::*question)() const>
PyObject* asked(PyObject* self, PyObject*) { return PyBool_FromLong((value_of<Session>(self).*question)()); }

PyObject* held(PyObject* self, PyObject*) { return number(value_of<Session>(self).held()); }

PyObject* excess(PyObject* self, PyObject*) { return PyUnicode_FromString(value_of<Session>(self).excess()); }

PyObject* n_pongs(PyObject* self, PyObject*) { return number(value_of<Session>(self).n_pongs()); }

PyMethodDef session_methods[] = {
    method<receive>("receive"),
    {"keep", keep, METH_O, nullptr},
    {"has_input", asked<&Session::has_input>, METH_NOARGS, nullptr},
    {"held", held, METH_NOARGS, nullptr},
    {"excess", excess, METH_NOARGS, nullptr},
    {"is_greeted", asked<&Session::is_greeted>, METH_NOARGS, nullptr},
    {"pause", on_stream<&Session::pause>, METH_O, nullptr},
    {"resume", on_stream<&Session::resume>, METH_O, nullptr},
    {"output", output, METH_O, nullptr},
    method<send>("send"),
    method<finish>("finish"),
    method<pass>("pass_messages"),
    {"leave", leave, METH_O, nullptr},
    {"unsent", unsent, METH_O, nullptr},
    {"ping", plain<&Session::ping>, METH_NOARGS, nullptr},
    {"n_pongs", n_pongs, METH_NOARGS, nullptr},
    {"announce_end", plain<&Session::announce_end>, METH_NOARGS, nullptr},
    {"refuse_new", plain<&Session::refuse_new>, METH_NOARGS, nullptr},
    {"is_over", asked<&Session::is_over>, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot session_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_session)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Session>)},
    {Py_tp_methods, session_methods},
    {Py_tp_doc, const_cast<char*>("The server's side of one HTTP/2 connection that carries gRPC calls; bytes in, events out.")},
    {0, nullptr},
};
PyType_Spec session_spec = {"kvatlas.api.http2._native.Session", sizeof(Object<Session>), 0, Py_TPFLAGS_DEFAULT, session_slots};

PyObject* load_tls(PyObject*, PyObject*) {
    return guarded([&]() -> PyObject* {
        openssl::library();
        Py_RETURN_NONE;
    }, nullptr);
}

PyMethodDef functions[] = {
    {"load_tls", load_tls, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

int add_types(PyObject* module) {
    return guarded([&] {
        Py_DECREF(add_type(module, "Session", &session_spec));
        http2::add_server_type(module);
        return 0;
    }, -1);
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(add_types)},
    {0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.api.http2._native", nullptr, 0, functions, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
