// Text to tokens of a byte-level BPE, for the characters whose classes are known.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "byte_pairs.h"
#include "characters.h"
#include "splitter.h"

namespace kvatlas::tokenization {

class Encoder {
public:
    // `literal` tokens are looked for before the others, which are looked for between them.
    Encoder(CharacterTable characters, Splitter splitter, BytePairs pairs, AddedTokens literal, AddedTokens normalized)
        : characters_(std::move(characters)), splitter_(std::move(splitter)), pairs_(std::move(pairs)), literal_(std::move(literal)),
          normalized_(std::move(normalized)) {}

    // Tokens of a text in UTF-8; nullopt where it has a character that is not known, or a word that is too long. One that is not
    // known to be in normal form may have inert characters alone.
    std::optional<std::vector<uint32_t>> encode(std::string_view text, bool is_normalized);

    // Encoding changes the memory of words: one thread at a time.
    std::mutex& mutex() { return mutex_; }

private:
    // A text's characters.
    struct Characters {
        std::vector<Classes> classes;
        std::vector<size_t> offsets;  // of each, and of the end; empty for ASCII, where they count up
    };

    bool add_plain(std::string_view text, Classes needed, std::vector<uint32_t>& tokens);
    std::optional<Characters> classified(std::string_view text, Classes needed) const;

    CharacterTable characters_;
    Splitter splitter_;
    BytePairs pairs_;
    AddedTokens literal_, normalized_;
    std::mutex mutex_;
};

}  // namespace kvatlas::tokenization
