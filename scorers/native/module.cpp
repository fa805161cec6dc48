// kvatlas.scorers._native: Python bindings of the arithmetic on columns. _native.pyi has the interface.

#define KVATLAS_IMPORTS_NUMPY
#include "arrays.h"
#include "columns.h"
#include "cost_functions.h"
#include "lines.h"
#include "pair_functions.h"
#include "python.h"

namespace {

using namespace kvatlas::python;
using namespace kvatlas::scorers;

template <class Rate>
PyObject* rated(PyObject* object, Rate rate) {
    const npy_intp n = length_of(object, "column");
    PyArrayObject* column = column_of(object, n, "column");
    NewArray scores(n);
    with_column(column, [&](const auto& numbers) { rate(numbers, std::span(scores.items, static_cast<size_t>(n))); });
    return scores.object.release();
}

PyObject* py_rate_by_load(PyObject*, PyObject* column) {
    return guarded([&] {
        return rated(column, [](const auto& numbers, std::span<double> scores) { rate_by_load(numbers, scores); });
    }, nullptr);
}

PyObject* py_rate_by_free_part(PyObject*, PyObject* column) {
    return guarded([&] {
        return rated(column, [](const auto& numbers, std::span<double> scores) { rate_by_free_part(numbers, scores); });
    }, nullptr);
}

// The same number in every row.
struct Same {
    double number;
    double operator[](size_t) const { return number; }
};

template <class Body>
void with_sizes(PyObject* object, npy_intp n, Body body) {
    if (PyLong_Check(object)) {
        const double number = PyLong_AsDouble(object);
        if (number == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
        return body(Same{number});
    }
    if (length_of(object, "n_blocks") != n) raise(PyExc_ValueError, "n_blocks has another length than blocks");
    with_numbers(reinterpret_cast<PyArrayObject*>(object), "n_blocks", body);
}

PyObject* py_rate_by_share(PyObject*, Call call) {
    return guarded([&] {
        const auto [blocks, n_blocks, credits] = call.arguments({"blocks", "n_blocks", "credit"});
        const npy_intp n = length_of(blocks, "blocks");
        PyArrayObject* credit = column_of(credits, n, "credit");
        NewArray scores(n);
        const std::span to(scores.items, static_cast<size_t>(n));
        with_numbers(reinterpret_cast<PyArrayObject*>(blocks), "blocks", [&](const auto& held) {
            with_sizes(n_blocks, n, [&](const auto& sizes) {
                with_column(credit, [&](const auto& factors) { rate_by_share(held, sizes, factors, to); });
            });
        });
        return scores.object.release();
    }, nullptr);
}

// Whether an object is an array of `n` numbers of any type that has no imaginary part.
bool has_numbers(PyObject* object, npy_intp n) {
    if (!PyArray_Check(object)) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    const bool is_line = PyArray_NDIM(array) == 1 && PyArray_DIM(array, 0) == n;
    return is_line && (PyArray_ISFLOAT(array) || PyArray_ISINTEGER(array) || PyArray_ISBOOL(array));
}

// Returns an array of numbers as such of 64 bits: itself if it is one.
PyObject* as_column(PyObject* object, npy_intp n) {
    if (is_column(object, n)) return Py_NewRef(object);
    return PyArray_FromArray(reinterpret_cast<PyArrayObject*>(object), PyArray_DescrFromType(NPY_DOUBLE), NPY_ARRAY_DEFAULT | NPY_ARRAY_FORCECAST);
}

PyObject* py_weigh(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [columns, weights, length] = call.arguments({"columns", "weights", "n"});
        const auto n = static_cast<npy_intp>(as_count(length, 0, "n"));
        if (!PyTuple_Check(weights)) raise(PyExc_TypeError, "weights must be a tuple");
        const Py_ssize_t n_scorers = PyTuple_Size(weights);
        if (PySequence_Size(columns) != n_scorers) raise(PyExc_ValueError, "there must be a weight per column");
        NewArray scores(static_cast<npy_intp>(n_scorers), n), totals(n);
        const std::span sums(totals.items, static_cast<size_t>(n));
        // A single column is added to 0, as Python does.
        if (n_scorers == 0 || n == 1) std::fill(sums.begin(), sums.end(), 0.0);
        bool is_valid = true;
        for (Py_ssize_t i = 0; i < n_scorers && is_valid; ++i) {
            const Reference given(PySequence_GetItem(columns, i));
            if (!has_numbers(given.get(), n)) Py_RETURN_NONE;
            const Reference column(as_column(given.get(), n));
            const double weight = PyFloat_AsDouble(PyTuple_GetItem(weights, i));
            if (weight == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
            const std::span line(scores.items + i * n, static_cast<size_t>(n));
            is_valid = with_column(reinterpret_cast<PyArrayObject*>(column.get()), [&](const auto& numbers) {
                return add_product(numbers, weight, i == 0 && n != 1, line, sums);
            });
        }
        if (!is_valid) Py_RETURN_NONE;
        return PyTuple_Pack(2, scores.object.get(), totals.object.get());
    }, nullptr);
}

double draw(PyObject* rng) {
    const Reference drawn(PyObject_CallNoArgs(rng));
    const double number = PyFloat_AsDouble(drawn.get());
    if (number == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
    return number;
}

// See scorers/core/shuffle.py.
std::vector<npy_intp> shuffled(npy_intp n, PyObject* rng) {
    std::vector<npy_intp> order(static_cast<size_t>(n));
    for (npy_intp i = 0; i < n; ++i) order[static_cast<size_t>(i)] = i;
    for (npy_intp last = n - 1; last > 0; --last) {
        const double place = draw(rng) * static_cast<double>(last + 1);
        if (!(place >= 0.0 && place < static_cast<double>(last + 1))) raise(PyExc_ValueError, "a draw must be in [0, 1)");
        std::swap(order[static_cast<size_t>(last)], order[static_cast<size_t>(place)]);
    }
    return order;
}

PyObject* py_pick_highest(PyObject*, Call call) {
    return guarded([&] {
        const auto [object, rng] = call.arguments({"totals", "rng"});
        const npy_intp n = length_of(object, "totals");
        PyArrayObject* totals = column_of(object, n, "totals");
        if (n == 0) raise(PyExc_ValueError, "there must be at least one total");
        return with_column(totals, [&](const auto& total) {
            npy_intp best = 0, n_best = 1;
            for (npy_intp row = 1; row < n; ++row) {
                const double here = total[static_cast<size_t>(row)], highest = total[static_cast<size_t>(best)];
                if (here > highest) {
                    best = row;
                    n_best = 1;
                } else if (here == highest) {
                    ++n_best;
                }
            }
            if (n_best == 1) {
                for (npy_intp i = 1; i < n; ++i) draw(rng);
            } else {
                const double highest = total[static_cast<size_t>(best)];
                for (const npy_intp row : shuffled(n, rng)) {
                    if (total[static_cast<size_t>(row)] != highest) continue;
                    best = row;
                    break;
                }
            }
            return Py_BuildValue("nN", static_cast<Py_ssize_t>(best), PyBool_FromLong(n_best > 1));
        });
    }, nullptr);
}

PyObject* py_pick_near(PyObject*, Call call) {
    return guarded([&] {
        const auto [object, width, rng] = call.arguments({"totals", "resolution", "rng"});
        const npy_intp n = length_of(object, "totals");
        PyArrayObject* totals = column_of(object, n, "totals");
        if (n == 0) raise(PyExc_ValueError, "there must be at least one total");
        const double resolution = PyFloat_AsDouble(width);
        if (resolution == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
        return with_column(totals, [&](const auto& total) {
            double highest = total[0], most = -std::numeric_limits<double>::infinity();
            npy_intp picked = 0, n_near = 0;
            for (npy_intp row = 0; row < n; ++row) {
                const double here = total[static_cast<size_t>(row)], with_draw = here + resolution * draw(rng);
                highest = std::max(highest, here);
                if (with_draw > most) {
                    most = with_draw;
                    picked = row;
                }
            }
            for (npy_intp row = 0; row < n; ++row) n_near += total[static_cast<size_t>(row)] > highest - resolution;
            return Py_BuildValue("nN", static_cast<Py_ssize_t>(picked), PyBool_FromLong(n_near > 1));
        });
    }, nullptr);
}

// Returns one row of a table whose lines are its columns.
template <class T, PyObject* (*object_of)(T)>
PyObject* py_cells(PyObject*, Call call) {
    return guarded([&] {
        const auto [object, number] = call.arguments({"table", "row"});
        PyArrayObject* table = array_of(object, 2, "table");
        if (PyArray_TYPE(table) != kType<T>) raise(PyExc_TypeError, "table has items of another type");
        const size_t row = as_count(number, 0, "row");
        if (row >= static_cast<size_t>(PyArray_DIM(table, 1))) raise(PyExc_IndexError, "no such row");
        const npy_intp n = PyArray_DIM(table, 0), stride = PyArray_STRIDE(table, 0);
        const Strided<T> items{PyArray_BYTES(table) + static_cast<npy_intp>(row) * PyArray_STRIDE(table, 1), stride};
        Reference cells(PyTuple_New(n));
        for (npy_intp i = 0; i < n; ++i) {
            PyTuple_SetItem(cells.get(), i, Reference(object_of(items[static_cast<size_t>(i)])).release());
        }
        return cells.release();
    }, nullptr);
}

PyObject* integer_object(int32_t number) { return PyLong_FromLong(number); }

// Lines of a table's state; see scorers/core/candidates.py.
enum StateLine { kWaiting, kRunning, kRequests, kUtilization, kUpdatedAt, kTokens, kCredit, kGpuTokens, kGpuCached, kGone, kStateLines };

void pack_state(PyArrayObject* state, double now, PackedLines& lines) {
    for (int number = 0; number < kStateLines; ++number) {
        with_line<double>(PyArray_BYTES(state) + number * PyArray_STRIDE(state, 0), PyArray_STRIDE(state, 1), [&](const auto& line) {
            if (number <= kRequests) {
                lines.add_counts(line);
            } else if (number == kUpdatedAt) {
                lines.add_floats(line, [now](double at) { return now - at; });
            } else {
                lines.add_floats(line, [](double figure) { return figure; });
            }
        });
    }
}

void pack_counts(PyArrayObject* counts, npy_intp n, PackedLines& lines) {
    const int n_dimensions = PyArray_NDIM(counts);
    if (n_dimensions < 1 || n_dimensions > 2 || !PyArray_ISBEHAVED_RO(counts)) raise(PyExc_TypeError, "counts must be lines of numbers");
    if (PyArray_DIM(counts, n_dimensions - 1) != n) raise(PyExc_ValueError, "counts have another length than the state");
    const npy_intp stride = PyArray_STRIDE(counts, n_dimensions - 1), n_lines = n_dimensions == 2 ? PyArray_DIM(counts, 0) : 1;
    const char* first = PyArray_BYTES(counts);
    const auto add = [&](const auto& line) { lines.add_counts(line); };
    for (npy_intp number = 0; number < n_lines; ++number) {
        if (number > 0) first += PyArray_STRIDE(counts, 0);
        switch (PyArray_TYPE(counts)) {
        case NPY_INT32: with_line<int32_t>(first, stride, add); break;
        case NPY_INT8:
        case NPY_BOOL: with_line<int8_t>(first, stride, add); break;
        default: raise(PyExc_TypeError, "counts must be int32, int8 or bool");
        }
    }
}

PyObject* py_packed(PyObject*, Call call) {
    return guarded([&] {
        const auto [object, time, counts] = call.arguments({"state", "now", "counts"});
        PyArrayObject* state = array_of(object, 2, "state");
        if (PyArray_TYPE(state) != NPY_DOUBLE || PyArray_DIM(state, 0) != kStateLines) raise(PyExc_TypeError, "state must be float64 of 9 lines");
        const double now = PyFloat_AsDouble(time);
        if (now == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
        const npy_intp n = PyArray_DIM(state, 1);
        PackedLines lines(static_cast<size_t>(n));
        pack_state(state, now, lines);
        for_each(counts, [&](PyObject* each) {
            if (!PyArray_Check(each)) raise(PyExc_TypeError, "counts must be arrays");
            pack_counts(reinterpret_cast<PyArrayObject*>(each), n, lines);
        });
        return PyBytes_FromStringAndSize(lines.bytes().data(), static_cast<Py_ssize_t>(lines.bytes().size()));
    }, nullptr);
}

PyMethodDef functions[] = {
    {"rate_by_load", py_rate_by_load, METH_O, nullptr},
    {"rate_by_free_part", py_rate_by_free_part, METH_O, nullptr},
    method<py_rate_by_share>("rate_by_share"),
    method<py_weigh>("weigh"),
    method<py_pick_highest>("pick_highest"),
    method<py_pick_near>("pick_near"),
    method<py_cells<double, PyFloat_FromDouble>>("float_cells"),
    method<py_cells<int32_t, integer_object>>("int_cells"),
    method<py_packed>("packed"),
    method<cost_quantities>("cost_quantities"),
    method<cost_totals>("cost_totals"),
    method<refine_waits>("refine_waits"),
    {"same_everywhere", same_everywhere, METH_O, nullptr},
    method<displaced_tokens>("displaced_tokens"),
    method<fleet_costs>("fleet_costs"),
    method<add_observation>("add_observation"),
    method<solved>("solved"),
    method<pair_times>("pair_times"),
    method<placement_sums>("placement_sums"),
    {nullptr, nullptr, 0, nullptr},
};

int import_numpy(PyObject*) { return PyArray_ImportNumPyAPI(); }

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(import_numpy)},
    {0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.scorers._native", nullptr, 0, functions, module_slots, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
