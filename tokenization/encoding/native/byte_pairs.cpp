#include "byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace kvatlas::tokenization {

namespace {

uint64_t fold(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Arbitrary odd multipliers with well-mixed bits.
constexpr uint64_t kOdd1 = 0x9E3779B97F4A7C15, kOdd2 = 0xC2B2AE3D27D4EB4F, kOdd3 = 0x165667B19E3779F9;

uint64_t pair_of(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

}  // namespace

BytePairs::BytePairs(const std::array<uint32_t, 256>& bytes, const std::vector<Merge>& merges, std::unordered_map<std::string, uint32_t> words)
    : bytes_(bytes), merges_(std::bit_ceil(merges.size() + merges.size() / 2 + 2)),
      shift_(64 - static_cast<unsigned>(std::countr_zero(merges_.size()))), words_(std::move(words)) {
    for (uint32_t rank = 0; rank < merges.size(); ++rank) {
        const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
        size_t at = pair * kOdd1 >> shift_;
        while (merges_[at].pair != kEmpty && merges_[at].pair != pair) at = (at + 1) & (merges_.size() - 1);
        merges_[at] = {pair, rank, merges[rank].merged};
    }
}

const BytePairs::Slot* BytePairs::find(uint32_t left, uint32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t at = pair * kOdd1 >> shift_;; at = (at + 1) & (merges_.size() - 1)) {
        if (merges_[at].pair == pair) return &merges_[at];
        if (merges_[at].pair == kEmpty) return nullptr;
    }
}

void BytePairs::encode(std::string_view word, WordCache& cache, std::vector<uint32_t>& tokens) const {
    std::array<uint64_t, 3> bytes{};
    if (word.size() > sizeof bytes) return merge(word, tokens);
    std::memcpy(bytes.data(), word.data(), word.size());
    const uint64_t hash = fold(bytes[0] ^ kOdd1, bytes[1] ^ kOdd2) ^ fold(bytes[2] ^ kOdd3, word.size() ^ kOdd1);
    CachedWord& known = cache.at(hash * kOdd2);
    if (known.length == word.size() && known.bytes == bytes) {
        tokens.insert(tokens.end(), known.tokens.begin(), known.tokens.begin() + known.n_tokens);
        return;
    }
    const size_t before = tokens.size();
    merge(word, tokens);
    const size_t n_tokens = tokens.size() - before;
    if (n_tokens > known.tokens.size()) return;
    known.bytes = bytes;
    known.length = static_cast<uint8_t>(word.size());
    known.n_tokens = static_cast<uint8_t>(n_tokens);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(before), n_tokens, known.tokens.begin());
}

void BytePairs::merge(std::string_view word, std::vector<uint32_t>& tokens) const {
    if (!words_.empty()) {
        const auto found = words_.find(std::string(word));
        if (found != words_.end()) {
            tokens.push_back(found->second);
            return;
        }
    }
    constexpr uint32_t kNever = ~uint32_t{0};
    struct Part {
        uint32_t token, rank, merged;  // rank and merged: of its pair with the next part
    };
    std::array<Part, kLongestWord> parts;
    size_t n = word.size();
    const auto rate = [&](size_t at) {
        const Slot* slot = at + 1 < n ? find(parts[at].token, parts[at + 1].token) : nullptr;
        parts[at].rank = slot == nullptr ? kNever : slot->rank;
        parts[at].merged = slot == nullptr ? 0 : slot->merged;
    };
    for (size_t at = 0; at < n; ++at) parts[at].token = bytes_[static_cast<uint8_t>(word[at])];
    for (size_t at = 0; at < n; ++at) rate(at);
    const auto lower = [](const Part& one, const Part& other) { return one.rank < other.rank; };
    for (;;) {
        const auto best = std::min_element(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(n), lower);
        if (best->rank == kNever) break;
        const auto at = static_cast<size_t>(best - parts.begin());
        parts[at].token = best->merged;
        std::copy(best + 2, parts.begin() + static_cast<std::ptrdiff_t>(n), best + 1);
        --n;
        rate(at);
        if (at > 0) rate(at - 1);
    }
    for (size_t at = 0; at < n; ++at) tokens.push_back(parts[at].token);
}

}  // namespace kvatlas::tokenization
