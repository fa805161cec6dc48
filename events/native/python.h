// Helpers for extension modules: self-releasing references, checked arguments, errors as exceptions, and conversion of
// values to Python objects. All native parts use them.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvatlas::python {

// Thrown once a Python exception is set.
struct Raised {};

class Reference {
public:
    explicit Reference(PyObject* owned) : object_(owned) {
        if (object_ == nullptr) throw Raised();
    }
    Reference(const Reference&) = delete;
    Reference& operator=(const Reference&) = delete;
    ~Reference() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }

private:
    PyObject* object_;
};

class WithoutGil {
public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;
    ~WithoutGil() { PyEval_RestoreThread(state_); }

private:
    PyThreadState* state_;
};

[[noreturn]] inline void raise(PyObject* type, const char* message) {
    PyErr_SetString(type, message);
    throw Raised();
}

// A buffer of whole items of `item_size` bytes: an array of such unsigned integers, or plain bytes.
class Buffer {
public:
    Buffer(PyObject* object, Py_ssize_t item_size, std::string_view formats, const char* what) {
        if (PyObject_GetBuffer(object, &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) < 0) throw Raised();
        const std::string_view format = view_.format == nullptr ? "B" : view_.format;
        const bool is_array = format.size() == 1 && formats.find(format) != formats.npos && view_.itemsize == item_size;
        if (!is_array && format != "B") {
            PyErr_Format(PyExc_TypeError, "%s must be array('%c') or bytes, not items of format '%s'", what, formats[0], view_.format);
        } else if (view_.len % item_size != 0) {
            PyErr_Format(PyExc_ValueError, "%s must be whole items of %zd bytes, not %zd bytes", what, item_size, view_.len);
        } else {
            return;
        }
        PyBuffer_Release(&view_);
        throw Raised();
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { PyBuffer_Release(&view_); }

    const void* data() const { return view_.buf; }
    size_t n_bytes() const { return static_cast<size_t>(view_.len); }

private:
    Py_buffer view_;
};

inline Buffer keys_buffer(PyObject* object) { return Buffer(object, 8, "QL", "keys"); }
inline Buffer tokens_buffer(PyObject* object) { return Buffer(object, 4, "IL", "tokens"); }

// Converts an integer of 0 .. 2**64 - 1; returns nullopt outside this range. Raises TypeError for other types.
inline std::optional<uint64_t> as_word(PyObject* object) {
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "an integer is needed, not %R", object);
        throw Raised();
    }
    const uint64_t value = PyLong_AsUnsignedLongLong(object);
    if (value == ~uint64_t{0} && PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError) == 0) throw Raised();
        PyErr_Clear();
        return std::nullopt;
    }
    return value;
}

// Converts a count of at least `least`. Raises ValueError if it is out of range.
inline size_t as_count(PyObject* object, uint64_t least, const char* what) {
    const auto value = as_word(object);
    if (!value || *value < least) {
        PyErr_Format(PyExc_ValueError, "%s must be %llu .. 2**64 - 1, not %S", what, static_cast<unsigned long long>(least), object);
        throw Raised();
    }
    return *value;
}

inline void expect_arguments(Py_ssize_t n_given, Py_ssize_t n_wanted) {
    if (n_given == n_wanted) return;
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", n_wanted, n_given);
    throw Raised();
}

// The arguments of a call as Python passes them: values, the last of which may have names.
struct Call {
    PyObject* const* values;
    Py_ssize_t n_positional;
    PyObject* names;

    // Returns the arguments in the order of `wanted`; all are required.
    template <size_t N>
    std::array<PyObject*, N> arguments(const char* const (&wanted)[N]) const {
        const Py_ssize_t n_named = names == nullptr ? 0 : PyTuple_Size(names);
        expect_arguments(n_positional + n_named, N);
        std::array<PyObject*, N> found{};
        std::copy_n(values, n_positional, found.begin());
        for (Py_ssize_t i = 0; i < n_named; ++i) {
            PyObject* name = PyTuple_GetItem(names, i);
            size_t at = 0;
            while (at < N && PyUnicode_CompareWithASCIIString(name, wanted[at]) != 0) ++at;
            if (at == N || found[at] != nullptr) {
                PyErr_Format(PyExc_TypeError, "unexpected or repeated argument '%U'", name);
                throw Raised();
            }
            found[at] = values[n_positional + i];
        }
        return found;
    }
};

// Defines a function of the module, or a method of a type, with arguments.
template <PyObject* (*function)(PyObject*, Call)>
PyMethodDef method(const char* name) {
    PyObject* (*entry)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) =
        [](PyObject* self, PyObject* const* values, Py_ssize_t n_positional, PyObject* names) {
            return function(self, {values, n_positional, names});
        };
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(entry)), METH_FASTCALL | METH_KEYWORDS, nullptr};
}

// Creates a type and adds it to the module; returns a new reference.
inline PyObject* add_type(PyObject* module, const char* name, PyType_Spec* spec) {
    Reference type(PyType_FromModuleAndSpec(module, spec, nullptr));
    if (PyModule_AddObjectRef(module, name, type.get()) < 0) throw Raised();
    return type.release();
}

template <class Visit>
void for_each(PyObject* sequence, Visit visit) {
    const Py_ssize_t n = PySequence_Size(sequence);
    if (n < 0) throw Raised();
    for (Py_ssize_t i = 0; i < n; ++i) visit(Reference(PySequence_GetItem(sequence, i)).get());
}

// Runs the body of a function that Python calls and converts C++ exceptions to Python ones.
template <class Body>
auto guarded(Body body, decltype(body()) failure) noexcept -> decltype(body()) {
    try {
        return body();
    } catch (const Raised&) {
        return failure;
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return failure;
}

// A Python object that owns a C++ one.
template <class T>
struct Object {
    PyObject_HEAD
    T* value;
};

template <class T>
T& value_of(PyObject* self) {
    return *reinterpret_cast<Object<T>*>(self)->value;
}

template <class T>
PyObject* wrap(PyTypeObject* type, T* value) {
    const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* self = allocate(type, 0);
    if (self == nullptr) {
        delete value;
        throw Raised();
    }
    reinterpret_cast<Object<T>*>(self)->value = value;
    return self;
}

template <class T>
void deallocate(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Object<T>*>(self)->value;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

inline PyObject* number(size_t value) { return PyLong_FromSize_t(value); }

inline PyObject* integer_of(std::span<const uint64_t> words) {
    size_t n = words.size();
    while (n > 0 && words[n - 1] == 0) --n;
    if (n <= 1) return PyLong_FromUnsignedLongLong(n == 0 ? 0 : words[0]);
    return PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyLong_Type), "from_bytes", "y#s",
                               reinterpret_cast<const char*>(words.data()), static_cast<Py_ssize_t>(n * 8), "little");
}

template <class Row>
PyObject* bytes_of(const std::vector<Row>& rows) {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(rows.data()), static_cast<Py_ssize_t>(rows.size() * sizeof(Row)));
}

}  // namespace kvatlas::python
