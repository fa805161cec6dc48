// kvatlas.api.http2._native.Server: the Python side of threads that serve connections.

#include "server_type.h"

#include <memory>
#include <stdexcept>

#include "server.h"

namespace kvatlas::http2 {
namespace {

using namespace kvatlas::python;

double seconds(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
    return value;
}

PyObject* new_server(PyTypeObject* type, PyObject* args, PyObject* named) {
    return guarded([&]() -> PyObject* {
        static const char* const names[] = {"threads", "max_streams", "max_message_bytes", "max_early_ends", "spare_bytes",
                                            "max_connections", "fair_streams", "times", nullptr};
        unsigned int n_threads = 0, n_streams = 0;
        unsigned long long n_message_bytes = 0, n_early_ends = 0, n_spare_bytes = 0, n_connections = 0, n_fair = 0;
        PyObject* times = nullptr;
        if (PyArg_ParseTupleAndKeywords(args, named, "IIKKKKKO", const_cast<char**>(names), &n_threads, &n_streams, &n_message_bytes,
                                        &n_early_ends, &n_spare_bytes, &n_connections, &n_fair, &times) == 0)
            throw Raised();
        if (n_threads == 0 || n_threads > 64) raise(PyExc_ValueError, "threads must be 1 .. 64");
        const Limits session = {n_streams, static_cast<size_t>(n_message_bytes), static_cast<size_t>(n_early_ends),
                                static_cast<size_t>(n_spare_bytes)};
        ServerLimits limits = {session, static_cast<size_t>(n_connections), n_streams, static_cast<size_t>(n_fair), 0, 0, 0, 0, 0, 0, 0};
        double* const all[] = {&limits.greeting_s, &limits.first_message_s, &limits.silence_s,
                               &limits.pong_s,     &limits.notice_s,        &limits.linger_s,  &limits.gather_s};
        size_t i = 0;
        for_each(times, [&](PyObject* each) {
            if (i < std::size(all)) *all[i++] = seconds(each);
        });
        if (i != std::size(all)) raise(PyExc_ValueError, "times must be seven");
        return wrap(type, new Server(limits, n_threads));
    }, nullptr);
}

PyObject* tuple_of(const Told& told) {
    const bool is_data = told.kind == ToldKind::message || told.kind == ToldKind::passed;
    const auto n = static_cast<Py_ssize_t>(told.text.size());
    const Reference text(is_data ? PyBytes_FromStringAndSize(told.text.data(), n) : PyUnicode_DecodeLatin1(told.text.data(), n, nullptr));
    return Py_BuildValue("(iKO)", static_cast<int>(told.kind), static_cast<unsigned long long>(told.call), text.get());
}

PyObject* take(PyObject* self, PyObject* n) {
    return guarded([&]() -> PyObject* {
        const auto taken = value_of<Server>(self).take(as_count(n, 1, "events"));
        Reference list(PyList_New(static_cast<Py_ssize_t>(taken.size())));
        for (size_t i = 0; i < taken.size(); ++i)
            PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), Reference(tuple_of(taken[i])).release());
        return list.release();
    }, nullptr);
}

PyObject* send(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"call", "message"});
        const Buffer message(args[1], 1, "B", "message");
        value_of<Server>(self).order({OrderKind::send, as_count(args[0], 0, "call"), 0,
                                      std::string(static_cast<const char*>(message.data()), message.n_bytes())});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* finish(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"call", "status", "text"});
        Py_ssize_t n = 0;
        const char* text = PyUnicode_AsUTF8AndSize(args[2], &n);
        if (text == nullptr) throw Raised();
        value_of<Server>(self).order({OrderKind::finish, as_count(args[0], 0, "call"), static_cast<int>(as_count(args[1], 0, "status")),
                                      std::string(text, static_cast<size_t>(n))});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* pass(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"call", "passage"});
        const size_t id = as_count(args[0], 0, "call");
        value_of<Server>(self).order({OrderKind::pass, id, 0, {}, args[1] == Py_None ? nullptr : taken_passage(args[1])});
        Py_RETURN_NONE;
    }, nullptr);
}

