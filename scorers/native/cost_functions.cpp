// Bindings of the arithmetic of the cost model.

#include "cost_functions.h"

#include <vector>

#include "arrays.h"
#include "copies.h"
#include "costs.h"
#include "releases.h"

namespace kvatlas::scorers {

namespace {

// Returns a table of at least `n_lines` lines; one of a single row, or of a single line, stands for any number of them.
template <class T>
Table<T> table_of(PyObject* object, npy_intp n_lines, npy_intp n_rows, const char* what) {
    PyArrayObject* array = array_of(object, 2, what);
    if (PyArray_TYPE(array) != kType<T>) {
        PyErr_Format(PyExc_TypeError, "%s has items of another type", what);
        throw Raised();
    }
    const npy_intp lines = PyArray_DIM(array, 0), rows = PyArray_DIM(array, 1);
    if (lines < n_lines || (rows != n_rows && rows != 1)) {
        PyErr_Format(PyExc_ValueError, "%s has the shape (%zd, %zd), want (%zd, %zd)", what, lines, rows, n_lines, n_rows);
        throw Raised();
    }
    return {PyArray_BYTES(array), PyArray_STRIDE(array, 0), rows == n_rows ? PyArray_STRIDE(array, 1) : 0};
}

// Returns one number per row as a table of one line.
template <class T>
Table<T> line_of(PyObject* object, npy_intp n_rows, const char* what) {
    PyArrayObject* array = array_of(object, 1, what);
    const npy_intp rows = PyArray_DIM(array, 0);
    if (PyArray_TYPE(array) != kType<T> || (rows != n_rows && rows != 1)) {
        PyErr_Format(PyExc_TypeError, "%s must be %zd numbers of the right type", what, n_rows);
        throw Raised();
    }
    return {PyArray_BYTES(array), 0, rows == n_rows ? PyArray_STRIDE(array, 0) : 0};
}

double as_double(PyObject* object) {
    const double number = PyFloat_AsDouble(object);
    if (number == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
    return number;
}

// Reads a sequence of `n` numbers.
void read_numbers(PyObject* sequence, std::span<double> to) {
    if (PySequence_Size(sequence) != static_cast<Py_ssize_t>(to.size())) raise(PyExc_ValueError, "a sequence has another length than wanted");
    for (size_t i = 0; i < to.size(); ++i) to[i] = as_double(Reference(PySequence_GetItem(sequence, static_cast<Py_ssize_t>(i))).get());
}

// Returns the items of a C-contiguous array of 64-bit numbers.
std::span<double> items_of(PyObject* object, int n_dimensions, size_t n, bool is_written, const char* what) {
    PyArrayObject* array = array_of(object, n_dimensions, what);
    const bool fits = PyArray_TYPE(array) == NPY_DOUBLE && PyArray_IS_C_CONTIGUOUS(array) && static_cast<size_t>(PyArray_SIZE(array)) == n;
    if (!fits || (is_written && !PyArray_ISWRITEABLE(array))) {
        PyErr_Format(PyExc_TypeError, "%s must be %zu numbers of 64 bits side by side", what, n);
        throw Raised();
    }
    return {static_cast<double*>(PyArray_DATA(array)), n};
}

struct Prefix {
    // Reads (figures, reused, block_size) of `PrefixColumns`.
    Prefix(PyObject* object, npy_intp n, size_t n_loads) {
        if (!PyTuple_Check(object) || PyTuple_Size(object) != 3) raise(PyExc_TypeError, "held must be (figures, reused, block_size) or None");
        PyObject* figures = PyTuple_GetItem(object, 0);
        PyObject* reused = PyTuple_GetItem(object, 1);
        PyObject* size = PyTuple_GetItem(object, 2);
        const npy_intp n_lines = PyArray_DIM(array_of(figures, 2, "figures"), 0);
        held.n_tiers = n_lines < 3 ? 0 : static_cast<size_t>((n_lines - 3) / 2);
        if (held.n_tiers <= n_loads) raise(PyExc_ValueError, "figures have fewer tiers than there are");
        held.figures = table_of<int32_t>(figures, n_lines, n, "figures");
        held.has_reused = reused != Py_None;
        if (held.has_reused) held.reused = table_of<int32_t>(reused, static_cast<npy_intp>(n_loads) + 1, n, "reused");
        if (PyLong_Check(size)) {
            same_size = static_cast<int32_t>(std::min<size_t>(as_count(size, 0, "block_size"), INT32_MAX));
            held.block_size = {reinterpret_cast<const char*>(&same_size), 0, 0};
        } else {
            held.block_size = line_of<int32_t>(size, n, "block_size");
        }
    }
    Prefix(const Prefix&) = delete;
    Prefix& operator=(const Prefix&) = delete;

    HeldPrefix held{};
    int32_t same_size = 0;
};

}  // namespace

PyObject* cost_quantities(PyObject*, Call call) {
    return guarded([&] {
        const auto [states, account, cost, factors, prefix, loading, numbers, loads] =
            call.arguments({"state", "accounts", "costs", "pace", "held", "adapter", "numbers", "n_loads"});
        const npy_intp n = PyArray_DIM(array_of(states, 2, "state"), 1);
        const size_t n_loads = as_count(loads, 0, "n_loads"), n_rows = static_cast<size_t>(n), n_lines = kNFeatures + n_loads;
        const auto state = table_of<double>(states, kNState, n, "state"), accounts = table_of<double>(account, kNUsedAccounts, n, "accounts");
        const auto units = table_of<double>(cost, static_cast<npy_intp>(n_lines), n, "costs");
        double same_pace = 1.0;
        Table<double> paces{reinterpret_cast<const char*>(&same_pace), 0, 0}, adapter = paces;
        if (PyFloat_Check(factors)) {
            same_pace = PyFloat_AsDouble(factors);
        } else {
            paces = line_of<double>(factors, n, "pace");
        }
        if (loading != Py_None) adapter = line_of<double>(loading, n, "adapter");
        std::array<double, 6> given{};
        read_numbers(numbers, given);
        const RequestNumbers request{given[0], given[1], given[2], given[3], given[4], given[5]};
        std::optional<Prefix> held;
        if (prefix != Py_None) held.emplace(prefix, n, n_loads);
        NewArray lines(static_cast<npy_intp>(n_lines), n), costs(static_cast<npy_intp>(n_lines), n), totals(n);
        for (size_t row = 0; row < n_rows; ++row) {
            const auto line = [&](size_t number) -> double& { return lines.items[number * n_rows + row]; };
            const double pace = paces(0, row);
            fill_features(request, state, accounts, held ? &held->held : nullptr, 1.0 / (units(kPrefill, row) * pace), row, n_loads, line);
            line(kAdapter) = loading != Py_None ? adapter(0, row) : 0.0;
            double total = 0.0;
            for (size_t number = 0; number < n_lines; ++number) {
                const double unit = units(number, row) * pace;
                costs.items[number * n_rows + row] = unit;
                total += unit * line(number);
            }
            totals.items[row] = total;
        }
        return PyTuple_Pack(3, lines.object.get(), costs.object.get(), totals.object.get());
    }, nullptr);
}

PyObject* cost_totals(PyObject*, Call call) {
    return guarded([&] {
        const auto [features, cost] = call.arguments({"features", "costs"});
        PyArrayObject* array = array_of(features, 2, "features");
        const npy_intp n_lines = PyArray_DIM(array, 0), n = PyArray_DIM(array, 1);
        const auto quantities = table_of<double>(features, n_lines, n, "features"), costs = table_of<double>(cost, n_lines, n, "costs");
        NewArray totals(n);
        std::fill_n(totals.items, n, 0.0);
        for (size_t line = 0; line < static_cast<size_t>(n_lines); ++line) {
            for (size_t row = 0; row < static_cast<size_t>(n); ++row) totals.items[row] += costs(line, row) * quantities(line, row);
        }
        return totals.object.release();
    }, nullptr);
}

PyObject* refine_waits(PyObject*, Call call) {
    return guarded([&] {
        const auto [features, cost, totals, states, begins, places, survivors, numbers] =
            call.arguments({"features", "costs", "totals", "state", "begun", "rows", "survival", "numbers"});
        const npy_intp n_lines = PyArray_DIM(array_of(features, 2, "features"), 0), n = PyArray_DIM(array_of(features, 2, "features"), 1);
        if (n_lines < static_cast<npy_intp>(kNFeatures)) raise(PyExc_ValueError, "features has too few lines");
        const size_t n_rows = static_cast<size_t>(n);
        const auto quantities = items_of(features, 2, static_cast<size_t>(n_lines) * n_rows, true, "features");
        const auto total_ms = items_of(totals, 1, n_rows, true, "totals");
        const auto costs = table_of<double>(cost, n_lines, n, "costs"), state = table_of<double>(states, kNState, n, "state");
        const size_t n_begun = static_cast<size_t>(PyArray_DIM(array_of(begins, 3, "begun"), 0));
        const auto begun = items_of(begins, 3, n_begun * 2 * kKnown, false, "begun");
        const auto rows = line_of<npy_intp>(places, n, "rows");
        const auto survival = items_of(survivors, 1, kSurvival, false, "survival");
        std::array<double, 2> given{};
        read_numbers(numbers, given);
        const auto [now, residence_ms] = given;
        for (size_t row = 0; row < n_rows && residence_ms > 0.0; ++row) {
            double& wait_ms = quantities[kMemory * n_rows + row];
            const npy_intp place = rows(0, row);
            const double used = used_now(state, row);
            if (!(wait_ms > 0.0) || place < 0 || static_cast<size_t>(place) >= n_begun || !(used > 0.0)) continue;
            const auto known = begun.subspan(static_cast<size_t>(place) * 2 * kKnown, 2 * kKnown);
            const auto found = release_ms(wait_ms, used, now, residence_ms, known.first(kKnown), known.last(kKnown), survival);
            if (!found) continue;
            wait_ms = *found;
            double total = 0.0;
            for (size_t line = 0; line < static_cast<size_t>(n_lines); ++line) total += costs(line, row) * quantities[line * n_rows + row];
            total_ms[row] = total;
        }
        return Py_NewRef(Py_None);
    }, nullptr);
}

PyObject* same_everywhere(PyObject*, PyObject* uncached) {
    return guarded([&] {
        const npy_intp n = length_of(uncached, "uncached");
        return PyBool_FromLong(same_everywhere(line_of<double>(uncached, n, "uncached"), 0, static_cast<size_t>(n)));
    }, nullptr);
}

PyObject* displaced_tokens(PyObject*, Call call) {
    return guarded([&] {
        const auto [features, account, states, numbers] = call.arguments({"features", "accounts", "state", "numbers"});
        const npy_intp n = PyArray_DIM(array_of(features, 2, "features"), 1);
        std::array<double, 4> given{};
        read_numbers(numbers, given);
        NewArray displaced(n);
        fill_displaced(table_of<double>(features, kNFeatures, n, "features"), table_of<double>(account, kNUsedAccounts, n, "accounts"),
                       table_of<double>(states, kNState, n, "state"), {given[0], given[1], given[2], given[3]},
                       std::span(displaced.items, static_cast<size_t>(n)));
        return displaced.object.release();
    }, nullptr);
}

PyObject* fleet_costs(PyObject*, Call call) {
    return guarded([&] {
        const auto [ttft, features, cost, account, states, displacements, token_times, shared, numbers] =
            call.arguments({"ttft_ms", "features", "costs", "accounts", "state", "displaced", "token_ms", "sharing", "numbers"});
        const npy_intp n = length_of(ttft, "ttft_ms");
        const auto own_ms = line_of<double>(ttft, n, "ttft_ms");
        const auto quantities = table_of<double>(features, kNFeatures, n, "features");
        const npy_intp n_all = PyArray_DIM(array_of(features, 2, "features"), 0);
        const auto costs = table_of<double>(cost, n_all, n, "costs");
        const auto accounts = table_of<double>(account, kNUsedAccounts, n, "accounts"), state = table_of<double>(states, kNState, n, "state");
        const auto displaced = line_of<double>(displacements, n, "displaced");
        const npy_intp n_times = PyArray_DIM(array_of(token_times, 1, "token_ms"), 0);
        const auto token_ms = line_of<double>(token_times, n_times == 1 ? 1 : n, "token_ms");
        const npy_intp n_shared = PyArray_DIM(array_of(shared, 2, "sharing"), 1);
        const Sharing sharing{table_of<double>(shared, 2, n_shared, "sharing"), static_cast<size_t>(n_shared)};
        std::array<double, 9> given{};
        read_numbers(numbers, given);
        const auto [n_tokens, typical_tokens, factor, most, residency_ms, lost, here, scale_ms, n_output] = given;
        const size_t n_rows = static_cast<size_t>(n);
        double prefill_ms = 0.0;
        for (size_t row = 0; row < n_rows; ++row) prefill_ms += costs(kPrefill, row);
        const double lost_ms = lost * (prefill_ms / static_cast<double>(std::max<size_t>(1, n_rows)));
        double n_booked = 0.0;
        for (size_t row = 0; row < n_rows; ++row) n_booked += state(kStateTokens, row);
        double n_lacking = 0.0;
        for (size_t row = 0; row < n_rows; ++row) n_lacking += quantities(kMemory, row) > 0.0 ? 1.0 : 0.0;
        double shifted = (n_lacking - 1.0) / std::max(1.0, static_cast<double>(n_rows) - 1.0);  // of the others
        shifted *= shifted;
        const double n_anywhere = n_booked / static_cast<double>(std::max<size_t>(1, n_rows)) / typical_tokens;
        const double price_anywhere = (1.0 - here) * (factor * n_anywhere > most ? most : factor * n_anywhere);
        double least_ms = std::numeric_limits<double>::infinity();
        for (size_t each = 0; each < static_cast<size_t>(n_times); ++each) least_ms = minimum(least_ms, token_ms(0, each));
        NewArray parts(npy_intp{10}, n);
        const auto part = [&](size_t line, size_t row) -> double& { return parts.items[line * n_rows + row]; };
        const size_t n_lines = static_cast<size_t>(n_all);
        for (size_t row = 0; row < n_rows; ++row) {
            const double price = price_anywhere + here * (factor * fmax(accounts(kAhead, row), state(kStateWaiting, row)));
            const double work_ms = costs(kPrefill, row) * quantities(kPrefill, row) + costs(kAttention, row) * quantities(kAttention, row);
            const double others_ms = price * work_ms;
            double n_loaded = n_lines > kNFeatures ? quantities(kNFeatures, row) : 0.0;
            for (size_t line = kNFeatures + 1; line < n_lines; ++line) n_loaded += quantities(line, row);
            const double taken = tokens_taken(n_tokens, quantities(kPrefill, row) + n_loaded, accounts, row) * per_token(state(kStateGpuTokens, row));
            const double displaced_ms = lost_ms * displaced(0, row);
            const double response_ms = n_output * maximum(0.0, token_ms(0, n_times == 1 ? 0 : row) - kAlike * least_ms);
            const double held_from = fmax(used_now(state, row), 0.0) + waiting_again(state, accounts, row);
            const double memory_ms = residency_ms * held_from * taken + displaced_ms;
            const auto term = [&](size_t line) { return costs(line, row) * quantities(line, row); };
            double load_ms = n_lines > kNFeatures ? term(kNFeatures) : 0.0;
            for (size_t line = kNFeatures + 1; line < n_lines; ++line) load_ms += term(line);
            const double cost_ms = own_ms(0, row) - shifted * term(kMemory) + others_ms + memory_ms + response_ms;
            const std::array<double, 10> found{term(kOverhead) + term(kBatch) + term(kAdapter),
                                               term(kQueue) + (1.0 - shifted) * term(kMemory),
                                               term(kPrefill) + term(kAttention),
                                               load_ms,
                                               others_ms,
                                               memory_ms,
                                               0.0,
                                               response_ms,
                                               cost_ms,
                                               work_ms + others_ms + displaced_ms};
            for (size_t line = 0; line < found.size(); ++line) part(line, row) = found[line];
        }
        const auto rank = [&](size_t row) { return std::isnan(part(8, row)) ? std::numeric_limits<double>::infinity() : part(8, row); };
        size_t best = 0;
        for (size_t row = 1; row < n_rows; ++row) best = rank(row) < rank(best) ? row : best;
        for (size_t row = 0; row < n_rows; ++row) {
            const auto batch_ms = [&](size_t of) { return costs(kBatch, of) * quantities(kBatch, of); };
            const double gain_ms = fmax(0.0, batch_ms(best) - batch_ms(row));
            const double saved_ms = sharing.n == 0 ? 0.0 : copy_saving(gain_ms, part(9, row), quantities(kPrefill, row), n_tokens, sharing);
            const double cost_ms = part(8, row) - saved_ms;
            part(6, row) = 0.0 - saved_ms;
            part(8, row) = cost_ms;
            part(9, row) = 1.0 / (1.0 + cost_ms / scale_ms);
        }
        return parts.object.release();
    }, nullptr);
}

PyObject* add_observation(PyObject*, Call call) {
    return guarded([&] {
        const auto [square, product, part, time, importance, fading] =
            call.arguments({"squares", "products", "parts", "observed", "weight", "decay"});
        std::vector<double> parts(static_cast<size_t>(std::max<Py_ssize_t>(0, PySequence_Size(part))));
        read_numbers(part, parts);
        const size_t n = parts.size();
        const double observed = as_double(time), weight = as_double(importance), decay = as_double(fading);
        add_to_sums(items_of(square, 2, n * n, true, "squares"), items_of(product, 1, n, true, "products"), parts, observed, weight, decay);
        return Py_NewRef(Py_None);
    }, nullptr);
}

PyObject* solved(PyObject*, Call call) {
    return guarded([&] {
        const auto [start, square, product, least, most, sweeps] =
            call.arguments({"factors", "squares", "products", "lows", "high", "n_sweeps"});
        std::vector<double> factors(static_cast<size_t>(std::max<Py_ssize_t>(0, PySequence_Size(start))));
        read_numbers(start, factors);
        const size_t n = factors.size(), n_sweeps = as_count(sweeps, 0, "n_sweeps");
        const auto squares = items_of(square, 2, n * n, false, "squares"), products = items_of(product, 1, n, false, "products");
        const double high = as_double(most);
        std::vector<double> lows(n);
        read_numbers(least, lows);
        for (size_t sweep = 0; sweep < n_sweeps; ++sweep) descend(factors, squares, products, lows, high);
        Reference found(PyList_New(static_cast<Py_ssize_t>(n)));
        for (size_t i = 0; i < n; ++i) PyList_SetItem(found.get(), static_cast<Py_ssize_t>(i), Reference(PyFloat_FromDouble(factors[i])).release());
        return found.release();
    }, nullptr);
}

}  // namespace kvatlas::scorers
