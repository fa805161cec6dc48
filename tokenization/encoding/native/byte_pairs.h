// Byte pair encoding of words: the pair with the lowest rank is merged first, the leftmost of equal ones.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
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
    // Longer words are not supported, since the time of merging grows with the square of the length.
    static constexpr size_t kLongestWord = 256;

    // `bytes`: the token of each byte. `merges`: in order of rank. `words`: words that are one token even without merges.
    BytePairs(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges, std::unordered_map<std::string, uint32_t> words);

    // A cached word with its tokens; another word with the same slot replaces it.
    struct CachedWord {
        std::array<uint64_t, 3> bytes{};  // padded with zeros
        uint8_t length = 0, n_tokens = 0;
        std::array<uint32_t, 9> tokens{};
    };

    // Cache of encoded words: 2 MiB as it fills, for one thread at a time.
    class WordCache {
    public:
        // From `calloc`, so that memory without words stays with the system: most threads encode nothing.
        WordCache() : words_(static_cast<CachedWord*>(std::calloc(size_t{1} << kBits, sizeof(CachedWord))), std::free) {
            if (words_ == nullptr) throw std::bad_alloc();
        }
        CachedWord& at(uint64_t hash) { return words_.get()[hash >> (64 - kBits)]; }

    private:
        static constexpr unsigned kBits = 15;
        std::unique_ptr<CachedWord, void (*)(void*)> words_;
    };

    // Appends the tokens of a word, which is neither empty nor longer than kLongestWord.
    void encode(std::string_view word, WordCache& cache, std::vector<uint32_t>& tokens) const;

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
