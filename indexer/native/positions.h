// Hash -> row number in a log, 5.3 bytes per slot: the rows hold the keys, the index only their positions.
//
// A bucket is one cache line with 12 slots. A position that does not fit goes to the next bucket, and each bucket counts
// the positions that passed it. A lookup ends at a bucket with count 0; removal needs neither tombstones nor other keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "pages.h"

namespace kvatlas {

class PositionIndex {
public:
    PositionIndex() = default;

    size_t n_bytes() const { return now_.pages.size() + old_.pages.size(); }

    void prefetch(uint64_t hash) const {
        if (now_.n_buckets != 0) __builtin_prefetch(&now_.home(hash));
    }

    // Returns the position stored under `hash` for which `is_key` holds.
    template <class IsKey>
    std::optional<uint32_t> find(uint64_t hash, IsKey is_key) const {
        auto found = find_in(now_, hash, is_key);
        if (!found && old_.n_buckets != 0) found = find_in(old_, hash, is_key);
        return found ? std::optional(found->bucket->positions[found->slot]) : std::nullopt;
    }

    // Stores a position. To grow, it calls `rows.hash(position)` for stored positions, after `rows.prefetch(position)`.
    template <class Rows>
    void insert(uint64_t hash, uint32_t position, Rows rows) {
        const size_t n = now_.n_buckets;
        if (size_ + 1 > n * kSlots / 5 * 4) {
            resize(n + n / 2 + 2, rows);
        } else if (old_.n_buckets == 0 && n > kKept && size_ < n * kSlots / 8) {
            resize(n / 2, rows);
        }
        // One bucket per insertion finishes well before the next resize.
        if (old_.n_buckets != 0) move(1, rows);
        insert_in(now_, hash, position);
        ++size_;
    }

    void replace(uint64_t hash, uint32_t from, uint32_t to) {
        const auto found = locate(hash, from);
        found.second.bucket->positions[found.second.slot] = to;
    }

    void erase(uint64_t hash, uint32_t position) {
        const auto [area, found] = locate(hash, position);
        erase_in(*area, hash, found);
        --size_;
    }

private:
    static constexpr size_t kSlots = 12;
    static constexpr size_t kKept = 64;  // fewer buckets are not worth returning

    struct alignas(64) Bucket {
        uint8_t tags[kSlots];  // 0: the slot is free
        uint32_t n_passed;     // positions that found this bucket full
        uint32_t positions[kSlots];
    };
    static_assert(sizeof(Bucket) == 64);

    struct Found {
        Bucket* bucket;
        size_t slot;
    };

    struct Area {
        Area() = default;
        // One bucket more than used: heap memory is aligned to 16 bytes only.
        explicit Area(size_t n) : n_buckets(n), pages((n + 1) * sizeof(Bucket)) {}

        Bucket* buckets() const {
            const auto start = reinterpret_cast<std::uintptr_t>(pages.data());
            return reinterpret_cast<Bucket*>((start + sizeof(Bucket) - 1) / sizeof(Bucket) * sizeof(Bucket));
        }
        Bucket& home(uint64_t hash) const { return buckets()[scale(hash, n_buckets)]; }
        Bucket* after(Bucket* bucket) const { return bucket + 1 == buckets() + n_buckets ? buckets() : bucket + 1; }

        size_t n_buckets = 0;
        Pages pages;
    };

    static uint8_t tag_of(uint64_t hash) {
        const auto tag = static_cast<uint8_t>(hash >> 24);  // independent of the bits that select the bucket
        return tag != 0 ? tag : 1;
    }

    // Returns a mask: bit i is set if slot i has `tag`.
    static uint32_t slots_with(const Bucket& bucket, uint8_t tag) {
#if defined(__SSE2__)
        const __m128i tags = _mm_load_si128(reinterpret_cast<const __m128i*>(&bucket));
        const __m128i equal = _mm_cmpeq_epi8(tags, _mm_set1_epi8(static_cast<char>(tag)));
        return static_cast<uint32_t>(_mm_movemask_epi8(equal)) & ((1u << kSlots) - 1);
#else
        uint32_t bits = 0;
        for (size_t slot = 0; slot < kSlots; ++slot) bits |= uint32_t{bucket.tags[slot] == tag} << slot;
        return bits;
#endif
    }

    template <class IsPosition>
    static std::optional<Found> find_in(const Area& area, uint64_t hash, IsPosition is_position) {
        if (area.n_buckets == 0) return std::nullopt;
        Bucket* bucket = &area.home(hash);
        for (size_t n = 0; n < area.n_buckets; ++n, bucket = area.after(bucket)) {
            for (uint32_t bits = slots_with(*bucket, tag_of(hash)); bits != 0; bits &= bits - 1) {
                const auto slot = static_cast<size_t>(__builtin_ctz(bits));
                if (is_position(bucket->positions[slot])) return Found{bucket, slot};
            }
            if (bucket->n_passed == 0) break;
        }
        return std::nullopt;
    }

    // Returns the slot of a stored position.
    std::pair<const Area*, Found> locate(uint64_t hash, uint32_t position) const {
        const auto is_it = [=](uint32_t stored) { return stored == position; };
        if (const auto found = find_in(now_, hash, is_it)) return {&now_, *found};
        return {&old_, *find_in(old_, hash, is_it)};
    }

    static void insert_in(const Area& area, uint64_t hash, uint32_t position) {
        Bucket* bucket = &area.home(hash);
        uint32_t free = slots_with(*bucket, 0);
        for (; free == 0; free = slots_with(*bucket, 0)) {
            ++bucket->n_passed;
            bucket = area.after(bucket);
        }
        const auto slot = static_cast<size_t>(__builtin_ctz(free));
        bucket->tags[slot] = tag_of(hash);
        bucket->positions[slot] = position;
    }

    static void erase_in(const Area& area, uint64_t hash, Found found) {
        for (Bucket* bucket = &area.home(hash); bucket != found.bucket; bucket = area.after(bucket)) --bucket->n_passed;
        found.bucket->tags[found.slot] = 0;
    }

    template <class Rows>
    void resize(size_t n_buckets, Rows rows) {
        move(old_.n_buckets, rows);
        std::swap(old_, now_);
        now_ = Area(n_buckets);
        next_ = 0;
    }

    // Moves the next `n_buckets` old buckets.
    template <class Rows>
    void move(size_t n_buckets, Rows rows) {
        for (; n_buckets > 0 && next_ < old_.n_buckets; --n_buckets, ++next_) {
            Bucket& bucket = old_.buckets()[next_];
            for (size_t slot = 0; slot < kSlots; ++slot) {
                if (bucket.tags[slot] == 0) continue;
                const uint32_t position = bucket.positions[slot];
                const uint64_t hash = rows.hash(position);
                erase_in(old_, hash, {&bucket, slot});
                insert_in(now_, hash, position);
            }
        }
        if (next_ >= old_.n_buckets) {
            old_ = Area();
            return;
        }
        const Bucket& soon = old_.buckets()[next_];
        for (size_t slot = 0; slot < kSlots; ++slot) {
            if (soon.tags[slot] != 0) rows.prefetch(soon.positions[slot]);
        }
    }

    Area now_, old_;
    size_t next_ = 0;  // old buckets before it are moved
    size_t size_ = 0;
};

}  // namespace kvatlas
