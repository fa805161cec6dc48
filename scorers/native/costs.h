// Arithmetic of the cost model, without Python: scorers/latency/arithmetic.py is its specification. Sums and products are in the same
// order; the compiler must not fuse them (-ffp-contract=off). NaN stands for unknown.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvatlas::scorers {

// A table of numbers: lines of quantities, a row per endpoint. A stride of 0 repeats one number.
template <class T>
struct Table {
    const char* first;
    std::ptrdiff_t line_stride;
    std::ptrdiff_t row_stride;

    T operator()(size_t line, size_t row) const {
        return *reinterpret_cast<const T*>(first + static_cast<std::ptrdiff_t>(line) * line_stride +
                                           static_cast<std::ptrdiff_t>(row) * row_stride);
    }
};

// Those of numpy: the first two leave out NaN, the others keep it.
inline double fmax(double a, double b) { return a >= b || b != b ? a : b; }
inline double fmin(double a, double b) { return a <= b || b != b ? a : b; }
inline double maximum(double a, double b) { return a >= b || a != a ? a : b; }
inline double minimum(double a, double b) { return a <= b || a != a ? a : b; }

// Lines of `Candidates.state`, of `scorers/latency/lines.py` and of `scorers/latency/features.py`.
enum State : size_t { kStateWaiting, kStateRunning, kStateSent, kStateUsed, kStateUpdated, kStateTokens, kStateCredit, kStateGpuTokens, kStateGpuCached, kStateGone, kNState };
enum Account : size_t { kWork, kBooked, kAhead, kTokensAhead, kSince, kTokensHeld, kPlaced = 16, kPlacedAt, kTokensInUse, kPlacedNew, kNUsedAccounts };
enum Feature : size_t { kOverhead, kQueue, kPrefill, kAttention, kBatch, kMemory, kAdapter, kNFeatures };

// Part of the GPU blocks within which a wait for blocks is not expected.
inline constexpr double kUnsure = 0.02;

// Times the tokens of a GPU that requests may need before a part of what it holds counts as lost.
inline constexpr double kKept = 4.0;

// Times per output token up to this multiple of the least count as equal.
inline constexpr double kAlike = 1.25;

// What is known of a request, and of typical ones.
struct RequestNumbers {
    double now, n_tokens, typical_tokens, typical_work, residence_ms, output_tokens;
};

// What the endpoints hold of a prompt: lines of `PrefixColumns.figures`, and the blocks that they would reuse by tier, if these are
// not in the order of tiers.
struct HeldPrefix {
    Table<int32_t> figures;
    Table<int32_t> reused;
    Table<int32_t> block_size;
    size_t n_tiers;
    bool has_reused;
};

// The requests that run on an endpoint: those of the last scrape less the known ones that have ended since.
inline double running_now(const Table<double>& state, size_t row) {
    return maximum(0.0, state(kStateRunning, row) - state(kStateGone, row));
}

// The part of the GPU blocks that these hold.
inline double used_now(const Table<double>& state, size_t row) {
    const double used = state(kStateUsed, row), running = state(kStateRunning, row);
    return running > 0.0 ? used * (running_now(state, row) / maximum(1.0, running)) : used;
}

// Writes the loads of one endpoint behind its features; returns the uncached tokens.
template <class Lines>
double prefix_features(const HeldPrefix& held, double n_tokens, double credit, size_t row, size_t n_loads, Lines lines) {
    const double tokens_per_block = held.block_size(0, row) * credit;
    int32_t left = held.figures(2 * held.n_tiers, row);
    const double uncached = maximum(0.0, n_tokens - left * tokens_per_block);
    for (size_t tier = 0; tier <= n_loads; ++tier) {
        int32_t n_blocks = 0;
        if (held.has_reused) {
            n_blocks = held.reused(tier, row);
        } else {
            n_blocks = std::min(held.figures(held.n_tiers + tier, row), left);
            left -= n_blocks;
        }
        if (tier > 0) lines(kNFeatures + tier - 1) = n_blocks * tokens_per_block;
    }
    return uncached;
}

// The part that `n` requests are of those whose response has not begun, 0 to 1; `each` is the part of one, 0 if there are none.
inline double part_ahead(double n, double each) { return each > 0.0 ? fmin(fmax(0.0, n) * each, 1.0) : 0.0; }

