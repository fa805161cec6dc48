// What the header promises, checked while it is compiled.
#include "pace.h"

using kvatlas::http2::rest_s;

constexpr double MOST_S = 0.002;
constexpr bool is_about(double value, double expected) { return value > expected * 0.999 && value < expected * 1.001; }

static_assert(rest_s(10.0, 1, MOST_S) == MOST_S, "chunks that come seldom wait no longer than configured");
static_assert(rest_s(0.002, 5, MOST_S) == MOST_S, "five in 2 ms: twelve would take longer");
static_assert(is_about(rest_s(0.002, 41, MOST_S), 0.000585), "as long as twelve of them take");
static_assert(is_about(rest_s(0.000585, 12, MOST_S), 0.000585), "and so it stays");
static_assert(is_about(rest_s(0.000585, 3, MOST_S), MOST_S), "fewer: longer");
static_assert(rest_s(0.000585, 1000, MOST_S) == 0, "a thread with much to do does not rest");
static_assert(rest_s(0.002, 5, 0) == 0, "nothing is gathered");