template <OrderKind kind>
PyObject* on_call(PyObject* self, PyObject* id) {
    return guarded([&]() -> PyObject* {
        value_of<Server>(self).order({kind, as_count(id, 0, "call")});
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* accept(PyObject* self, PyObject* fd) {
    return guarded([&]() -> PyObject* {
        value_of<Server>(self).accept(static_cast<int>(as_count(fd, 0, "fd")));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* use_identity(PyObject* self, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"key", "chain", "client_ca", "min_version", "cipher_list"});
        const Buffer key(args[0], 1, "B", "key"), chain(args[1], 1, "B", "chain"), client_ca(args[2], 1, "B", "client_ca");
        const auto text = [](const Buffer& pem) { return std::string_view(static_cast<const char*>(pem.data()), pem.n_bytes()); };
        const auto min_version = static_cast<long>(as_count(args[3], 0, "min_version"));
        const char* const cipher_list = PyUnicode_AsUTF8AndSize(args[4], nullptr);
        if (cipher_list == nullptr) throw Raised();
        const TlsTerms terms = {text(key), text(chain), text(client_ca), min_version, cipher_list};
        try {
            value_of<Server>(self).use(std::make_shared<const TlsIdentity>(terms));
        } catch (const std::invalid_argument& error) {
            raise(PyExc_ValueError, error.what());
        }
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* set_room(PyObject* self, PyObject* n) {
    return guarded([&]() -> PyObject* {
        const long long room = PyLong_AsLongLong(n);
        if (room == -1 && PyErr_Occurred() != nullptr) throw Raised();
        value_of<Server>(self).set_room(room);
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* stop(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        {
            const WithoutGil released;
            value_of<Server>(self).stop();
        }
        Py_RETURN_NONE;
    }, nullptr);
}

template <void (Server::*operation)()>
PyObject* plain(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        (value_of<Server>(self).*operation)();
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* fileno(PyObject* self, PyObject*) { return PyLong_FromLong(value_of<Server>(self).fd()); }
PyObject* has_more(PyObject* self, PyObject*) { return PyBool_FromLong(value_of<Server>(self).has_more()); }
PyObject* held(PyObject* self, PyObject*) { return PyLong_FromLongLong(value_of<Server>(self).n_held()); }
PyObject* n_deferred(PyObject* self, PyObject*) { return number(value_of<Server>(self).n_deferred()); }

PyMethodDef server_methods[] = {
    {"fileno", fileno, METH_NOARGS, nullptr},
    method<use_identity>("use_identity"),
    {"take", take, METH_O, nullptr},
    {"has_more", has_more, METH_NOARGS, nullptr},
    {"accept", accept, METH_O, nullptr},
    method<send>("send"),
    method<finish>("finish"),
    method<pass>("pass_messages"),
    {"ask", on_call<OrderKind::ask>, METH_O, nullptr},
    {"flush", plain<&Server::flush>, METH_NOARGS, nullptr},
    {"pause", on_call<OrderKind::pause>, METH_O, nullptr},
    {"resume", on_call<OrderKind::resume>, METH_O, nullptr},
    {"tell_drained", on_call<OrderKind::tell_drained>, METH_O, nullptr},
    {"set_room", set_room, METH_O, nullptr},
    {"held", held, METH_NOARGS, nullptr},
    {"n_deferred", n_deferred, METH_NOARGS, nullptr},
    {"drain", plain<&Server::drain>, METH_NOARGS, nullptr},
    {"abort_all", plain<&Server::abort_all>, METH_NOARGS, nullptr},
    {"shed", plain<&Server::shed>, METH_NOARGS, nullptr},
    {"stop", stop, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot server_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(new_server)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocate<Server>)},
    {Py_tp_methods, server_methods},
    {Py_tp_doc, const_cast<char*>("Threads that serve HTTP/2 connections with gRPC calls for one thread of Python.")},
    {0, nullptr},
};
PyType_Spec server_spec = {"kvatlas.api.http2._native.Server", sizeof(Object<Server>), 0, Py_TPFLAGS_DEFAULT, server_slots};

}  // namespace

void add_server_type(PyObject* module) { Py_DECREF(add_type(module, "Server", &server_spec)); }

std::unique_ptr<Passage> taken_passage(PyObject* capsule) {
    void* const passage = PyCapsule_GetPointer(capsule, PASSAGE_CAPSULE);
    if (passage == nullptr || PyCapsule_SetDestructor(capsule, nullptr) != 0) throw Raised();
    std::unique_ptr<Passage> owned(static_cast<Passage*>(passage));
    if (PyCapsule_SetName(capsule, "used") != 0) throw Raised();
    return owned;
}

}  // namespace kvatlas::http2
