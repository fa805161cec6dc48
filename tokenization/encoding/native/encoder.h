// Text to tokens of a byte-level BPE, for the characters whose classes are known.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
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

    // nullopt for a text that is left to somebody else.
    using Tokens = std::optional<std::vector<uint32_t>>;

    // Tokens of texts in UTF-8; none where one has a character that is not known, or a word that is too long. A text that is
    // not known to be in normal form may have inert characters alone. Usable from several threads.
    std::vector<Tokens> encode(std::span<const std::optional<std::string_view>> texts, bool is_normalized);

private:
    // A text's characters.
    struct Characters {
        std::vector<Classes> classes;
        std::vector<size_t> offsets;  // of each, and of the end; empty for ASCII, where they count up
    };

    // What one thread has to itself while it encodes.
    struct Lane {
        std::mutex mutex;
        BytePairs::Memory memory;
    };

    Tokens encode(std::string_view text, Classes needed, BytePairs::Memory& memory) const;
    bool add_plain(std::string_view text, Classes needed, BytePairs::Memory& memory, std::vector<uint32_t>& tokens) const;
    std::optional<Characters> classified(std::string_view text, Classes needed) const;

    CharacterTable characters_;
    Splitter splitter_;
    BytePairs pairs_;
    AddedTokens literal_, normalized_;
    std::array<Lane, 3> lanes_;
};

}  // namespace kvatlas::tokenization
