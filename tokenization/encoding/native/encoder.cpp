#include "encoder.h"

namespace kvatlas::tokenization {

namespace {

// Calls token(id) for each added token in a text, and plain(part) for the text between them; stops if `plain` returns false.
template <class Token, class Plain>
bool split_at_tokens(const AddedTokens& added, std::string_view text, Token token, Plain plain) {
    size_t begin = 0;
    AddedTokens::Search search(added, text);
    for (AddedTokens::Match match{}; search.find(begin, match); begin = match.end) {
        if (begin < match.begin && !plain(text.substr(begin, match.begin - begin))) return false;
        token(match.id);
    }
    return begin == text.size() || plain(text.substr(begin));
}

}  // namespace

std::vector<Encoder::Tokens> Encoder::encode(std::span<const std::optional<std::string_view>> texts, bool is_normalized) {
    std::unique_lock<std::mutex> held;
    Lane* free = nullptr;
    for (Lane& lane : lanes_) {
        held = std::unique_lock(lane.mutex, std::try_to_lock);
        free = &lane;
        if (held) break;
    }
    if (!held) held = std::unique_lock(free->mutex);
    std::vector<Tokens> found;
    found.reserve(texts.size());
    for (const auto& text : texts) {
        found.push_back(text ? encode(*text, is_normalized ? kKnown : kInert, free->cache) : std::nullopt);
    }
    return found;
}

Encoder::Tokens Encoder::encode(std::string_view text, Classes needed, BytePairs::WordCache& cache) const {
    std::vector<uint32_t> tokens;
    tokens.reserve(text.size() / 3 + 8);
    const auto token = [&](uint32_t id) { tokens.push_back(id); };
    const bool is_known = split_at_tokens(literal_, text, token, [&](std::string_view part) {
        return split_at_tokens(normalized_, part, token, [&](std::string_view plain) { return add_plain(plain, needed, cache, tokens); });
    });
    if (!is_known) return std::nullopt;
    return tokens;
}

bool Encoder::add_plain(std::string_view text, Classes needed, BytePairs::WordCache& cache, std::vector<uint32_t>& tokens) const {
    const auto characters = classified(text, needed);
    if (!characters) return false;
    const auto& offsets = characters->offsets;
    bool is_short = true;
    const bool is_split = splitter_.split(characters->classes, [&](size_t begin, size_t end) {
        if (!offsets.empty()) {
            begin = offsets[begin];
            end = offsets[end];
        }
        if (end - begin > BytePairs::kLongestWord) {
            is_short = false;
        } else {
            pairs_.encode(text.substr(begin, end - begin), cache, tokens);
        }
    });
    return is_split && is_short;
}

std::optional<Encoder::Characters> Encoder::classified(std::string_view text, Classes needed) const {
    Characters found;
    auto& [classes, offsets] = found;
    classes.reserve(text.size());
    size_t at = 0;
    for (; at < text.size() && static_cast<uint8_t>(text[at]) < 0x80; ++at) {
        classes.push_back(characters_[static_cast<uint8_t>(text[at])]);
        if ((classes.back() & needed) == 0) return std::nullopt;
    }
    if (at == text.size()) return found;
    offsets.reserve(text.size() + 1);
    for (size_t before = 0; before < at; ++before) offsets.push_back(before);
    while (at < text.size()) {
        offsets.push_back(at);
        classes.push_back(characters_[next_character(text, at)]);
        if ((classes.back() & needed) == 0) return std::nullopt;
    }
    offsets.push_back(at);
    return found;
}

}  // namespace kvatlas::tokenization
