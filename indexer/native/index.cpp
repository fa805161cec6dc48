#include "index.h"

#include <algorithm>
#include <array>

namespace kvatlas {

Index::Index() : table_(mixer_) {}

Index::Holder& Index::require(HolderId holder) const {
    if (holder >= holders_.size() || holders_[holder] == nullptr) throw UnknownHolder();
    return *holders_[holder];
}

Index::Holder& Index::change(HolderId holder) {
    Holder& state = require(holder);
    state.version = ++clock_;
    return state;
}

// Returns the holder's own number if it is free, so that sets need no translation.
SlotId Index::pick_slot(HolderId holder) const {
    if (holder >= meaning_.size() || meaning_[holder] == kFree) return holder;
    const auto found = std::find(meaning_.begin(), meaning_.end(), kFree);
    return static_cast<SlotId>(found - meaning_.begin());
}

void Index::assign_slot(SlotId slot, HolderId meaning) {
    if (slot >= meaning_.size()) meaning_.resize(slot + 1, kFree);
    const auto is_translated = [slot](HolderId holder) { return holder != kFree && holder != slot; };
    n_translated_ += is_translated(meaning);
    n_translated_ -= is_translated(meaning_[slot]);
    meaning_[slot] = meaning;
}

HolderId Index::open() {
    const std::lock_guard write(write_);
    sweep_some(kBatch);
    const auto holder = free_holders_.empty() ? static_cast<HolderId>(holders_.size()) : free_holders_.back();
    const SlotId slot = pick_slot(holder);
    auto state = std::make_unique<Holder>(*this, slot, std::nullopt);
    const std::lock_guard lock(table_lock_);
    if (free_holders_.empty()) {
        holders_.push_back(std::move(state));
    } else {
        free_holders_.pop_back();
        holders_[holder] = std::move(state);
    }
    assign_slot(slot, holder);
    return holder;
}

void Index::close(HolderId holder) {
    const std::lock_guard write(write_);
    Holder& state = change(holder);
    if (state.n_keys <= kSweptAtOnce) empty(state);
    free_holders_.push_back(holder);
    std::unique_ptr<Holder> gone;
    {
        const std::lock_guard lock(table_lock_);
        assign_slot(state.slot, state.recency.size() == 0 ? kFree : kSwept);
        gone = std::move(holders_[holder]);
    }
    if (gone->recency.size() != 0) {
        gone->recency.abandon();
        gone_.push_back(std::move(gone));
    }
}

void Index::clear(HolderId holder) {
    const std::lock_guard write(write_);
    Holder& state = change(holder);
    if (state.n_keys <= kSweptAtOnce) return empty(state);
    const SlotId slot = pick_slot(holder);
    auto fresh = std::make_unique<Holder>(*this, slot, state.capacity);
    fresh->version = state.version;
    {
        const std::lock_guard lock(table_lock_);
        assign_slot(state.slot, kSwept);
        assign_slot(slot, holder);
        std::swap(holders_[holder], fresh);
    }
    fresh->recency.abandon();
    gone_.push_back(std::move(fresh));
}

size_t Index::store(HolderId holder, KeySpan keys) { return Writer(*this).store(holder, keys); }
size_t Index::keep(HolderId holder, KeySpan keys) { return Writer(*this).keep(holder, keys); }
size_t Index::remove(HolderId holder, KeySpan keys) { return Writer(*this).remove(holder, keys); }

void Index::touch(HolderId holder, KeySpan keys) {
    const std::lock_guard write(write_);
    Holder& state = change(holder);
    settle(state);
    std::array<uint64_t, kBatch> batch;
    for (size_t end = keys.size(); end > 0;) {
        const size_t n_keys = std::min(end, kBatch);
        end -= n_keys;
        keys.copy(end, n_keys, batch.data());
        for (size_t i = n_keys; i-- > 0;) {
            state.recency.prefetch(batch[i >= kAhead ? i - kAhead : 0]);
            state.recency.renew(batch[i]);
        }
    }
    sweep_some(keys.size() + kBatch);
}

size_t Index::set_capacity(HolderId holder, std::optional<size_t> n_blocks) {
    const std::lock_guard write(write_);
    Holder& state = require(holder);
    state.capacity = n_blocks;
    return shrink(state, 0);
}

bool Index::has(HolderId holder, uint64_t key) const {
    const std::shared_lock lock(table_lock_);
    const Holder& state = require(holder);
    return sets_.has(find(key), state.slot) || is_in_tail(state, key);
}

size_t Index::size(HolderId holder) const {
    const std::shared_lock lock(table_lock_);
    return require(holder).n_keys;
}

void Index::read(HolderId holder, size_t n_rows, Page& page) {
    const std::lock_guard write(write_);
    Holder& state = require(holder);
    if (page.after && (page.version != state.version || !state.recency.is_row(*page.after))) throw HolderChanged();
    page.version = state.version;
    std::vector<KeyRow> rows;
    page.after = state.recency.read(page.after, n_rows, rows);
    for (const KeyRow row : rows) with_tail(state, row, page.rows);
    for (const KeyRow row : page.rows) {
        const CopiesRow* repeated = state.repeated.find(row.key);
        page.copies.push_back(repeated != nullptr ? repeated->copies : 1);
    }
}

Contents Index::contents(HolderId holder) {
    const std::lock_guard write(write_);
    const Holder& state = require(holder);
    Contents found;
    rows_of(state, found.keys);
    std::reverse(found.keys.begin(), found.keys.end());
    std::vector<CopiesRow> repeated;
    state.repeated.read(std::nullopt, state.repeated.size(), repeated);
    for (auto row = repeated.rbegin(); row != repeated.rend(); ++row) found.copies.insert(found.copies.end(), row->copies, row->key);
    return found;
}

size_t Index::sweep(size_t n_keys) {
    const std::lock_guard write(write_);
    sweep_some(n_keys);
    size_t n_left = 0;
    for (const auto& gone : gone_) n_left += gone->recency.size() + gone->tails.size();
    return n_left;
}

Statistics Index::statistics() {
    const std::lock_guard write(write_);
    Statistics found{table_.size(), 0, sets_.size(), 0, 0};
    found.n_bytes = table_.n_bytes() + sets_.n_bytes() + key_pool_.n_bytes() + copies_pool_.n_bytes();
    for (const auto& state : holders_) {
        if (state == nullptr) continue;
        found.n_keys += state->tails.size();
        found.n_residencies += state->n_keys;
        found.n_bytes += sizeof *state + state->recency.n_bytes() + state->repeated.n_bytes() + state->tails.n_bytes();
    }
    for (const auto& gone : gone_) found.n_unswept += gone->recency.size() + gone->tails.size();
    return found;
}

// -- several changes by one writer ---------------------------------------------------------------------------------

size_t Index::Writer::total(std::span<const HolderId> holders) const {
    size_t n_keys = 0;
    for (const HolderId holder : holders) n_keys += index_.require(holder).n_keys;
    return n_keys;
}

bool Index::Writer::any_has(std::span<const HolderId> holders, uint64_t key) const {
    const SetId set = index_.find(key);
    return set != kEmptySet && std::ranges::any_of(holders, [&](HolderId holder) { return index_.sets_.has(set, index_.require(holder).slot); });
}

// -- steps --------------------------------------------------------------------------------------------------------

size_t Index::take_in(HolderId holder, KeySpan keys, bool counts_copies) {
    Holder& state = change(holder);
    settle(state);
    enter(state, keys, counts_copies);
    const size_t n_evicted = shrink(state, keys.size());
    sweep_some(keys.size() + kBatch);
    return n_evicted;
}

// Writes the rows of keys, the first as the most recent, and adds those that had none to the table.
void Index::enter(Holder& holder, KeySpan keys, bool counts_copies) {
    std::array<uint64_t, kBatch> batch, fresh;
    for (size_t end = keys.size(); end > 0;) {
        const size_t n_keys = std::min(end, kBatch);
        end -= n_keys;
        keys.copy(end, n_keys, batch.data());
        size_t n_fresh = 0;
        for (size_t i = n_keys; i-- > 0;) {
            holder.recency.prefetch(batch[i >= kAhead ? i - kAhead : 0]);
            const uint64_t key = batch[i];
            if (!holder.recency.renew(key)) {
                holder.recency.push_back({key});
                fresh[n_fresh++] = key;
            } else if (counts_copies) {
                add_copy(holder, key);
            }
        }
        holder.n_copies += counts_copies ? n_keys : n_fresh;
        add(holder, {fresh.data(), n_fresh});
    }
}

size_t Index::take_out(HolderId holder, KeySpan keys) {
    Holder& state = change(holder);
    settle(state);
    std::array<uint64_t, kBatch> batch, dropped;
    size_t n_unknown = 0;
    for (size_t begin = 0; begin < keys.size(); begin += kBatch) {
        const size_t n_keys = std::min(keys.size() - begin, kBatch);
        keys.copy(begin, n_keys, batch.data());
        size_t n_dropped = 0;
        for (size_t i = 0; i < n_keys; ++i) {
            state.recency.prefetch(batch[std::min(i + kAhead, n_keys - 1)]);
            if (CopiesRow* row = state.repeated.find(batch[i])) {
                take_copy(state, *row);
            } else if (state.recency.erase(batch[i])) {
                --state.n_copies;
                dropped[n_dropped++] = batch[i];
            } else {
                ++n_unknown;
            }
        }
        state.count();
        drop(state.slot, {dropped.data(), n_dropped});
    }
    sweep_some(keys.size() + kBatch);
    return n_unknown;
}

void Index::add_copy(Holder& holder, uint64_t key) {
    if (CopiesRow* row = holder.repeated.find(key)) {
        ++row->copies;
    } else {
        holder.repeated.push_back({key, 2});
    }
}

void Index::add(Holder& holder, std::span<const uint64_t> keys) {
    if (keys.empty()) return;
    table_.prepare(keys.size());
    const std::lock_guard lock(table_lock_);
    table_.maintain(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
        table_.prefetch(keys[std::min(i + kAhead, keys.size() - 1)]);
        table_.update(keys[i], [&](SetId found) {
            const SetId from = found & ~kMark, to = sets_.with(from, holder.slot);
            sets_.exchange(from, to);
            return to | (found & kMark);
        });
    }
    holder.count();
}

void Index::drop(SlotId slot, std::span<const uint64_t> keys) {
    if (keys.empty()) return;
    table_.prepare(keys.size());
    const std::lock_guard lock(table_lock_);
    table_.maintain(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
        table_.prefetch(keys[std::min(i + kAhead, keys.size() - 1)]);
        table_.update(keys[i], [&](SetId found) {
            const SetId from = found & ~kMark, to = sets_.without(from, slot);
            sets_.exchange(from, to);
            return from == found || to == kEmptySet ? to : marked(keys[i], to);
        });
    }
}

void Index::take_copy(Holder& holder, CopiesRow& row) {
    --holder.n_copies;
    if (--row.copies == 1) holder.repeated.erase(row.key);
}

// Copies beyond the capacity were announced but do not exist: they are removed first, then keys by recency.
size_t Index::shrink(Holder& holder, size_t n_stored) {
    if (!holder.capacity || holder.n_copies <= *holder.capacity) return 0;
    holder.version = ++clock_;
    std::vector<uint64_t> dropped;
    size_t n_evicted = 0;
    for (size_t n_left = std::min(holder.n_copies - *holder.capacity, n_stored + kSurplusEvicted); n_left > 0;) {
        if (holder.repeated.size() != 0) {
            take_copy(holder, holder.repeated.front());
            --n_left;
            continue;
        }
        if (const size_t n_shortened = shorten(holder, n_left)) {
            n_left -= n_shortened;
            n_evicted += n_shortened;
            continue;
        }
        dropped.push_back(holder.recency.pop_front().key);
        --holder.n_copies;
        --n_left;
        ++n_evicted;
        if (dropped.size() == kBatch) {
            drop(holder.slot, dropped);
            dropped.clear();
        }
    }
    holder.count();
    drop(holder.slot, dropped);
    return n_evicted;
}

void Index::empty(Holder& holder) {
    {
        const std::lock_guard lock(table_lock_);
        holder.tails.clear();
    }
    std::vector<uint64_t> dropped;
    while (holder.recency.size() != 0) {
        dropped.clear();
        holder.recency.drain(kBatch, dropped);
        drop(holder.slot, dropped);
    }
    holder.recency.clear();
    holder.repeated.clear();
    holder.n_copies = 0;
    holder.n_keys = 0;
}

void Index::sweep_some(size_t n_keys) {
    std::vector<uint64_t> dropped;
    while (n_keys > 0 && !gone_.empty()) {
        Holder& gone = *gone_.front();
        dropped.clear();
        gone.recency.drain(std::min(n_keys, kBatch), dropped);
        n_keys -= dropped.size();
        if (!gone.tails.empty()) {
            for (const uint64_t key : dropped) gone.tails.take(key);
        }
        drop(gone.slot, dropped);
        if (gone.recency.size() == 0) {
            const std::lock_guard lock(table_lock_);
            assign_slot(gone.slot, kFree);
            gone_.pop_front();
        }
    }
}

}  // namespace kvatlas
