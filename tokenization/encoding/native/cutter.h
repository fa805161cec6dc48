// Cuts a text before added tokens and between words, in one pass. `Cuts` in cuts.py has the contract.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "added_tokens.h"
#include "characters.h"

namespace kvatlas::tokenization {

class Cutter {
public:
    // A text may be cut after a character of `letters` and before one of `followers`, which are single bytes.
    Cutter(AddedTokens tokens, CharacterTable letters, std::string followers)
        : tokens_(std::move(tokens)), letters_(std::move(letters)), followers_(std::move(followers)) {}

    // Calls visit(part) with each segment in order. `size`: characters, at least 1.
    template <class Visit>
    void cut(std::string_view text, bool is_ascii, size_t size, Visit visit) const {
        const size_t shortest = size < 8 ? 1 : size / 8;
        AddedTokens::Search search(tokens_, text);
        AddedTokens::Match match{0, 0, 0};
        for (size_t begin = 0, end = 0; end < text.size();) {
            end = search.find(match.end, match) ? match.begin : text.size();
            for (size_t word = 0; (word = word_cut(text, is_ascii, begin, size, end)) != end; begin = word) {
                visit(text.substr(begin, word - begin));
            }
            const bool is_long = behind(text, is_ascii, begin, shortest, end) <= end;
            if (is_long || (begin < end && end == text.size())) {
                visit(text.substr(begin, end - begin));
                begin = end;
            }
        }
    }

private:
    // Returns the offset `n` characters after `at`; more than `end` if there are fewer characters before it.
    static size_t behind(std::string_view text, bool is_ascii, size_t at, size_t n, size_t end) {
        if (is_ascii) return at + n;
        constexpr size_t kBlock = 64;
        while (end - at >= kBlock) {
            size_t n_begun = 0;
            for (size_t i = 0; i < kBlock; ++i) n_begun += !continues_character(text[at + i]);
            if (n_begun > n) break;
            n -= n_begun;
            at += kBlock;
        }
        for (; at < end; ++at) {
            if (continues_character(text[at])) continue;
            if (n == 0) return at;
            --n;
        }
        return n == 0 ? end : end + 1;
    }

    // Returns the first place between words at least `size` characters after `begin`; `end` if there is none.
    size_t word_cut(std::string_view text, bool is_ascii, size_t begin, size_t size, size_t end) const {
        if (followers_.empty()) return end;
        for (size_t at = behind(text, is_ascii, begin, size, end); at < end; ++at) {
            if (followers_.find(text[at]) != followers_.npos && letters_[character_before(text, at)] != 0) return at;
        }
        return end;
    }

    AddedTokens tokens_;
    CharacterTable letters_;
    std::string followers_;
};

}  // namespace kvatlas::tokenization
