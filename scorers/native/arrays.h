// Arrays of numpy as the arguments and results of native functions.
#pragma once

#include "columns.h"
#include "python.h"

// The part of numpy's interface that has not changed since 2.0. Arrays are read and made without a call of numpy's Python functions.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL kvatlas_scorers_numpy
#ifndef KVATLAS_IMPORTS_NUMPY  // one file of the module does it for all
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

namespace kvatlas::scorers {

using namespace kvatlas::python;

template <class T>
constexpr int kType = std::is_same_v<T, double> ? NPY_DOUBLE : std::is_same_v<T, npy_intp> ? NPY_INTP : NPY_INT32;

inline bool is_array(PyObject* object, int n_dimensions) {
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    return PyArray_NDIM(array) == n_dimensions && PyArray_ISBEHAVED_RO(array);
}

inline bool is_column(PyObject* object, npy_intp n) {
    return is_array(object, 1) && PyArray_TYPE(reinterpret_cast<PyArrayObject*>(object)) == NPY_DOUBLE &&
           PyArray_DIM(reinterpret_cast<PyArrayObject*>(object), 0) == n;
}

inline PyArrayObject* array_of(PyObject* object, int n_dimensions, const char* what) {
    if (!is_array(object, n_dimensions)) {
        PyErr_Format(PyExc_TypeError, "%s must be an aligned array of %d dimensions, not %R", what, n_dimensions, Py_TYPE(object));
        throw Raised();
    }
    return reinterpret_cast<PyArrayObject*>(object);
}

inline PyArrayObject* column_of(PyObject* object, npy_intp n, const char* what) {
    if (!is_column(object, n)) {
        PyErr_Format(PyExc_TypeError, "%s must be an aligned array of %zd numbers of 64 bits", what, n);
        throw Raised();
    }
    return reinterpret_cast<PyArrayObject*>(object);
}

inline npy_intp length_of(PyObject* object, const char* what) { return PyArray_DIM(array_of(object, 1, what), 0); }

// Calls `body` with something to index: a pointer if the items are side by side, so that loops can be vectorized.
template <class T, class Body>
auto with_line(const char* first, npy_intp stride, Body body) {
    if (stride == sizeof(T)) return body(reinterpret_cast<const T*>(first));
    return body(Strided<T>{first, stride});
}

template <class Body>
auto with_column(PyArrayObject* column, Body body) {
    return with_line<double>(PyArray_BYTES(column), PyArray_STRIDE(column, 0), body);
}

// Calls `body` with each type of numbers that a column of blocks can have.
template <class Body>
void with_numbers(PyArrayObject* column, const char* what, Body body) {
    const char* first = PyArray_BYTES(column);
    const npy_intp stride = PyArray_STRIDE(column, 0);
    switch (PyArray_TYPE(column)) {
    case NPY_INT32: return with_line<int32_t>(first, stride, body);
    case NPY_DOUBLE: return with_line<double>(first, stride, body);
    default: PyErr_Format(PyExc_TypeError, "%s must be int32 or float64, not %R", what, PyArray_DESCR(column)); throw Raised();
    }
}

struct NewArray {
    template <class... Dimensions>
    explicit NewArray(Dimensions... n)
        : object(new_array({n...})), items(static_cast<double*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(object.get())))) {}

    static PyObject* new_array(std::initializer_list<npy_intp> shape) {
        return PyArray_SimpleNew(static_cast<int>(shape.size()), const_cast<npy_intp*>(shape.begin()), NPY_DOUBLE);
    }

    Reference object;
    double* items;
};

}  // namespace kvatlas::scorers
