// Arithmetic of the costs of pairs, without Python: one endpoint computes a prompt, another one answers. Every sum and quotient is that
// of scorers/latency/pair_arithmetic.py, in the same order; the compiler must not fuse them (-ffp-contract=off).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvatlas::scorers {

// Lines of features and of accounts that are read here, see scorers/latency/features.py and lines.py.
enum FeatureLine { kQueue = 1, kPrefill = 2, kAttention = 3, kBatch = 4, kMemory = 5 };
enum AccountLine { kWork = 0, kBusyAt = 7, kReadyAt = 12, kSentAt = 13, kReceivingAt = 14, kReceivedAt = 15, kAccountLines = 16 };
enum LoadLine { kLoadWaiting = 0, kLoadRunning = 1, kLoadUtilization = 3, kLoadUpdatedAt = 4, kLoadLines = 7 };

// Lines of numbers, each at its distance in memory; a table with one row has the same number in each.
struct Lines {
    const char* first;
    std::ptrdiff_t to_line, to_row;
    size_t n_lines;

    double operator()(size_t line, size_t row) const {
        return *reinterpret_cast<const double*>(first + static_cast<std::ptrdiff_t>(line) * to_line + static_cast<std::ptrdiff_t>(row) * to_row);
    }
};

// As numpy does: a number that is NaN stays.
inline double greater(double left, double right) { return left >= right || std::isnan(left) ? left : right; }
inline double lesser(double left, double right) { return left <= right || std::isnan(left) ? left : right; }

// Numbers of one request and of transfers.
struct PairNumbers {
    double now, latency_ms, settle_s;
};

// An endpoint that computes; `tail` are costs of transfer, wait and step.
struct Computing {
    double* features;  // lines of n numbers side by side
    Lines costs, accounts, loads, tail;
    size_t n, n_features;

    double planned_ms(size_t row, const PairNumbers& numbers) const {
        return greater(0.0, accounts(kReadyAt, row) - numbers.now) * 1000.0;
    }

    // No more is left than the prompts that may not be computed yet: clients may have gone.
    double left_ms(size_t row, const PairNumbers& numbers) const {
        return lesser(planned_ms(row, numbers), accounts(kWork, row) * costs(kPrefill, row));
    }

    // Until earlier prompts are computed; 0 if the endpoint reports that it is idle, though it may still send.
    double ahead_ms(size_t row, const PairNumbers& numbers) const {
        const bool is_idle = loads(kLoadWaiting, row) + loads(kLoadRunning, row) == 0.0 &&
                             loads(kLoadUpdatedAt, row) > accounts(kBusyAt, row) + numbers.settle_s;
        return is_idle ? 0.0 : left_ms(row, numbers);
    }

    double prefill_ms(size_t row) const {
        double sum = 0.0;
        for (size_t line = 0; line < n_features; ++line) sum += costs(line, row) * features[line * n + row];
        return sum;
    }
};

// An endpoint that receives and answers.
struct Receiving {
    Lines features, costs, accounts, tokens, tpot_ms;
    size_t n;
};

// Fills the times of all pairs: the transfer, the wait, and the time to first token, each of shape (computing, receiving).
inline void fill_pair_times(const Computing& computing, const Receiving& receiving, const Lines& speeds, const PairNumbers& numbers,
                            std::span<double> prefill_ms, std::span<double> times) {
    const size_t n = computing.n * receiving.n;
    std::vector<double> ready(receiving.n), begins(receiving.n), ends(receiving.n), steps(receiving.n), tokens(receiving.n);
    for (size_t at = 0; at < receiving.n; ++at) {
        ready[at] = receiving.costs(kQueue, at) * receiving.features(kQueue, at) + receiving.costs(kMemory, at) * receiving.features(kMemory, at);
        begins[at] = (receiving.accounts(kReceivingAt, at) - numbers.now) * 1000.0;
        ends[at] = (receiving.accounts(kReceivedAt, at) - numbers.now) * 1000.0;
        steps[at] = receiving.tpot_ms(0, at);
        tokens[at] = receiving.tokens(0, at);
    }
    for (size_t row = 0; row < computing.n; ++row) {
        computing.features[kQueue * computing.n + row] += computing.ahead_ms(row, numbers) * (1.0 / computing.costs(kPrefill, row));
        const double prefill = prefill_ms[row] = computing.prefill_ms(row);
        const double sent = (computing.accounts(kSentAt, row) - numbers.now) * 1000.0 - (computing.planned_ms(row, numbers) - computing.left_ms(row, numbers));
        const double start = greater(prefill, sent);
        const double transfer_cost = computing.tail(0, row), wait_cost = computing.tail(1, row), step_cost = computing.tail(2, row);
        double* transfers = &times[row * receiving.n];
        for (size_t at = 0; at < receiving.n; ++at) {
            const double transfer = numbers.latency_ms + speeds(row, at) * tokens[at];
            const double network = start >= begins[at] ? greater(start, ends[at]) : start;
            const double wait = greater(ready[at], network) - prefill;
            transfers[at] = transfer;
            transfers[n + at] = wait;
            transfers[2 * n + at] = prefill + step_cost * steps[at] + transfer_cost * transfer + wait_cost * wait;
        }
    }
}

// How work is priced on endpoints of one kind.
struct Price {
    double factor, most, typical_tokens, requests_per_ms;
};

// Fills how much longer others wait for work on each endpoint, and the milliseconds of the work.
template <class Features>
void fill_others(const Features& features, const Lines& costs, size_t n, const Price& price, std::span<double> others_ms, std::span<double> work_ms) {
    double queue_ms = 0.0, memory_ms = 0.0;
    for (size_t at = 0; at < n; ++at) {
        queue_ms += costs(kQueue, at) * features(kQueue, at);
        memory_ms += costs(kMemory, at) * features(kMemory, at);
    }
    const double mean_ms = (queue_ms + memory_ms) / static_cast<double>(n);
    const double each_per_ms = price.factor * price.requests_per_ms / static_cast<double>(n);
    for (size_t at = 0; at < n; ++at) {
        const double work = costs(kPrefill, at) * features(kPrefill, at) + costs(kAttention, at) * features(kAttention, at);
        const double longest = n > 1 ? lesser(work, mean_ms + price.typical_tokens * costs(kPrefill, at)) : work;
        const double waits = longest * (each_per_ms * (mean_ms + work - longest / 2.0));
        others_ms[at] = lesser(waits, price.most * work);
        work_ms[at] = work;
    }
}

}  // namespace kvatlas::scorers