// The requests that wait on an endpoint and that the engine alone reports; 0 if that is unknown.
inline double waiting_unknown(const Table<double>& state, size_t row) {
    const double waiting = state(kStateWaiting, row);
    return fmax(0.0, fmin(waiting, waiting + running_now(state, row) - state(kStateSent, row)));
}

// The requests that wait again because the engine took their blocks back; 0 if that is unknown.
inline double waiting_again(const Table<double>& state, const Table<double>& accounts, size_t row) {
    const double with_one_more = used_now(state, row) * (1.0 + 1.0 / maximum(1.0, running_now(state, row)));
    if (!(with_one_more > 1.0 - kUnsure)) return 0.0;
    return fmax(0.0, state(kStateWaiting, row) - waiting_unknown(state, row) - accounts(kAhead, row));
}

inline double tokens_ahead(const RequestNumbers& request, const Table<double>& state, const Table<double>& accounts, double each, double tokens_per_ms, size_t row) {
    const double sent = state(kStateSent, row), waiting = state(kStateWaiting, row), running = running_now(state, row);
    const double foreign = waiting_unknown(state, row);
    const double ahead = accounts(kWork, row) + maximum(0.0, state(kStateTokens, row) - accounts(kBooked, row));
    const double since_ms = (accounts(kAhead, row) > 0.0 ? request.now - accounts(kSince, row) : 0.0) * 1000.0;
    const double untouched = ahead * part_ahead(fmin(waiting, sent - running), each);
    return maximum(0.0, ahead - untouched - since_ms * tokens_per_ms) + untouched + foreign * request.typical_work;
}

// The tokens of a prompt whose blocks nobody else uses.
inline double tokens_taken(double n_tokens, double new_tokens, const Table<double>& accounts, size_t row) {
    return fmax(fmin(new_tokens, n_tokens), n_tokens - accounts(kTokensInUse, row));
}

// The part of the GPU blocks that a token takes; 0 if it is unknown.
inline double per_token(double gpu_tokens) { return gpu_tokens > 0.0 ? 1.0 / maximum(1.0, gpu_tokens) : 0.0; }

// The part of the GPU blocks that must become free before a request begins; 0 if that is unknown.
inline double missing_memory(const RequestNumbers& request, double new_tokens, const Table<double>& state, const Table<double>& accounts, double each_ahead, size_t row) {
    const double used = used_now(state, row), running = running_now(state, row), sent = state(kStateSent, row);
    const double ahead = accounts(kTokensAhead, row), foreign = fmax(0.0, running - sent);
    const double begun = accounts(kTokensHeld, row) + fmax(0.0, sent - accounts(kAhead, row)) * request.output_tokens;
    const double told = per_token(state(kStateGpuTokens, row));
    const double shown = begun + ahead - ahead * part_ahead(sent - running, each_ahead) + foreign * request.typical_tokens;
    const double each_token = told > 0.0 ? told : used / maximum(shown, 1.0 + request.n_tokens);
    const double known = minimum(begun * each_token + used * foreign / maximum(1.0, running), used);
    const double taken = tokens_taken(request.n_tokens, new_tokens, accounts, row) * each_token;
    const double lacking = taken + maximum(known + ahead * each_token, used) - 1.0;
    return lacking > kUnsure ? lacking + used / (running + 1.0) : 0.0;
}

// The part of what a GPU holds of a prompt that is displaced before its turn comes.
inline double part_lost(const Table<double>& state, const Table<double>& accounts, size_t row) {
    const double needed = accounts(kTokensAhead, row) + accounts(kTokensHeld, row), room = kKept * state(kStateGpuTokens, row);
    return room > 0.0 && needed > room ? 1.0 - room / maximum(1.0, needed) : 0.0;
}

// Writes the features of one endpoint, all but that of the adapter; `held` is null if nothing is known of the prompt.
template <class Lines>
void fill_features(const RequestNumbers& request, const Table<double>& state, const Table<double>& accounts, const HeldPrefix* held,
                   double tokens_per_ms, size_t row, size_t n_loads, Lines lines) {
    const double n_ahead = accounts(kAhead, row), each = n_ahead > 0.0 ? 1.0 / n_ahead : 0.0;
    // read before anything is written, which the compiler could not tell apart
    const double ahead = tokens_ahead(request, state, accounts, each, tokens_per_ms, row);
    const double batch = fmax(state(kStateSent, row), running_now(state, row));
    double uncached = request.n_tokens;
    if (held != nullptr) {
        uncached = prefix_features(*held, request.n_tokens, state(kStateCredit, row), row, n_loads, lines);
    } else {
        for (size_t load = 0; load < n_loads; ++load) lines(kNFeatures + load) = 0.0;
    }
    double loaded = 0.0;
    for (size_t load = 0; load < n_loads; ++load) loaded += lines(kNFeatures + load);
    if (held != nullptr) uncached += part_lost(state, accounts, row) * maximum(0.0, request.n_tokens - uncached - loaded);
    const double new_tokens = uncached + loaded;
    lines(kOverhead) = 1.0;
    lines(kQueue) = ahead;
    lines(kPrefill) = uncached;
    lines(kAttention) = uncached * (request.n_tokens - uncached / 2.0) / 1e6;
    lines(kBatch) = batch;
    lines(kMemory) = request.residence_ms * missing_memory(request, new_tokens, state, accounts, each, row);
}

