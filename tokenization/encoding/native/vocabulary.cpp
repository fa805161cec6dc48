#include "vocabulary.h"

#include <optional>
#include <stdexcept>

#include "characters.h"

namespace kvatlas::tokenization {

namespace {

// Visible characters of Latin-1 stand for the byte of the same value; characters from U+0100 on stand for the other bytes.
constexpr bool is_shown(unsigned byte) { return (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD); }

constexpr std::array<uint16_t, 256> kCharacters = [] {
    std::array<uint16_t, 256> characters{};
    uint16_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) characters[byte] = is_shown(byte) ? static_cast<uint16_t>(byte) : next++;
    return characters;
}();

std::string utf8_of(uint16_t character) {
    if (character < 0x80) return {static_cast<char>(character)};
    return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

std::optional<std::string> bytes_of(std::string_view token) {
    static const auto kBytes = [] {
        std::unordered_map<uint32_t, char> bytes;
        for (unsigned byte = 0; byte < 256; ++byte) bytes.emplace(kCharacters[byte], static_cast<char>(byte));
        return bytes;
    }();
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
        const auto byte = kBytes.find(next_character(token, at));
        if (byte == kBytes.end()) return std::nullopt;
        bytes.push_back(byte->second);
    }
    return bytes;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::pair<std::string_view, uint32_t>> tokens) : tokens_(tokens.begin(), tokens.end()) {
    for (unsigned byte = 0; byte < 256; ++byte) bytes_[byte] = at(utf8_of(kCharacters[byte]));
}

std::vector<Merge> Vocabulary::merges(const std::vector<std::pair<std::string_view, std::string_view>>& pairs) const {
    std::vector<Merge> found;
    found.reserve(pairs.size());
    std::string merged;
    for (const auto& [left, right] : pairs) {
        merged.assign(left).append(right);
        found.push_back({at(left), at(right), at(merged)});
    }
    return found;
}

std::unordered_map<std::string, uint32_t> Vocabulary::words() const {
    std::unordered_map<std::string, uint32_t> found;
    for (const auto& [token, id] : tokens_) {
        if (const auto bytes = bytes_of(token)) found.emplace(*bytes, id);
    }
    return found;
}

uint32_t Vocabulary::at(std::string_view token) const {
    const auto found = tokens_.find(token);
    if (found == tokens_.end()) throw std::invalid_argument("the vocabulary has no token '" + std::string(token) + "'");
    return found->second;
}

}  // namespace kvatlas::tokenization
