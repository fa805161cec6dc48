// A byte-level BPE's vocabulary as its file writes it: every byte of a token stands there as one character.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "byte_pairs.h"

namespace kvatlas::tokenization {

class Vocabulary {
public:
    // Throws std::invalid_argument where a byte has no token.
    explicit Vocabulary(std::vector<std::pair<std::string_view, uint32_t>> tokens);

    // `pairs` by rank. Throws std::invalid_argument where a part, or what a pair becomes, is no token.
    std::vector<Merge> merges(const std::vector<std::pair<std::string_view, std::string_view>>& pairs) const;

    // The bytes of every token; those that are not written as bytes are left out.
    std::unordered_map<std::string, uint32_t> words() const;

    const std::array<uint32_t, 256>& bytes() const { return bytes_; }

private:
    uint32_t at(std::string_view token) const;

    std::unordered_map<std::string_view, uint32_t> tokens_;
    std::array<uint32_t, 256> bytes_{};
};

}  // namespace kvatlas::tokenization