// What counts of tokens that are placed on an endpoint, see `displaced_tokens` of the specification.
struct DisplacementNumbers {
    double now, fade_s, spread, least;
};

// The part of the uncached tokens that the GPU has no room for, at least `least`; 1 if that is unknown.
inline double part_displaced(double uncached, const Table<double>& state, const Table<double>& accounts, double least, size_t row) {
    const double cached = state(kStateGpuCached, row);
    if (cached == 0.0 && accounts(kPlaced, row) > 0.0) return 1.0;
    return fmax(least, fmin((uncached + cached - state(kStateGpuTokens, row)) / maximum(1.0, uncached), 1.0));
}

// Whether a prompt is new: no endpoint has more of it than another; false for a single one.
inline bool same_everywhere(const Table<double>& uncached, size_t line, size_t n) {
    double fewest = std::numeric_limits<double>::infinity(), most = -fewest;
    for (size_t row = 0; row < n; ++row) {
        fewest = minimum(fewest, uncached(line, row));
        most = maximum(most, uncached(line, row));
    }
    return n > 1 && fewest >= most;
}

inline void fill_displaced(const Table<double>& features, const Table<double>& accounts, const Table<double>& state,
                           const DisplacementNumbers& numbers, std::span<double> displaced) {
    const bool is_new = same_everywhere(features, kPrefill, displaced.size());
    double fewest = std::numeric_limits<double>::infinity();
    for (size_t row = 0; row < displaced.size(); ++row) fewest = minimum(fewest, features(kPrefill, row));
    double total = 0.0;
    for (size_t row = 0; row < displaced.size(); ++row) {
        displaced[row] = accounts(is_new ? kPlacedNew : kPlaced, row) * std::exp((accounts(kPlacedAt, row) - numbers.now) / numbers.fade_s);
        total += displaced[row];
    }
    const double mean = total / static_cast<double>(displaced.size());
    for (size_t row = 0; row < displaced.size(); ++row) {
        const double uncached = features(kPrefill, row);
        const double more = numbers.spread * (mean <= 0.0 ? 0.0 : displaced[row] / mean - 1.0);
        displaced[row] = uncached + fewest * (more < -1.0 ? -1.0 : more > 1.0 ? 1.0 : more);
        if (!is_new) displaced[row] *= part_displaced(uncached, state, accounts, numbers.least, row);
    }
}

// Adds an observation to the sums of a regression, whose old ones fade.
inline void add_to_sums(std::span<double> squares, std::span<double> products, std::span<const double> parts, double observed, double weight,
                        double decay) {
    const size_t n = parts.size();
    for (size_t row = 0; row < n; ++row) {
        const double weighted = weight * parts[row];
        for (size_t column = 0; column < n; ++column) {
            double& cell = squares[row * n + column];
            cell = decay * cell + weighted * parts[column];
        }
        products[row] = decay * products[row] + weighted * observed;
    }
}

// Improves factors by coordinate descent within bounds, each regularized to 1 with weight 1.
inline void descend(std::span<double> factors, std::span<const double> squares, std::span<const double> products, std::span<const double> lows,
                    double high) {
    const size_t n = factors.size();
    for (size_t row = 0; row < n; ++row) {
        const auto line = squares.subspan(row * n, n);
        double others = 0.0;
        for (size_t column = 0; column < n; ++column) others += line[column] * factors[column];
        others -= line[row] * factors[row];
        const double best = (products[row] + 1.0 - others) / (line[row] + 1.0);
        const double capped = best < lows[row] ? lows[row] : best;
        factors[row] = capped > high ? high : capped;
    }
}

}  // namespace kvatlas::scorers
