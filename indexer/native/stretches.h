// Where along a prompt each holder has its blocks.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace kvatlas {

using HolderId = uint32_t;

// Holders along a prompt, as maximal runs of blocks with the same holders; one bit mask of `n_words` words per run.
struct Presence {
    size_t n_words = 0;
    std::vector<size_t> ends;  // block after the last of each run
    std::vector<uint64_t> words;

    size_t n_runs() const { return ends.size(); }
    std::span<const uint64_t> mask(size_t run) const { return std::span(words).subspan(run * n_words, n_words); }
};

// Gap-free blocks [begin, end).
struct Stretch {
    size_t begin, end;
};

// Stretches of blocks that satisfy a condition, in order, none touching another.
class Stretches {
public:
    Stretches() = default;
    explicit Stretches(std::span<const Stretch> list) : list_(list) {}

    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }
    bool has_first() const { return !list_.empty() && list_.front().begin == 0; }

    // Returns the number of gap-free blocks from `block` on.
    size_t length_from(size_t block) const {
        const auto found = first_ending_after(block);
        return found != list_.end() && block >= found->begin ? found->end - block : 0;
    }

    // Returns the first of the gap-free blocks before `end` > 0; `end` if the block before it is missing.
    size_t begin_of(size_t end) const {
        const auto found = first_ending_after(end - 1);
        return found != list_.end() && end > found->begin ? found->begin : end;
    }

    // Returns the end of the last stretch at or before `block`, 0 if there is none.
    size_t last_end(size_t block) const {
        const auto found = first_ending_after(block);
        return found == list_.begin() ? 0 : std::prev(found)->end;
    }

    // Returns where the last run of `n_blocks` within [begin, end) ends; without one, where the run from `begin` on ends.
    size_t last_run_end(size_t begin, size_t end, size_t n_blocks) const {
        for (auto next = list_.end(); next != list_.begin();) {
            const Stretch& each = *--next;
            const size_t first = std::max(each.begin, begin), last = std::min(each.end, end);
            if (first < last && last - first >= n_blocks) return last;
            if (each.begin <= begin) break;
        }
        return std::min(begin + length_from(begin), std::max(begin, end));
    }

private:
    std::span<const Stretch>::iterator first_ending_after(size_t block) const {
        return std::upper_bound(list_.begin(), list_.end(), block, [](size_t b, const Stretch& s) { return b < s.end; });
    }

    std::span<const Stretch> list_;
};

// Returns the blocks that are in both, in `into`.
inline void intersect(Stretches one, Stretches other, std::vector<Stretch>& into) {
    into.clear();
    for (auto a = one.begin(), b = other.begin(); a != one.end() && b != other.end();) {
        const size_t begin = std::max(a->begin, b->begin), end = std::min(a->end, b->end);
        if (begin < end) into.push_back({begin, end});
        if (a->end < b->end) {
            ++a;
        } else {
            ++b;
        }
    }
}

// The stretches of every holder, from one pass over the changes between runs. Cost: O(runs * words + stretches).
class HolderStretches {
public:
    explicit HolderStretches(const Presence& presence) : offsets_(presence.n_words * 64 + 1) {
        struct Ended {
            HolderId holder;
            Stretch stretch;
        };
        std::vector<Ended> ended;
        std::vector<size_t> begins(presence.n_words * 64);
        const std::vector<uint64_t> nobody(presence.n_words);
        std::span<const uint64_t> before = nobody;
        const auto change = [&](std::span<const uint64_t> now, size_t block) {
            for (size_t word = 0; word < presence.n_words; ++word) {
                for (uint64_t bits = before[word] ^ now[word]; bits != 0; bits &= bits - 1) {
                    const size_t holder = word * 64 + static_cast<size_t>(std::countr_zero(bits));
                    if ((now[word] & bits & -bits) != 0) {
                        begins[holder] = block;
                    } else {
                        ended.push_back({static_cast<HolderId>(holder), {begins[holder], block}});
                        ++offsets_[holder + 1];
                    }
                }
            }
            before = now;
        };
        size_t begin = 0;
        for (size_t run = 0; run < presence.n_runs(); begin = presence.ends[run++]) change(presence.mask(run), begin);
        change(nobody, begin);
        for (size_t holder = 1; holder < offsets_.size(); ++holder) offsets_[holder] += offsets_[holder - 1];
        list_.resize(ended.size());
        std::vector<size_t>& next = begins;
        std::copy(offsets_.begin(), offsets_.end() - 1, next.begin());
        for (const Ended& each : ended) list_[next[each.holder]++] = each.stretch;
    }

    Stretches of(HolderId holder) const {
        if (holder + size_t{1} >= offsets_.size()) return {};
        return Stretches(std::span(list_).subspan(offsets_[holder], offsets_[holder + 1] - offsets_[holder]));
    }

private:
    std::vector<size_t> offsets_;  // holder -> first of its stretches in `list_`
    std::vector<Stretch> list_;
};

}  // namespace kvatlas
