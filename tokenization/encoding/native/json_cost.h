// An estimate of what decoding a JSON text costs, made in one pass without decoding it.

#pragma once

#include <cstdint>
#include <string_view>

namespace kvatlas::tokenization {

// Counts a comma between values as 1, a list or object as `container`, and within strings 16 bytes beyond ASCII or 4 escapes
// as 1. The text need not be JSON.
inline uint64_t json_cost(std::string_view json, uint64_t container) {
    uint64_t cost = 0, wide = 0, escapes = 0;
    const char *at = json.data(), *const end = at + json.size();
    while (at < end) {
        const char outside = *at++;
        cost += outside == ',';
        if (outside == '[' || outside == '{') cost += container;
        if (outside != '"') continue;
        for (; at < end && *at != '"'; ++at) {
            wide += static_cast<unsigned char>(*at) >> 7;
            if (*at != '\\') continue;
            ++escapes;
            if (++at == end) break;
        }
        if (at < end) ++at;
    }
    return cost + wide / 16 + escapes / 4;
}

}  // namespace kvatlas::tokenization
