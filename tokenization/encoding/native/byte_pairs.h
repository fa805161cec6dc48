// Byte pair encoding of words: the pair of the lowest rank is merged first, of equal ones the leftmost.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvatlas::tokenization {

struct Merge {
    uint32_t left, right, merged;
};

class BytePairs {
public:
    // Merges take time with the square of a word's length; beyond this a word is left to someone else.
    static constexpr size_t kLongestWord = 256;

    // `bytes`: the token of each byte. `merges`: by rank. `words`: tokens that a word equal to them becomes at once.
    BytePairs(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges, std::unordered_map<std::string, uint32_t> words);

    // A word seen before, with its tokens; the next one of the same place takes it over.
    struct Known {
        std::array<uint64_t, 3> bytes{};  // zeros behind the word
        uint8_t length = 0, n_tokens = 0;
        std::array<uint32_t, 9> tokens{};
    };

    // Words seen before: 2 MiB, for one thread at a time.
    class Memory {
    public:
        Memory() : known_(size_t{1} << kBits) {}
        Known& at(uint64_t hash) { return known_[hash >> (64 - kBits)]; }

    private:
        static constexpr unsigned kBits = 15;
        std::vector<Known> known_;
    };

    // Adds the tokens of a word, neither empty nor longer than kLongestWord.
    void encode(std::string_view word, Memory& memory, std::vector<uint32_t>& tokens) const;

private:
    struct Slot {
        uint64_t pair = kEmpty;
        uint32_t rank = 0, merged = 0;
    };

    static constexpr uint64_t kEmpty = ~uint64_t{0};

    const Slot* find(uint32_t left, uint32_t right) const;
    void merge(std::string_view word, std::vector<uint32_t>& tokens) const;

    std::array<uint32_t, 256> bytes_;
    std::vector<Slot> merges_;
    unsigned shift_;
    std::unordered_map<std::string, uint32_t> words_;
};

}  // namespace kvatlas::tokenization
