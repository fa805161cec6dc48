// The block index; indexer/reference.py is its specification.
//
// Locks: `write_` serializes writers and guards the state of the holders; `table_lock_` guards everything that a match
// reads (table, sets, meaning of slots). Writers update holders first and hold `table_lock_` only for kBatch keys at a time.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include "match.h"
#include "recency.h"
#include "sets.h"
#include "table.h"
#include "tails.h"

namespace kvatlas {

struct UnknownHolder : std::exception {};
struct HolderChanged : std::runtime_error {
    HolderChanged() : std::runtime_error("the holder changed during iteration") {}
};

// Keys in memory of any alignment, as in buffers of Python objects.
class KeySpan {
public:
    KeySpan(const void* data, size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
    size_t size() const { return size_; }
    uint64_t operator[](size_t i) const {
        uint64_t key;
        std::memcpy(&key, data_ + i * sizeof key, sizeof key);
        return key;
    }
    KeySpan part(size_t begin, size_t n) const { return {data_ + begin * sizeof(uint64_t), n}; }
    void copy(size_t begin, size_t n, uint64_t* out) const { std::memcpy(out, data_ + begin * sizeof *out, n * sizeof *out); }

private:
    const char* data_;
    size_t size_;
};

struct Statistics {
    size_t n_keys, n_residencies, n_sets, n_unswept, n_bytes;
};

// Some rows of a holder; `version` and `after` are the cursor for the next page.
struct Page {
    std::vector<KeyRow> rows;
    std::vector<uint64_t> copies;
    uint64_t version = 0;
    std::optional<uint32_t> after;
};

// The contents of a holder: all keys, most recently used first, and each key with several copies, repeated once per copy,
// the latest to get a second copy first.
struct Contents {
    std::vector<KeyRow> keys;
    std::vector<uint64_t> copies;
};

class Index {
public:
    Index();

    HolderId open();
    void close(HolderId holder);
    size_t store(HolderId holder, KeySpan keys);
    size_t keep(HolderId holder, KeySpan keys);
    size_t learn(HolderId holder, KeySpan path);
    size_t remove(HolderId holder, KeySpan keys);
    void clear(HolderId holder);
    void touch(HolderId holder, KeySpan keys);
    size_t set_capacity(HolderId holder, std::optional<size_t> n_blocks);
    bool has(HolderId holder, uint64_t key) const;
    size_t size(HolderId holder) const;
    Presence presence(KeySpan keys) const;

    // Fills `page` with the next rows, up to `n_rows`. Throws HolderChanged if the holder changed since the last page.
    void read(HolderId holder, size_t n_rows, Page& page);

    Contents contents(HolderId holder);

    // Erases up to `n_keys` keys of closed and cleared holders from the table; returns how many remain.
    size_t sweep(size_t n_keys);

    Statistics statistics();

    // Exclusive access for several changes: other writers wait, and reads beside it need no lock, since nobody else writes.
    class Writer {
    public:
        explicit Writer(Index& index) : index_(index), lock_(index.write_) {}
        size_t store(HolderId holder, KeySpan keys) { return index_.take_in(holder, keys, true); }
        size_t keep(HolderId holder, KeySpan keys) { return index_.take_in(holder, keys, false); }
        size_t remove(HolderId holder, KeySpan keys) { return index_.take_out(holder, keys); }
        size_t total(std::span<const HolderId> holders) const;                // sum of their sizes
        bool any_has(std::span<const HolderId> holders, uint64_t key) const;  // one read of the table

    private:
        Index& index_;
        const std::lock_guard<std::mutex> lock_;
    };

private:
    struct Holder {
        Holder(Index& index, SlotId own_slot, std::optional<size_t> bound)
            : slot(own_slot), recency(index.key_pool_, index.mixer_), repeated(index.copies_pool_, index.mixer_), tails(index.mixer_), capacity(bound) {}

        void count() { n_keys = recency.size() + tails.size(); }

        SlotId slot;
        OrderedKeys<KeyRow> recency;
        OrderedKeys<CopiesRow> repeated;  // keys with several copies, in the order in which they got the second one
        Tails tails;                      // guarded by `table_lock_` as well
        std::optional<size_t> capacity;
        size_t n_copies = 0;
        uint64_t version = 0;
        std::atomic<size_t> n_keys = 0;  // size of `recency` and `tails`, for readers
    };

