// How long a thread leaves its sockets after a turn that brought chunks, so that the next turn brings several.
#pragma once

#include <algorithm>
#include <cstddef>

namespace kvatlas::http2 {

// Chunks that share the cost of a turn, which is that of about thirty chunks. More of them would save little, and each would wait longer.
constexpr double CHUNKS_A_TURN = 12;

// Shorter rests are skipped: the system's timers are not more exact.
constexpr double LEAST_REST_S = 50e-6;

// Returns the time in seconds until about `CHUNKS_A_TURN` have come, if `n` of them came within `since_s`; at most `most_s`.
constexpr double rest_s(double since_s, size_t n, double most_s) {
    const double rest = since_s * CHUNKS_A_TURN / static_cast<double>(n);
    return rest < LEAST_REST_S ? 0 : std::min(rest, most_s);
}

}  // namespace kvatlas::http2
