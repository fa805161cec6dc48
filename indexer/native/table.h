// Key -> holder set, for all holders: one flat table that is read once per prompt block.
//
// Linear probing over packed 12-byte slots, at home positions in the order of the hashes. Because the order stays the
// same at every size, resizing walks the old slots from the first to the last: keys whose old home lies before the
// frontier are in the new slots, all others in the old ones. A lookup looks in one place only, memory behind the
// frontier is returned on the way, and no step moves more than a few thousand slots.
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

    // The set of `key`, to be changed in place; a new key starts with kEmptySet and must get a set at once.
    // Throws std::bad_alloc when keys collide beyond all chance.
    SetId take(uint64_t key, size_t& at) {
        const uint64_t hash = mixer_(key);
        Area& in = area(hash);
        Slot* slot = &in.first(hash);
        while (slot->set != kEmptySet && slot->key != key) ++slot;
        if (slot->set == kEmptySet) {
            if (slot + 1 == in.end()) throw std::bad_alloc();  // the last slot stays empty: it ends every probe
            slot->key = key;
            ++size_;
        }
        at = static_cast<size_t>(slot - in.slots());
        return slot->set;
    }

    // Gives the key found by `take` its set; kEmptySet removes it.
    void put(uint64_t key, size_t at, SetId set) {
        Area& in = area(mixer_(key));
        in.slots()[at].set = set;
        if (set == kEmptySet) {
            --size_;
            close_gap(in, at);
        }
    }

    // To be called before up to `n_keys` insertions or removals: starts or continues resizing, in bounded steps.
    void maintain(size_t n_keys) {
        if (old_.n_homes != 0) {
            const bool is_late = size_ + n_keys > now_.n_homes / 8 * 7;  // cannot happen at kMovesPerKey, but must not
            move(is_late ? old_.n_slots() : n_keys * kMovesPerKey);
            if (old_.n_homes != 0) return;
        }
        if (size_ + n_keys > now_.n_homes / 5 * 4) {
            resize(std::max(now_.n_homes / 4 * 5, (size_ + n_keys) / 5 * 8));
        } else if (now_.n_homes > kMinHomes && size_ + n_keys < now_.n_homes / 5) {
            resize(std::max(kMinHomes, now_.n_homes / 2));
        }
    }

    // Touches the new slots that the next steps of resizing will fill. Needs no lock against readers.
    void populate_ahead() {
        if (old_.n_homes == 0) return;
        const auto share = static_cast<double>(frontier_) / static_cast<double>(old_.n_slots());
        const auto begin = static_cast<size_t>(share * static_cast<double>(now_.n_bytes()));
        const size_t end = begin + kHugePage;
        if (end > populated_) {
            now_.pages.populate(std::max(begin, populated_), end);
            populated_ = end / kHugePage * kHugePage;
        }
    }

private:
    struct __attribute__((packed)) Slot {
        uint64_t key;
        SetId set;
    };

    static constexpr size_t kMinHomes = 512;
    static constexpr size_t kMaxTail = 4096;  // probes past the last home; clusters are far shorter at load 0.8
    static constexpr size_t kMovesPerKey = 16;

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
    Area& area(uint64_t hash) { return const_cast<Area&>(static_cast<const Table*>(this)->area(hash)); }

    // Closes the gap at `at` by moving later keys of the cluster back, so that probes may end at the first empty slot.
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

    void resize(size_t n_homes) {
        Area larger(n_homes);
        std::swap(old_, now_);
        now_ = std::move(larger);
        frontier_ = released_ = populated_ = 0;
        move(kMinHomes);
    }

    // Moves at least `n_slots` old slots, and then on to the end of the cluster: the frontier is always at its start.
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
            old_ = Area();
            released_ = 0;
            return;
        }
        const size_t passed = frontier_ * sizeof(Slot) / kHugePage * kHugePage;
        old_.pages.release(released_, passed);
        released_ = passed;
    }

    Mixer mixer_;
    Area now_, old_;
    size_t frontier_ = 0;   // old slots before it are moved
    size_t released_ = 0;   // bytes of old slots given back
    size_t populated_ = 0;  // bytes of new slots known to be there
    size_t size_ = 0;
};

}  // namespace kvatlas
