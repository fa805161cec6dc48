// Bindings of the arithmetic of the costs of pairs. Arrays are read through the buffer protocol, and results are written to arrays of the caller.

#include "pair_functions.h"

#include "pairs.h"

namespace kvatlas::scorers {

namespace {

using namespace kvatlas::python;

// An array of 64-bit numbers or of truth values, of one or two dimensions; one that is written may have three.
class Array {
public:
    Array(PyObject* object, char format, bool is_written, const char* what) : what_(what) {
        const int flags = is_written ? PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE : PyBUF_FORMAT | PyBUF_STRIDED_RO;
        if (PyObject_GetBuffer(object, &view_, flags) < 0) throw Raised();
        const bool is_wanted = view_.itemsize == (format == '?' ? 1 : 8) && view_.format != nullptr && view_.format[1] == '\0' &&
                               (view_.format[0] == format || (format == 'l' && view_.format[0] == 'q'));
        if (is_wanted && view_.ndim >= 1 && view_.ndim <= (is_written ? 3 : 2)) return;
        PyErr_Format(PyExc_TypeError, "%s must be an array of '%c' of other dimensions", what, format);
        PyBuffer_Release(&view_);
        throw Raised();
    }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;
    ~Array() { PyBuffer_Release(&view_); }

    size_t n_rows() const { return static_cast<size_t>(view_.shape[view_.ndim - 1]); }
    size_t n_lines() const { return view_.ndim == 2 ? static_cast<size_t>(view_.shape[0]) : 1; }

    // Returns at least so many lines of `n` rows; with `is_same`, one row stands for all, and one line too.
    Lines lines(size_t n_wanted, size_t n, bool is_same = false) const {
        const bool is_one = is_same && n_rows() == 1;
        if (n_lines() < n_wanted || (n_rows() != n && !is_one)) wrong_shape(n_wanted, n);
        return {static_cast<const char*>(view_.buf), view_.ndim == 2 ? view_.strides[0] : 0, is_one ? 0 : view_.strides[view_.ndim - 1], n_lines()};
    }

    // Returns one number for each line and row, or the same for all.
    Lines speeds(size_t n_wanted, size_t n) const {
        if (n_lines() == 1 && n_rows() == 1) return {static_cast<const char*>(view_.buf), 0, 0, n_wanted};
        return lines(n_wanted, n);
    }

    std::span<double> items(size_t n) const {
        if (static_cast<size_t>(view_.len) != n * sizeof(double)) wrong_shape(1, n);
        return {static_cast<double*>(view_.buf), n};
    }

    template <class T>
    T at(size_t row) const {
        return *reinterpret_cast<const T*>(static_cast<const char*>(view_.buf) + static_cast<std::ptrdiff_t>(row) * view_.strides[0]);
    }

private:
    [[noreturn]] void wrong_shape(size_t n_wanted, size_t n) const {
        PyErr_Format(PyExc_ValueError, "%s has %zu lines of %zu rows, want %zu of %zu", what_, n_lines(), n_rows(), n_wanted, n);
        throw Raised();
    }

    const char* what_;
    Py_buffer view_;
};

Array numbers_of(PyObject* object, const char* what) { return Array(object, 'd', false, what); }
Array results_of(PyObject* object, const char* what) { return Array(object, 'd', true, what); }

template <size_t N>
std::array<double, N> read_numbers(PyObject* tuple) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != static_cast<Py_ssize_t>(N)) raise(PyExc_TypeError, "numbers must be a tuple of the right length");
    std::array<double, N> found{};
    for (size_t i = 0; i < N; ++i) {
        found[i] = PyFloat_AsDouble(PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i)));
        if (found[i] == -1.0 && PyErr_Occurred() != nullptr) throw Raised();
    }
    return found;
}

}  // namespace

PyObject* pair_times(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [computing, receiving, speed, values, prefill_to, times_to] =
            call.arguments({"computing", "receiving", "speeds", "numbers", "prefill_ms", "times_ms"});
        PyObject *own_features, *own_costs, *own_accounts, *loads, *tail, *features, *costs, *accounts, *tokens, *tpot;
        if (PyArg_ParseTuple(computing, "OOOOO", &own_features, &own_costs, &own_accounts, &loads, &tail) == 0) throw Raised();
        if (PyArg_ParseTuple(receiving, "OOOOO", &features, &costs, &accounts, &tokens, &tpot) == 0) throw Raised();
        const auto [now, latency_ms, settle_s] = read_numbers<3>(values);
        const Array written = results_of(own_features, "features"), its_costs = numbers_of(own_costs, "costs"),
                    its_accounts = numbers_of(own_accounts, "accounts"), its_loads = numbers_of(loads, "loads"), its_tail = numbers_of(tail, "tail");
        const Array their_features = numbers_of(features, "receiving features"), their_costs = numbers_of(costs, "receiving costs"),
                    their_accounts = numbers_of(accounts, "receiving accounts"), their_tokens = numbers_of(tokens, "tokens"), their_tpot = numbers_of(tpot, "tpot_ms");
        const Array speeds = numbers_of(speed, "speeds"), prefill_ms = results_of(prefill_to, "prefill_ms"), times = results_of(times_to, "times_ms");
        const size_t p = written.n_rows(), d = their_tokens.n_rows(), n_features = written.n_lines();
        if (n_features <= kMemory) raise(PyExc_ValueError, "there are too few features");
        const Computing from{written.items(n_features * p).data(), its_costs.lines(n_features, p, true), its_accounts.lines(kAccountLines, p, true),
                             its_loads.lines(kLoadLines, p), its_tail.lines(3, p, true), p, n_features};
        const Receiving to{their_features.lines(kMemory + 1, d), their_costs.lines(kMemory + 1, d, true), their_accounts.lines(kAccountLines, d, true),
                           their_tokens.lines(1, d), their_tpot.lines(1, d), d};
        fill_pair_times(from, to, speeds.speeds(p, d), {now, latency_ms, settle_s}, prefill_ms.items(p), times.items(3 * p * d));
        Py_RETURN_NONE;
    }, nullptr);
}

