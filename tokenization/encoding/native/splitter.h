// Splits a text into words by regular expressions, as a tokenizer's Split stages do.
//
// Expressions are compiled before: characters are sets of classes, and an expression is a list of alternatives. The first
// alternative that matches is taken, with backtracking as in Oniguruma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "characters.h"

namespace kvatlas::tokenization {

struct Element {
    enum class Kind : uint8_t {
        set,        // lowest .. highest characters of a class, as many as possible
        not_ahead,  // no character of a class follows
        one_of,     // the first of `choices` that leads to a match
    };
    Kind kind;
    Classes classes = 0;
    uint32_t lowest = 1, highest = 1;  // a choice with lowest 0 is optional
    bool is_possessive = false;
    std::vector<std::vector<Classes>> choices;  // each is a sequence of characters
};

struct Alternative {
    Classes first = 0;  // classes with which a match can begin
    std::vector<Element> elements;
};

struct Stage {
    bool drops_gaps = false;  // text that no alternative matches is dropped
    std::vector<Alternative> alternatives;
};

class Splitter {
public:
    explicit Splitter(std::vector<Stage> stages) : stages_(std::move(stages)) {}

    // Calls visit(begin, end) for each word in order; false if text would have to be dropped.
    template <class Visit>
    bool split(std::span<const Classes> text, Visit&& visit) const {
        return split_by(0, text, 0, text.size(), visit);
    }

private:
    static constexpr size_t kNoMatch = ~size_t{0};

    template <class Visit>
    bool split_by(size_t number, std::span<const Classes> text, size_t begin, size_t end, Visit& visit) const {
        if (number == stages_.size()) {
            visit(begin, end);
            return true;
        }
        const Stage& stage = stages_[number];
        size_t gap = begin;
        for (size_t at = begin; at < end;) {
            const size_t match = match_at(stage, text.first(end), at);
            if (match == kNoMatch) {
                ++at;
                continue;
            }
            if (gap < at && (stage.drops_gaps || !split_by(number + 1, text, gap, at, visit))) return false;
            if (!split_by(number + 1, text, at, match, visit)) return false;
            gap = at = match;
        }
        return gap == end || (!stage.drops_gaps && split_by(number + 1, text, gap, end, visit));
    }

    static size_t match_at(const Stage& stage, std::span<const Classes> text, size_t at);

    std::vector<Stage> stages_;
};

}  // namespace kvatlas::tokenization
