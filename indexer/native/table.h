// Key -> holder set, for all holders: one flat table with one read per prompt block.
//
// Linear probing over packed 12-byte slots, with home positions in the order of the hashes. The order is the same at every
// size, so resizing moves the old slots from first to last: keys with an old home before the frontier are in the new
// slots, all others in the old ones. A lookup reads one area only, memory before the frontier is returned on the way, and
// no step moves more than a few thousand slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

#include "pages.h"

namespace kvatlas {

using SetId = uint32_t;
inline constexpr SetId kEmptySet = 0;

class Table {
public:
    explicit Table(Mixer mixer) : mixer_(mixer), now_(kMinHomes) {}

    size_t size() const { return size_; }
    size_t n_bytes() const { return now_.n_bytes() + old_.n_bytes() - released_; }

    void prefetch(uint64_t key) const {
        const uint64_t hash = mixer_(key);
        __builtin_prefetch(&area(hash).first(hash));
    }

    SetId find(uint64_t key) const {
        const uint64_t hash = mixer_(key);
        const Slot* slot = &area(hash).first(hash);
        while (slot->set != kEmptySet && slot->key != key) ++slot;
        return slot->set;
    }

    // Replaces the set of `key` by the result of `change`; kEmptySet means an absent key on both sides.
    // Throws std::bad_alloc if keys collide more than chance allows.
    template <class Change>
    void update(uint64_t key, Change change) {
        const uint64_t hash = mixer_(key);
        const Area& in = area(hash);
        Slot* slot = &in.first(hash);
        while (slot->set != kEmptySet && slot->key != key) ++slot;
        const SetId from = slot->set;
        if (slot + 1 == in.end()) throw std::bad_alloc();  // the last slot stays empty: it ends every probe
        const SetId to = change(from);
        *slot = {key, to};
        if (from == kEmptySet && to != kEmptySet) ++size_;
        if (from != kEmptySet && to == kEmptySet) {
            --size_;
            close_gap(in, static_cast<size_t>(slot - in.slots()));
        }
    }

    // First half of resizing: allocates memory for the second half, and frees the memory that it has left. Both may take
    // long, and need no lock against readers.
    void prepare(size_t n_keys) {
        if (left_.n_homes != 0) {
            left_ = Area();
            now_.pages.settle();
        }
        if (old_.n_homes == 0) {
            const size_t wanted = wanted_homes(n_keys);
            if (wanted == now_.n_homes) return;
            next_ = Area(wanted);
            populated_ = 0;
            populate(next_, 0);
        } else {
            const size_t passed = frontier_ * sizeof(Slot) / kHugePage * kHugePage;
            old_.pages.release(released_, passed);
            released_ = passed;
            const auto share = static_cast<double>(frontier_) / static_cast<double>(old_.n_slots());
            populate(now_, static_cast<size_t>(share * static_cast<double>(now_.n_bytes())));
        }
    }

    // Second half of resizing, called after `prepare` and before up to `n_keys` insertions or removals. Moves a bounded
    // number of slots.
    void maintain(size_t n_keys) {
        if (next_.n_homes != 0) {
            std::swap(old_, now_);
            std::swap(now_, next_);
            frontier_ = released_ = 0;
        }
        if (old_.n_homes != 0) {
            const bool is_late = size_ + n_keys > now_.n_homes / 8 * 7;  // kMovesPerKey prevents this; checked all the same
            move(is_late ? old_.n_slots() : kMinMoves + n_keys * kMovesPerKey);
        }
    }

private:
    struct __attribute__((packed)) Slot {
        uint64_t key;
        SetId set;
    };

    static constexpr size_t kMinHomes = 512;
    static constexpr size_t kMaxTail = 4096;  // probes past the last home; clusters are far shorter at load 0.8
    static constexpr size_t kMovesPerKey = 16, kMinMoves = 512;
    static constexpr size_t kPopulated = size_t{128} << 10;

    struct Area {
        Area() = default;
        explicit Area(size_t n) : n_homes(n), pages(n_slots() * sizeof(Slot)) {}

        Slot* slots() const { return static_cast<Slot*>(pages.data()); }
        Slot* end() const { return slots() + n_slots(); }
        size_t n_slots() const { return n_homes == 0 ? 0 : n_homes + std::min(n_homes, kMaxTail); }
        size_t n_bytes() const { return pages.size(); }
        Slot& first(uint64_t hash) const { return slots()[scale(hash, n_homes)]; }

        size_t n_homes = 0;
        Pages pages;
    };

    const Area& area(uint64_t hash) const {
        return old_.n_homes != 0 && scale(hash, old_.n_homes) >= frontier_ ? old_ : now_;
    }

    // Closes the gap at `at` by moving later keys of the cluster back, so that probes can stop at the first empty slot.
    void close_gap(const Area& in, size_t at) const {
        Slot* slots = in.slots();
        for (size_t next = at + 1; slots[next].set != kEmptySet; ++next) {
            if (scale(mixer_(slots[next].key), in.n_homes) <= at) {
                slots[at] = slots[next];
                slots[next].set = kEmptySet;
                at = next;
            }
        }
    }

    // Load stays between 0.64 and 0.8 except while shrinking: memory matters more than the number of resizes.
    size_t wanted_homes(size_t n_keys) const {
        const size_t after = size_ + n_keys;
        if (after > now_.n_homes / 5 * 4) return std::max(now_.n_homes / 4 * 5, after / 2 * 3);
        if (after < now_.n_homes / 5) return std::max(kMinHomes, now_.n_homes / 2);
        return now_.n_homes;
    }

    // Populates the pages of new slots from `begin` on, a little more than one batch of moves fills.
    void populate(const Area& target, size_t begin) {
        const size_t end = begin + 2 * kPopulated;
        if (begin + kPopulated <= populated_) return;
        target.pages.populate(std::max(begin, populated_), end);
        populated_ = end;
    }

    // Moves at least `n_slots` old slots and the rest of the last cluster: the frontier is always at the start of one.
    void move(size_t n_slots) {
        const size_t end = old_.n_slots();
        const size_t goal = std::min(end, frontier_ + n_slots);
        const Slot* from = old_.slots();
        size_t at = frontier_;
        for (; at < goal || (at < end && from[at].set != kEmptySet); ++at) {
            if (from[at].set == kEmptySet) continue;
            Slot* to = &now_.first(mixer_(from[at].key));
            while (to->set != kEmptySet) ++to;
            if (to + 1 >= now_.end()) throw std::bad_alloc();
            *to = from[at];
        }
        frontier_ = at;
        if (frontier_ >= end) {
            std::swap(old_, left_);
            released_ = 0;
        }
    }

    Mixer mixer_;
    Area now_, old_;
    Area next_;             // allocated by `prepare`, used by `maintain`
    Area left_;             // emptied by `maintain`, freed by `prepare`
    size_t frontier_ = 0;   // old slots before it have been moved
    size_t released_ = 0;   // bytes of old slots returned
    size_t populated_ = 0;  // bytes of new slots whose pages were populated
    size_t size_ = 0;
};

}  // namespace kvatlas
