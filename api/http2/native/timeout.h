// `grpc-timeout`: the deadline of a call.
#pragma once

#include <limits>
#include <string_view>

namespace kvatlas::http2 {

// Returns seconds, infinity if the header is missing or malformed. Source: gRPC over HTTP/2, `Timeout`.
inline double timeout_s(std::string_view header) {
    constexpr double never = std::numeric_limits<double>::infinity();
    if (header.size() < 2 || header.size() > 9) return never;
    double number = 0;
    for (const char digit : header.substr(0, header.size() - 1)) {
        if (digit < '0' || digit > '9') return never;
        number = number * 10 + (digit - '0');
    }
    switch (header.back()) {
        case 'H': return number * 3600;
        case 'M': return number * 60;
        case 'S': return number;
        case 'm': return number * 1e-3;
        case 'u': return number * 1e-6;
        case 'n': return number * 1e-9;
        default: return never;
    }
}

}  // namespace kvatlas::http2
