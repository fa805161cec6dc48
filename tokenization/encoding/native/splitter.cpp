#include "splitter.h"

namespace kvatlas::tokenization {

namespace {

constexpr size_t kNoMatch = ~size_t{0};

size_t match(std::span<const Element> elements, std::span<const Classes> text, size_t at);

size_t match_set(std::span<const Element> elements, std::span<const Classes> text, size_t at) {
    const Element& element = elements.front();
    const auto rest = elements.subspan(1);
    const size_t longest = text.size() - at < element.highest ? text.size() : at + element.highest;
    size_t end = at;
    while (end < longest && (text[end] & element.classes) != 0) ++end;
    if (end - at < element.lowest) return kNoMatch;
    if (rest.empty()) return end;
    const size_t shortest = element.is_possessive ? end : at + element.lowest;
    for (;; --end) {
        const size_t found = match(rest, text, end);
        if (found != kNoMatch || end == shortest) return found;
    }
}

size_t match_one_of(std::span<const Element> elements, std::span<const Classes> text, size_t at) {
    const Element& element = elements.front();
    const auto rest = elements.subspan(1);
    for (const auto& choice : element.choices) {
        if (text.size() - at < choice.size()) continue;
        size_t n = 0;
        while (n < choice.size() && (text[at + n] & choice[n]) != 0) ++n;
        if (n < choice.size()) continue;
        const size_t found = match(rest, text, at + n);
        if (found != kNoMatch) return found;
    }
    return element.lowest == 0 ? match(rest, text, at) : kNoMatch;
}

size_t match(std::span<const Element> elements, std::span<const Classes> text, size_t at) {
    if (elements.empty()) return at;
    const Element& element = elements.front();
    switch (element.kind) {
        case Element::Kind::set:
            return match_set(elements, text, at);
        case Element::Kind::one_of:
            return match_one_of(elements, text, at);
        case Element::Kind::not_ahead:
            if (at < text.size() && (text[at] & element.classes) != 0) return kNoMatch;
            return match(elements.subspan(1), text, at);
    }
    return kNoMatch;
}

}  // namespace

size_t Splitter::match_at(const Stage& stage, std::span<const Classes> text, size_t at) {
    for (const Alternative& alternative : stage.alternatives) {
        if ((alternative.first & text[at]) == 0) continue;
        const size_t end = match(alternative.elements, text, at);
        if (end != kNoMatch) return end;
    }
    return kNoMatch;
}

}  // namespace kvatlas::tokenization
