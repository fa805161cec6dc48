// The matrix of figures as Python passes it. Only module.cpp includes this: numpy's interface is loaded per source file.
#pragma once

#include <cstdint>

#include "figures.h"
#include "python.h"

// The part of numpy's interface that has not changed since 2.0.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

namespace kvatlas::python {

// The matrix that `match_into` writes: int32 of shape (lines, rows). It is read without numpy's buffer protocol, which describes
// every new array in text.
class FigureMatrix {
public:
    explicit FigureMatrix(PyObject* object) : array_(reinterpret_cast<PyArrayObject*>(object)) {
        if (!PyArray_Check(object) || PyArray_NDIM(array_) != 2 || PyArray_TYPE(array_) != NPY_INT32)
            raise(PyExc_TypeError, "figures must be an array of int32 of two dimensions");
        if (!PyArray_ISCARRAY(array_)) raise(PyExc_ValueError, "figures must be writable, and in the order of C");
        if (PyArray_DIM(array_, 0) <= kBesideTiers) raise(PyExc_TypeError, "figures must be of shape (2 * tiers + 5, rows)");
    }

    size_t n_tiers() const { return static_cast<size_t>(PyArray_DIM(array_, 0) - kBesideTiers) / 2; }
    size_t n_rows() const { return static_cast<size_t>(PyArray_DIM(array_, 1)); }
    int32_t at(size_t line, size_t row) const { return static_cast<const int32_t*>(PyArray_DATA(array_))[line * n_rows() + row]; }
    Figures figures() const { return Figures(static_cast<int32_t*>(PyArray_DATA(array_)), n_tiers(), n_rows()); }

private:
    static constexpr npy_intp kBesideTiers = 5;
    PyArrayObject* array_;
};

}  // namespace kvatlas::python
