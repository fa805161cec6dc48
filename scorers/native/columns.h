// Arithmetic on columns, without Python: one number per endpoint. Every sum and quotient is that of scorers/core/arithmetic.py, in
// the same order; the compiler must not fuse them (-ffp-contract=off).
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

namespace kvatlas::scorers {

// Items at equal distances in memory.
template <class T>
struct Strided {
    const char* first;
    std::ptrdiff_t stride;

    T operator[](size_t at) const { return *reinterpret_cast<const T*>(first + static_cast<std::ptrdiff_t>(at) * stride); }
};

// The tests are false for NaN, which stands for unknown.

template <class Column>
void rate_by_load(const Column& column, std::span<double> scores) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (size_t at = 0; at < scores.size(); ++at) {
        const double number = column[at];
        least = number < least ? number : least;
        most = number > most ? number : most;
    }
    if (!(most > least)) {
        for (size_t at = 0; at < scores.size(); ++at) scores[at] = column[at] == most ? 1.0 : 0.0;
        return;
    }
    const double range = most - least;
    for (size_t at = 0; at < scores.size(); ++at) {
        const double score = (most - column[at]) / range;
        scores[at] = score > 0.0 ? score : 0.0;
    }
}

template <class Column>
void rate_by_free_part(const Column& column, std::span<double> scores) {
    for (size_t at = 0; at < scores.size(); ++at) {
        const double free = 1.0 - column[at];
        scores[at] = free > 0.0 ? std::min(free, 1.0) : 0.0;
    }
}

template <class Blocks, class Sizes, class Credits>
void rate_by_share(const Blocks& blocks, const Sizes& n_blocks, const Credits& credit, std::span<double> scores) {
    for (size_t at = 0; at < scores.size(); ++at) {
        const double size = static_cast<double>(n_blocks[at]);
        const double score = credit[at] * (static_cast<double>(blocks[at]) / (size > 1.0 ? size : 1.0));
        scores[at] = score > 1.0 ? 1.0 : score < 0.0 ? 0.0 : score;
    }
}

// Copies scores and adds their products to the totals; returns whether all are in [0, 1].
template <class Column>
bool add_product(const Column& column, double weight, bool is_first, std::span<double> scores, std::span<double> totals) {
    bool is_valid = true;
    for (size_t at = 0; at < scores.size(); ++at) {
        const double score = column[at];
        is_valid &= (score >= 0.0) & (score <= 1.0);
        scores[at] = score;
    }
    if (is_first) {
        for (size_t at = 0; at < scores.size(); ++at) totals[at] = weight * scores[at];
    } else {
        for (size_t at = 0; at < scores.size(); ++at) totals[at] += weight * scores[at];
    }
    return is_valid;
}

}  // namespace kvatlas::scorers
