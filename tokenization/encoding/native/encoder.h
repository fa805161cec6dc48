// Encoder of a byte-level BPE, for texts of known characters.
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
    // `literal` tokens are searched for first, `normalized` ones in the text between them.
    Encoder(CharacterTable characters, Splitter splitter, BytePairs pairs, AddedTokens literal, AddedTokens normalized)
        : characters_(std::move(characters)), splitter_(std::move(splitter)), pairs_(std::move(pairs)), literal_(std::move(literal)),
          normalized_(std::move(normalized)) {}

    // nullopt for a text that is not supported.
    using Tokens = std::optional<std::vector<uint32_t>>;

    // Encodes texts in UTF-8. A text with an unknown character or too long a word is not supported; nor is one with other
    // than inert characters, unless `is_normalized`. Usable from several threads.
    std::vector<Tokens> encode(std::span<const std::optional<std::string_view>> texts, bool is_normalized);

private:
    // A text's characters.
    struct Characters {
        std::vector<Classes> classes;
        std::vector<size_t> offsets;  // byte offset of each character and of the end; empty for ASCII, for which index and offset are equal
    };

    // State that one thread uses exclusively while it encodes.
    struct Lane {
        std::mutex mutex;
        BytePairs::WordCache cache;
    };

    Tokens encode(std::string_view text, Classes needed, BytePairs::WordCache& cache) const;
    bool add_plain(std::string_view text, Classes needed, BytePairs::WordCache& cache, std::vector<uint32_t>& tokens) const;
    std::optional<Characters> classified(std::string_view text, Classes needed) const;

    CharacterTable characters_;
    Splitter splitter_;
    BytePairs pairs_;
    AddedTokens literal_, normalized_;
    std::array<Lane, 3> lanes_;
};

}  // namespace kvatlas::tokenization
