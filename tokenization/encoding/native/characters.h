// Character classes, and iteration over a text in UTF-8.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace kvatlas::tokenization {

// Bit set of the classes to which a character belongs.
using Classes = uint32_t;

// Two flags beside the classes. kKnown: the character is supported. kInert: every text of such characters is in normal form.
constexpr Classes kKnown = Classes{1} << 31, kInert = Classes{1} << 30;
constexpr uint32_t kMaxClasses = 30;

// The classes of all characters in the supported ranges; others have no classes.
class CharacterTable {
public:
    struct Range {
        uint32_t begin, end;
    };

    CharacterTable() : classes_(kBasic.end - kBasic.begin + kSymbols.end - kSymbols.begin) {}

    Classes operator[](uint32_t character) const {
        const size_t at = place(character);
        return at < classes_.size() ? classes_[at] : 0;
    }

    void add(Range characters, Classes classes) {
        for (uint32_t character = characters.begin; character < characters.end; ++character) {
            const size_t at = place(character);
            if (at < classes_.size()) classes_[at] |= classes;
        }
    }

    // Removes all classes of characters that are not known.
    void forget_unknown() {
        for (Classes& classes : classes_) classes = (classes & kKnown) == 0 ? 0 : classes;
    }

private:
    static constexpr Range kBasic{0, 0x10000}, kSymbols{0x1F000, 0x1FC00};  // CHARACTERS in characters.py

    static size_t place(uint32_t character) {
        if (character < kBasic.end) return character;
        return character < kSymbols.begin ? ~size_t{0} : kBasic.end + character - kSymbols.begin;
    }

    std::vector<Classes> classes_;
};

inline bool continues_character(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Returns the character at `at` of a well-formed text, and moves `at` to the next one.
inline uint32_t next_character(std::string_view text, size_t& at) {
    const auto first = static_cast<uint8_t>(text[at++]);
    if (first < 0x80) return first;
    uint32_t character = first & (0x7fu >> std::countl_one(first));
    while (at < text.size() && continues_character(text[at])) character = character << 6 | (static_cast<uint8_t>(text[at++]) & 0x3f);
    return character;
}

// Returns the character that ends before `end`, which must not be 0.
inline uint32_t character_before(std::string_view text, size_t end) {
    do --end; while (end > 0 && continues_character(text[end]));
    return next_character(text, end);
}

}  // namespace kvatlas::tokenization