    static constexpr size_t kBatch = 256;            // keys that a writer changes while readers wait: some 20 us
    static constexpr size_t kSweptAtOnce = 4096;     // smaller holders are closed or cleared at once
    static constexpr size_t kSurplusEvicted = 4096;  // index.py, MAX_SURPLUS_EVICTED
    static constexpr size_t kAhead = 8;              // keys between prefetch and use
    static constexpr HolderId kFree = ~HolderId{0}, kSwept = kFree - 1;
    static constexpr SetId kMark = SetId{1} << 31;  // on the set of a key in the table: it may be the head of a tail

    // A tail that a prompt follows.
    struct Followed {
        HolderId holder = 0;
        std::span<const uint64_t> keys;  // those to come
    };

    Holder& require(HolderId holder) const;
    Holder& change(HolderId holder);
    SlotId pick_slot(HolderId holder) const;
    void assign_slot(SlotId slot, HolderId meaning);
    SetId find(uint64_t key) const { return table_.find(key) & ~kMark; }
    void split(Holder& holder, uint64_t head, size_t n_keys);
    void settle(Holder& holder);
    void rows_of(const Holder& holder, std::vector<KeyRow>& rows) const;
    void with_tail(const Holder& holder, KeyRow row, std::vector<KeyRow>& rows) const;
    bool is_in_tail(const Holder& holder, uint64_t key) const;
    void mark(uint64_t key);
    SetId marked(uint64_t key, SetId set) const;
    template <class Visit>
    void for_each_tail(uint64_t head, SetId set, Visit visit) const;
    bool begin_tails(uint64_t head, SetId set, std::vector<Followed>& followed) const;
    static bool follow(std::vector<Followed>& followed, uint64_t key);
    void enter(Holder& holder, KeySpan keys, bool counts_copies);
    void add_all(Holder& holder, std::span<const uint64_t> keys);
    size_t take_in(HolderId holder, KeySpan keys, bool counts_copies);
    size_t take_out(HolderId holder, KeySpan keys);
    void add(Holder& holder, std::span<const uint64_t> keys);
    void drop(SlotId slot, std::span<const uint64_t> keys);
    void add_copy(Holder& holder, uint64_t key);
    void take_copy(Holder& holder, CopiesRow& row);
    size_t shorten(Holder& holder, size_t n_keys);
    size_t shrink(Holder& holder, size_t n_stored);
    void empty(Holder& holder);
    void sweep_some(size_t n_keys);
    void translate(SetId set, std::vector<uint64_t>& mask) const;

    const Mixer mixer_;
    mutable std::shared_mutex table_lock_;
    std::mutex write_;

    Table table_;
    Sets sets_;
    ChunkPool<KeyRow> key_pool_;  // declared before the holders, which return their chunks to it
    ChunkPool<CopiesRow> copies_pool_;
    std::vector<std::unique_ptr<Holder>> holders_;
    std::vector<HolderId> free_holders_;
    std::vector<HolderId> meaning_;  // slot -> holder, kFree, or kSwept while keys of a closed holder refer to it
    size_t n_translated_ = 0;        // slots in use whose number differs from their holder's

    std::deque<std::unique_ptr<Holder>> gone_;  // contents of closed and cleared holders, to be swept
    uint64_t clock_ = 0;
};

// Calls `visit` with each holder in `set` that has a tail of `head`, and the tail.
template <class Visit>
void Index::for_each_tail(uint64_t head, SetId set, Visit visit) const {
    const MaskView view = sets_.view(set);
    for (size_t i = 0; i < view.words.size(); ++i) {
        for (uint64_t bits = view.words[i]; bits != 0; bits &= bits - 1) {
            const HolderId holder = meaning_[(view.first + i) * 64 + static_cast<size_t>(std::countr_zero(bits))];
            if (holder >= kSwept || holders_[holder]->tails.empty()) continue;
            if (const Tail* tail = holders_[holder]->tails.find(head)) visit(holder, *tail);
        }
    }
}

}  // namespace kvatlas
