// The vocabulary of a byte-level BPE. In its file, one character stands for each byte of a token.
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
    // Throws std::invalid_argument if a byte has no token.
    explicit Vocabulary(std::vector<std::pair<std::string_view, uint32_t>> tokens);

    // `pairs` are in order of rank. Throws std::invalid_argument if a part of a pair, or the merged pair, is not a token.
    std::vector<Merge> merges(const std::vector<std::pair<std::string_view, std::string_view>>& pairs) const;

    // Returns the bytes of each token; tokens that are not written as bytes are omitted.
    std::unordered_map<std::string, uint32_t> words() const;

    const std::array<uint32_t, 256>& bytes() const { return bytes_; }

private:
    uint32_t at(std::string_view token) const;

    std::unordered_map<std::string_view, uint32_t> tokens_;
    std::array<uint32_t, 256> bytes_{};
};

}  // namespace kvatlas::tokenization