PyObject* placement_sums(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto [answering, computing, apart, values, alone_to, others_to, pairs_to] =
            call.arguments({"answering", "computing", "is_apart", "numbers", "alone", "others", "pairs"});
        PyObject *features, *costs, *ttft, *tpot, *loads, *columns;
        if (PyArg_ParseTuple(answering, "OOOOOO", &features, &costs, &ttft, &tpot, &loads, &columns) == 0) throw Raised();
        const auto [decoding, weight, residency_ms, factor, most, typical, per_ms, computed_per_ms] = read_numbers<8>(values);
        const Array a_features = numbers_of(features, "features"), a_costs = numbers_of(costs, "costs"), a_ttft = numbers_of(ttft, "ttft_ms"),
                    a_tpot = numbers_of(tpot, "tpot_ms"), a_loads = numbers_of(loads, "loads"), alone = results_of(alone_to, "alone");
        const size_t d = a_ttft.n_rows();
        const std::span<double> sums = alone.items(5 * d);
        const std::span<double> of_alone = sums.first(d), generating = sums.subspan(d, d), memory = sums.subspan(2 * d, d),
                                others = sums.subspan(3 * d, d), least = sums.subspan(4 * d, d);
        const Lines a = a_features.lines(kMemory + 1, d), c = a_costs.lines(kMemory + 1, d, true), first = a_ttft.lines(1, d),
                    step = a_tpot.lines(1, d), load = a_loads.lines(kLoadLines, d);
        std::vector<double> work(d);
        fill_others(a, c, d, {factor, most, typical, per_ms}, others, work);
        for (size_t at = 0; at < d; ++at) {
            generating[at] = decoding * step(0, at);
            const double used = load(kLoadUtilization, at);
            memory[at] = residency_ms * (used > 0.0 ? used : 0.0);
            others[at] += work[at] * (weight * a(kBatch, at));
            least[at] = of_alone[at] = first(0, at) + (generating[at] + memory[at]) + others[at];
        }
        if (computing == Py_None) Py_RETURN_NONE;
        PyObject *p_features, *p_costs, *p_ttft, *rows;
        if (PyArg_ParseTuple(computing, "OOOO", &p_features, &p_costs, &p_ttft, &rows) == 0) throw Raised();
        const Array b_features = numbers_of(p_features, "computing features"), b_costs = numbers_of(p_costs, "computing costs"),
                    b_ttft = numbers_of(p_ttft, "pairs of ttft_ms"), others_pairs = results_of(others_to, "others"), pairs = results_of(pairs_to, "pairs");
        const Array places(columns, 'l', false, "columns"), own_places(rows, 'l', false, "rows");
        const std::optional<Array> is_apart = apart == Py_None ? std::nullopt : std::optional<Array>(std::in_place, apart, '?', false, "is_apart");
        const size_t p = b_features.n_rows();
        if (places.n_rows() != d || own_places.n_rows() != p || (is_apart && is_apart->n_rows() != d)) raise(PyExc_ValueError, "rows, columns or is_apart have another length");
        const std::span<double> own_others = others_pairs.items(p), sum = pairs.items(p * d);
        const Lines ttft_ms = b_ttft.lines(p, d);
        std::vector<double> own_work(p);
        fill_others(b_features.lines(kMemory + 1, p), b_costs.lines(kMemory + 1, p, true), p, {factor, most, typical, computed_per_ms}, own_others, own_work);
        for (size_t row = 0; row < p; ++row) {
            const int64_t place = own_places.at<int64_t>(row);
            for (size_t at = 0; at < d; ++at) {
                const bool is_choice = places.at<int64_t>(at) != place && (!is_apart || is_apart->at<bool>(at));
                const double cost = is_choice ? ttft_ms(row, at) + (generating[at] + memory[at]) + own_others[row] : std::numeric_limits<double>::infinity();
                sum[row * d + at] = cost;
                least[at] = lesser(least[at], cost);
            }
        }
        Py_RETURN_NONE;
    }, nullptr);
}

}  // namespace kvatlas::scorers
