// Learned paths: see tails.h.
#include <algorithm>

#include "index.h"

namespace kvatlas {

namespace {

constexpr size_t kLeastTail = 8;  // shorter ends enter the tables at once

}  // namespace

size_t Index::learn(HolderId holder, KeySpan path) {
    const std::lock_guard write(write_);
    Holder& state = change(holder);
    size_t n_rows = 0;  // blocks from the start that have rows
    while (n_rows < path.size() && state.recency.has(path[n_rows])) ++n_rows;
    const Tail* tail = n_rows == 0 ? nullptr : state.tails.find(path[n_rows - 1]);
    size_t n_held = n_rows;
    if (tail != nullptr) {
        while (n_held < path.size() && n_held - n_rows < tail->size() && path[n_held] == (*tail)[n_held - n_rows]) ++n_held;
    }
    // Blocks are held without those before them if the holder got them otherwise, as from a snapshot.
    bool keeps_tail = path.size() - n_held > kLeastTail;
    for (size_t i = n_held; i < path.size() && keeps_tail; ++i) {
        state.recency.prefetch(path[std::min(i + kAhead, path.size() - 1)]);
        keeps_tail = !state.recency.has(path[i]);
    }
    const bool extends = keeps_tail && tail != nullptr && n_held - n_rows == tail->size();
    if (tail != nullptr && !extends) split(state, path[n_rows - 1], n_held - n_rows);
    if (keeps_tail) {
        const size_t head = extends ? n_rows - 1 : n_held;
        enter(state, path.part(0, head + 1), false);
        Tail rest(path.size() - head - 1);
        path.copy(head + 1, rest.size(), rest.data());
        const std::lock_guard lock(table_lock_);
        state.n_copies += path.size() - (extends ? n_held : head + 1);
        state.tails.put(path[head], std::move(rest));
        mark(path[head]);
        state.count();
    } else {
        enter(state, path, false);
    }
    const size_t n_evicted = shrink(state, path.size());
    sweep_some(path.size() + kBatch);
    return n_evicted;
}

// Enters the first `n_keys` of the tail of `head` into the table; the caller writes their rows, and one of `head`. What
// remains is the tail of the block after them, at the place of `head` in the order of use.
void Index::split(Holder& holder, uint64_t head, size_t n_keys) {
    const Tail tail = *holder.tails.find(head);
    const size_t n_added = std::min(n_keys + 1, tail.size());
    if (n_keys < tail.size() && holder.recency.has(tail[n_keys])) return settle(holder);
    add_all(holder, {tail.data(), n_added});
    if (n_keys < tail.size()) holder.recency.rename(head, tail[n_keys]);
    const std::lock_guard lock(table_lock_);
    holder.tails.take(head);
    holder.n_copies -= n_added;
    if (n_added < tail.size()) {
        holder.tails.put(tail[n_keys], Tail(tail.begin() + static_cast<std::ptrdiff_t>(n_added), tail.end()));
        mark(tail[n_keys]);
    }
    mark(head);
    holder.count();
}

// Evicts up to `n_keys` keys from the tail of the least recently used row; returns how many.
size_t Index::shorten(Holder& holder, size_t n_keys) {
    if (holder.tails.empty()) return 0;
    const std::lock_guard lock(table_lock_);
    const size_t n_evicted = holder.tails.shorten(holder.recency.front().key, n_keys);
    holder.n_copies -= n_evicted;
    return n_evicted;
}

// Enters all tails of a holder. Cost: O(its residencies).
void Index::settle(Holder& holder) {
    if (holder.tails.empty()) return;
    std::vector<KeyRow> rows;
    rows_of(holder, rows);
    for (const uint64_t head : holder.tails.heads()) add_all(holder, *holder.tails.find(head));
    holder.recency.clear();
    for (const KeyRow row : rows) {
        if (!holder.recency.renew(row.key)) holder.recency.push_back(row);
    }
    holder.n_copies -= rows.size() - holder.recency.size();
    const std::lock_guard lock(table_lock_);
    const auto heads = holder.tails.heads();
    holder.tails.clear();
    for (const uint64_t head : heads) mark(head);
    holder.count();
}

// Appends all keys of a holder to `rows`, least recently used first.
void Index::rows_of(const Holder& holder, std::vector<KeyRow>& rows) const {
    std::vector<KeyRow> own;
    own.reserve(holder.recency.size());
    holder.recency.read(std::nullopt, holder.recency.size(), own);
    rows.reserve(rows.size() + holder.recency.size() + holder.tails.size());
    for (const KeyRow row : own) with_tail(holder, row, rows);
}

// Appends a row of a holder to `rows`, after the keys of its tail.
void Index::with_tail(const Holder& holder, KeyRow row, std::vector<KeyRow>& rows) const {
    if (const Tail* tail = holder.tails.empty() ? nullptr : holder.tails.find(row.key)) {
        std::for_each(tail->rbegin(), tail->rend(), [&](uint64_t key) { rows.push_back({key}); });
    }
    rows.push_back(row);
}

bool Index::is_in_tail(const Holder& holder, uint64_t key) const {
    const auto heads = holder.tails.heads();
    return std::ranges::any_of(heads, [&](uint64_t head) {
        const Tail& tail = *holder.tails.find(head);
        return std::ranges::find(tail, key) != tail.end();
    });
}

void Index::add_all(Holder& holder, std::span<const uint64_t> keys) {
    for (size_t begin = 0; begin < keys.size(); begin += kBatch) add(holder, keys.subspan(begin, std::min(kBatch, keys.size() - begin)));
}

// Marks a key in the table if it is the head of a tail of any holder, and unmarks it otherwise.
void Index::mark(uint64_t key) {
    table_.update(key, [&](SetId from) { return from == kEmptySet ? from : marked(key, from & ~kMark); });
}

SetId Index::marked(uint64_t key, SetId set) const {
    bool has_tail = false;
    for_each_tail(key, set, [&](HolderId, const Tail&) { has_tail = true; });
    return has_tail ? set | kMark : set;
}

}  // namespace kvatlas
