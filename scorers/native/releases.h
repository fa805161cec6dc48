// When requests release the blocks that they hold, without Python: scorers/latency/release_arithmetic.py is its specification.
// Sums are in the same order; the compiler must not fuse them (-ffp-contract=off).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace kvatlas::scorers {

inline constexpr size_t kKnown = 16, kSurvival = 65, kBisections = 10;
inline constexpr double kSurvivalSteps = 16.0, kLongest = 4.0, kOverdue = 0.25;

// Returns the survival at an age, linear between those that are known; 0 beyond them.
inline double survival_at(std::span<const double> survival, double age) {
    const double at = (age > 0.0 ? age : 0.0) * kSurvivalSteps;
    if (!(at < static_cast<double>(kSurvival - 1))) return 0.0;
    const size_t before = static_cast<size_t>(at);
    return survival[before] + (survival[before + 1] - survival[before]) * (at - static_cast<double>(before));
}

struct HeldBlocks {
    double age, n, alive;
};

// Returns after what time `part` of the held tokens is expected to be released, in mean times of a response.
inline double release_time(double part, std::span<const HeldBlocks> held, double total, std::span<const double> survival) {
    if (part >= 1.0) return part;
    double low = 0.0, high = kLongest;
    for (size_t step = 0; step < kBisections; ++step) {
        const double middle = 0.5 * (low + high);
        double released = 0.0;
        for (const auto& [age, n, alive] : held) {
            released += n * (alive > 0.0 ? 1.0 - survival_at(survival, age + middle) / alive : std::min(1.0, middle / kOverdue));
        }
        (released >= part * total ? high : low) = middle;
    }
    return high;
}

// The same for one endpoint, whose requests began at these times, for milliseconds of waiting; nothing if no tokens are held.
inline std::optional<double> release_ms(double wait_ms, double used, double now, double residence_ms, std::span<const double> begun,
                                        std::span<const double> tokens, std::span<const double> survival) {
    std::array<HeldBlocks, kKnown> known;
    size_t n_known = 0;
    double total = 0.0;
    for (size_t place = 0; place < kKnown; ++place) {
        if (!(tokens[place] > 0.0)) continue;
        const double age = (now - begun[place]) * 1000.0 / residence_ms;
        known[n_known++] = {age, tokens[place], survival_at(survival, age)};
        total += tokens[place];
    }
    if (total <= 0.0) return std::nullopt;
    return residence_ms * release_time(wait_ms / residence_ms / used, std::span(known.data(), n_known), total, survival);
}

}  // namespace kvatlas::scorers
