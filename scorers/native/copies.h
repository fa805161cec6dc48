// What a copy of a shared prompt saves later requests, without Python: scorers/latency/copy_arithmetic.py is its specification.
// Sums are in the same order; the compiler must not fuse them (-ffp-contract=off).
#pragma once

#include <cstddef>

#include "costs.h"

namespace kvatlas::scorers {

inline constexpr double kBoth = 2.0;

// How many requests share the leading tokens of a prompt, and how many tokens: ascending, with `n` ends.
struct Sharing {
    Table<double> lines;
    size_t n;
};

// Returns the milliseconds that computing a prompt for `spent_ms` saves requests after it, whose batch is smaller by `gain_ms` there.
inline double copy_saving(double gain_ms, double spent_ms, double uncached, double n_tokens, const Sharing& sharing) {
    double start = 0.0, n_first = 0.0, paid = 0.0;
    for (size_t each = 0; each < sharing.n; ++each) {
        const double n = sharing.lines(0, each), end = sharing.lines(1, each);
        const double missing = maximum(0.0, end - maximum(start, n_tokens - uncached));
        if (n_first == 0.0 && missing > 0.0) n_first = n;
        paid += n / (1.0 + n) * missing;
        start = end;
    }
    return fmin(spent_ms * (paid / maximum(1.0, uncached)), kBoth * n_first * gain_ms);
}

}  // namespace kvatlas::scorers
