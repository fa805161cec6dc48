// Sets of holders, each stored once: keys of one prompt mostly have the same holders, so a key stores a small number.
//
// Two keys have the same holders exactly if their set numbers are equal; a match does bit operations only at changes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "table.h"

namespace kvatlas {

using SlotId = uint32_t;  // bit in a set; the index maps it to a holder

// Part of a bit mask from word `first` on; all other words are zero.
struct MaskView {
    size_t first = 0;
    std::span<const uint64_t> words;

    bool has(SlotId slot) const {
        const size_t word = slot / 64;
        return word >= first && word < first + words.size() && (words[word - first] >> (slot % 64) & 1) != 0;
    }
};

class Sets {
public:
    Sets() : sets_(1), memo_(kMemo) {}

    // Returns the set with `slot` added or removed. Cost: O(1) for a recent transition.
    SetId with(SetId from, SlotId slot) { return transition(from, slot, true); }
    SetId without(SetId from, SlotId slot) { return transition(from, slot, false); }

    MaskView view(SetId set) const { return {sets_[set].first, sets_[set].words}; }
    bool has(SetId set, SlotId slot) const { return view(set).has(slot); }

    // Moves a key from set `from` to set `to`. Sets without keys are dropped.
    void exchange(SetId from, SetId to) {
        ++sets_[to].n_keys;
        if (--sets_[from].n_keys == 0 && from != kEmptySet) forget(from);
    }

    size_t size() const { return sets_.size() - 1 - free_.size(); }
    size_t n_bytes() const { return sets_.size() * (sizeof(Set) + kNodeBytes) + n_words_ * 8 + kMemo * sizeof(Memo); }

private:
    struct Set {
        size_t n_keys = 0;
        uint32_t generation = 0;  // incremented when the number is reused for another set
        uint32_t first = 0;
        std::vector<uint64_t> words;
    };
    struct Memo {
        SetId from = 0, to = 0;
        SlotId slot = ~SlotId{0};
        bool adds = false;
        uint32_t from_generation = 0, to_generation = 0;
    };

    static constexpr size_t kMemo = 4096, kShards = 64, kNodeBytes = 40;

    SetId transition(SetId from, SlotId slot, bool adds) {
        Memo& memo = memo_[(from * 0x9E3779B1u ^ slot * 0x85EBCA77u ^ adds) % kMemo];
        if (memo.from == from && memo.slot == slot && memo.adds == adds &&
            memo.from_generation == sets_[from].generation && memo.to_generation == sets_[memo.to].generation)
            return memo.to;
        const SetId to = change(from, slot, adds);
        memo = {from, to, slot, adds, sets_[from].generation, sets_[to].generation};
        return to;
    }

    SetId change(SetId from, SlotId slot, bool adds) {
        const Set& old = sets_[from];
        const size_t word = slot / 64;
        size_t first = old.words.empty() ? word : std::min<size_t>(old.first, word);
        const size_t end = std::max(word + 1, old.words.empty() ? word + 1 : old.first + old.words.size());
        std::vector<uint64_t> words(end - first);
        if (!old.words.empty()) std::copy(old.words.begin(), old.words.end(), words.begin() + (old.first - first));
        const uint64_t bit = uint64_t{1} << slot % 64;
        words[word - first] = adds ? words[word - first] | bit : words[word - first] & ~bit;
        while (!words.empty() && words.back() == 0) words.pop_back();
        const auto leading = std::find_if(words.begin(), words.end(), [](uint64_t w) { return w != 0; });
        first += static_cast<size_t>(leading - words.begin());
        words.erase(words.begin(), leading);
        return words.empty() ? kEmptySet : intern(static_cast<uint32_t>(first), std::move(words));
    }

    SetId intern(uint32_t first, std::vector<uint64_t> words) {
        const uint64_t hash = hash_of(first, words);
        auto& shard = numbers_[hash % kShards];
        const auto [begin, end] = shard.equal_range(hash);
        for (auto it = begin; it != end; ++it) {
            if (sets_[it->second].first == first && sets_[it->second].words == words) return it->second;
        }
        SetId set;
        if (free_.empty()) {
            set = static_cast<SetId>(sets_.size());
            sets_.emplace_back();
        } else {
            set = free_.back();
            free_.pop_back();
        }
        n_words_ += words.size();
        sets_[set].first = first;
        sets_[set].words = std::move(words);
        shard.emplace(hash, set);
        return set;
    }

    void forget(SetId set) {
        Set& gone = sets_[set];
        const uint64_t hash = hash_of(gone.first, gone.words);
        auto& shard = numbers_[hash % kShards];
        auto it = shard.find(hash);
        while (it->second != set) ++it;
        shard.erase(it);
        n_words_ -= gone.words.size();
        gone.words = {};
        ++gone.generation;
        free_.push_back(set);
    }

    static uint64_t hash_of(uint32_t first, std::span<const uint64_t> words) {
        uint64_t hash = first;
        for (const uint64_t word : words) {
            hash = (hash ^ word) * 0x9E3779B97F4A7C15;
            hash ^= hash >> 32;
        }
        return hash;
    }

    std::deque<Set> sets_;  // number 0 is the empty set; a deque grows without moving its items
    std::vector<SetId> free_;
    std::array<std::unordered_multimap<uint64_t, SetId>, kShards> numbers_;  // shards keep each rehash short
    std::vector<Memo> memo_;
    size_t n_words_ = 0;
};

}  // namespace kvatlas
