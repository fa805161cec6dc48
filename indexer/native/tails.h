// Ends of learned paths that are kept as they came: one array of keys per path, behind the block before them.
//
// Most prompts never come again. Their blocks enter the tables only when another path shares a part of them; until then
// they take 8 bytes each, and are evicted without a look at the tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pages.h"

namespace kvatlas {

using Tail = std::vector<uint64_t>;

// The tails of one holder, by head: the key of the block before the first of the tail, which the holder has.
class Tails {
public:
    explicit Tails(Mixer mixer) : tails_(0, mixer) {}

    bool empty() const { return tails_.empty(); }
    size_t size() const { return size_; }  // keys of all tails
    size_t n_bytes() const { return size_ * sizeof(uint64_t) + tails_.size() * kNodeBytes; }

    // Returns the tail of `head`, null if it has none.
    const Tail* find(uint64_t head) const {
        const auto found = tails_.find(head);
        return found == tails_.end() ? nullptr : &found->second;
    }

    // Sets the tail of `head`, which must not be empty.
    void put(uint64_t head, Tail tail) {
        Tail& kept = tails_[head];
        size_ += tail.size() - kept.size();
        kept = std::move(tail);
    }

    // Removes the tail of `head`, and returns it.
    Tail take(uint64_t head) {
        const auto found = tails_.find(head);
        if (found == tails_.end()) return {};
        Tail tail = std::move(found->second);
        size_ -= tail.size();
        tails_.erase(found);
        return tail;
    }

    // Removes up to `n_keys` keys from the end of the tail of `head`; returns how many.
    size_t shorten(uint64_t head, size_t n_keys) {
        const auto found = tails_.find(head);
        if (found == tails_.end()) return 0;
        Tail& tail = found->second;
        n_keys = std::min(n_keys, tail.size());
        size_ -= n_keys;
        tail.resize(tail.size() - n_keys);
        if (tail.empty()) tails_.erase(found);
        return n_keys;
    }

    std::vector<uint64_t> heads() const {
        std::vector<uint64_t> heads;
        for (const auto& [head, tail] : tails_) heads.push_back(head);
        return heads;
    }

    void clear() {
        tails_.clear();
        size_ = 0;
    }

private:
    static constexpr size_t kNodeBytes = 64;
    std::unordered_map<uint64_t, Tail, Mixer> tails_;
    size_t size_ = 0;
};

}  // namespace kvatlas
