#include "ledger.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "xxh3.h"

namespace kvatlas {

namespace {

constexpr std::string_view kDefaultMedium = "GPU";
constexpr size_t kAhead = 8;        // hashes between prefetch and use
constexpr size_t kEventsAhead = 4;  // events between prefetch and use: many have one block

bool is_same_medium(std::string_view sent, std::string_view upper) {
    if (sent.empty()) sent = kDefaultMedium;
    return std::equal(sent.begin(), sent.end(), upper.begin(), upper.end(), [](char s, char u) {
        return (s >= 'a' && s <= 'z' ? static_cast<char>(s - 'a' + 'A') : s) == u;
    });
}

bool is_same(std::string_view sent, const std::optional<std::string>& known) {
    return (sent.data() != nullptr) == known.has_value() && (!known || sent == *known);
}

KeySpan span_of(const std::vector<uint64_t>& keys) { return {keys.data(), keys.size()}; }

// Returns each name once, at most `n_names`.
std::vector<std::string> adapters_of(const Batch& batch, size_t n_names) {
    std::set<std::string> names;
    for (const Event& event : batch.events()) {
        if (event.kind == EventKind::kStored && !event.lora.empty() && names.size() < n_names) names.emplace(event.lora);
    }
    return {names.begin(), names.end()};
}

}  // namespace

Ledger::Ledger(uint64_t seed) : seed_(seed), hashes_(pool_, Mixer()) {}

// -- engine hashes ------------------------------------------------------------------------------------------------

std::optional<HashRow> Ledger::get(uint64_t hash) {
    const std::lock_guard lock(lock_);
    return hashes_.get(hash);
}

void Ledger::put(const HashRow& row) {
    const std::lock_guard lock(lock_);
    expected_.erase(row.key);
    if (!hashes_.set(row)) hashes_.push_back(row);
}

std::optional<HashRow> Ledger::pop_oldest() {
    const std::lock_guard lock(lock_);
    return hashes_.size() == 0 ? std::nullopt : std::optional(hashes_.pop_front());
}

size_t Ledger::n_hashes() {
    const std::lock_guard lock(lock_);
    return hashes_.size();
}

std::vector<HashRow> Ledger::rows() {
    const std::lock_guard lock(lock_);
    std::vector<HashRow> rows;
    rows.reserve(hashes_.size());
    hashes_.read(std::nullopt, hashes_.size(), rows);
    return rows;
}

std::vector<uint64_t> Ledger::chain(uint64_t hash, size_t n_blocks) {
    const std::lock_guard lock(lock_);
    std::vector<uint64_t> keys;
    for (auto row = hashes_.get(hash); row && keys.size() < n_blocks;) {
        keys.push_back(row->block_key);
        row = row->depth == 0 ? std::nullopt : hashes_.get(row->parent);
    }
    std::ranges::reverse(keys);
    return keys;
}

void Ledger::clear() {
    const std::lock_guard lock(lock_);
    hashes_.clear();
    expected_.clear();
    routes_.clear();
    sessions_.clear();
    has_sessions_ = false;
    index_ = nullptr;
}

void Ledger::expect_sessions() {
    const std::lock_guard lock(lock_);
    has_sessions_ = true;
}

std::vector<SessionStart> Ledger::take_sessions() {
    const std::lock_guard lock(lock_);
    return std::exchange(sessions_, {});
}

std::string Ledger::take_recomputed() {
    const std::lock_guard lock(lock_);
    return std::exchange(recomputed_, {});
}

void Ledger::expect(uint64_t hash) {
    const std::lock_guard lock(lock_);
    expected_.insert(hash);
}

size_t Ledger::n_expected() {
    const std::lock_guard lock(lock_);
    return expected_.size();
}

void Ledger::expect_only(KeySpan hashes) {
    const std::lock_guard lock(lock_);
    expected_.clear();
    for (size_t i = 0; i < hashes.size(); ++i) expected_.insert(hashes[i]);
}

// -- events -------------------------------------------------------------------------------------------------------

void Ledger::bind(Index& index, uint32_t block_size, std::vector<HolderId> own, std::vector<HolderId> shared) {
    const std::lock_guard lock(lock_);
    index_ = &index;
    block_size_ = block_size;
    own_ = std::move(own);
    shared_ = std::move(shared);
}

void Ledger::add_route(Route route) {
    const std::lock_guard lock(lock_);
    if (routes_.size() == kMaxRoutes) throw std::length_error("too many routes");
    routes_.push_back(std::move(route));
}

void Ledger::forget_routes() {
    const std::lock_guard lock(lock_);
    routes_.clear();
}

Applied Ledger::apply(const Batch& batch, size_t begin, size_t n_blocks) {
    const std::lock_guard lock(lock_);
    return apply_plain(batch, begin, n_blocks);
}

Run Ledger::run(Inbox& inbox, uint64_t seq, size_t n_blocks, std::span<const std::vector<HolderId>> tiers) {
    const std::lock_guard lock(lock_);
    Run run;
    const auto sizes = [&] {
        const Index::Writer index(*index_);
        std::vector<uint64_t> of_tiers;
        for (const auto& holders : tiers) of_tiers.push_back(index.total(holders));
        return of_tiers;
    };
    auto before = index_ == nullptr ? std::vector<uint64_t>() : sizes();
    while (index_ != nullptr && run.n_blocks < n_blocks && run.adapters.empty() && !run.failure) {
        const Batch* batch = inbox.front(seq + run.timestamps.size());
        if (batch == nullptr) break;
        Applied done;
        try {
            done = apply_plain(*batch, 0, kMessagePiece);
        } catch (const std::exception& error) {  // the message counts as applied, as in Subscription.failed
            run.failure = error.what();
            done.position = batch->events().size();
        }
        run.n_evicted += done.n_evicted;
        run.n_unknown += done.n_unknown;
        run.n_blocks += 1 + done.n_blocks;
        if (done.position < batch->events().size()) {
            run.n_applied = done.position;
            run.n_unknown_amid = done.n_unknown;
            break;
        }
        if (!run.failure) run.n_events += done.position;
        run.timestamps.push_back(batch->timestamp());
        const auto after = sizes();
        if (done.removing != 0) {
            run.removals.push_back(done.n_unknown == 0 ? done.removing : 0);
            run.removals.insert(run.removals.end(), before.begin(), before.end());
            run.removals.insert(run.removals.end(), after.begin(), after.end());
        }
        before = after;
        if (done.names_adapter) run.adapters = adapters_of(*batch, kMaxNames);
        inbox.pop();
    }
    if (!run.timestamps.empty()) run.topic = inbox.topic();
    if (!run.removals.empty()) {
        for (const Route& route : routes_) run.media.push_back(route.medium);
    }
    return run;
}

Applied Ledger::apply_plain(const Batch& batch, size_t begin, size_t n_blocks) {
    Applied done{begin};
    if (index_ == nullptr) return done;
    Index::Writer index(*index_);
    const auto& events = batch.events();
    for (; done.position < events.size() && done.n_blocks < n_blocks; ++done.position) {
        const Event& event = events[done.position];
        if (done.position + kEventsAhead < events.size()) {
            const auto soon = batch.hashes(events[done.position + kEventsAhead]);
            if (!soon.empty()) hashes_.prefetch(soon.front());
        }
        const bool is_stored = event.kind == EventKind::kStored;
        if (is_stored ? !take_stored(index, batch, event, done) : !take_removed(index, batch, event, done)) break;
        done.n_blocks += 1 + event.n_hashes;
    }
    return done;
}

const Route* Ledger::find_route(const Event& event, bool is_removal) {
    const auto fits = [&](const Route& route) {
        if (route.group != event.group || !is_same_medium(event.medium, route.medium)) return false;
        if (is_removal || (!route.cache_kind && event.cache_kind.data() == nullptr)) return true;
        return route.window == event.window && is_same(event.cache_kind, route.cache_kind);
    };
    if (last_route_ < routes_.size() && !is_removal && fits(routes_[last_route_])) return &routes_[last_route_];
    const auto found = std::ranges::find_if(routes_, fits);
    if (found == routes_.end()) return nullptr;
    if (!is_removal) last_route_ = static_cast<size_t>(found - routes_.begin());
    return &*found;
}

bool Ledger::take_stored(Index::Writer& index, const Batch& batch, const Event& event, Applied& done) {
    const Route* route = find_route(event, false);
    bool learns = false;
    if (route == nullptr || !may_learn(event, *route, learns)) return false;
    if (!event.lora.empty()) done.names_adapter = true;
    if (event.n_hashes == 0) return true;
    const auto hashes = batch.hashes(event);
    if (look_up(hashes)) {
        if (done.position == 0 && is_report(index, event, *route)) return false;
    } else if (!learns || !learn(batch, event)) {
        return false;
    }
    if (!route->is_fastest && !keeps_chunk(event, *route, hashes.back())) return false;
    note_recomputed(index, event, *route);
    const KeySpan keys = span_of(keys_);
    done.n_evicted += route->is_shared ? index.keep(route->holder, keys) : index.store(route->holder, keys);
    for (const HolderId copy : route->copies) done.n_evicted += index.keep(copy, keys);
    has_sessions_ |= event.session.data() != nullptr;
    if (has_sessions_ && route->is_fastest && sessions_.size() < kMaxSessions) sessions_.emplace_back(keys_.front(), event.session);
    sweep(index, hashes.size());
    return true;
}

// Returns whether the event tells again what is held already (RankLedger._is_report); its keys are in `keys_`.
bool Ledger::is_report(const Index::Writer& index, const Event& event, const Route& route) const {
    if (!route.is_only_group || !route.is_fastest || event.has_parent || keys_.size() < kLeastReported) return false;
    return std::ranges::all_of(keys_, [&](uint64_t key) { return index.any_has({&route.holder, 1}, key); });
}

// The counterpart of `evidence_of` in recomputed.py; the event's keys are in `keys_`.
void Ledger::note_recomputed(const Index::Writer& index, const Event& event, const Route& route) {
    if (!route.is_only_group || !route.is_fastest || route.lookahead != 0 || keys_.size() <= 1) return;
    const auto has = [&](uint64_t key) { return index.any_has({&route.holder, 1}, key); };
    if (event.has_parent) {
        const auto parent = hashes_.get(event.parent);
        if (!parent || !has(parent->block_key)) return;
    }
    if (!has(keys_[0])) {
        if (event.has_parent) recomputed_.push_back(0);
    } else if (!has(keys_[1])) {
        recomputed_.push_back(1);
    }
}

// Returns whether the event may be plain; sets `learns` if its tokens define its hashes.
bool Ledger::may_learn(const Event& event, const Route& route, bool& learns) const {
    const bool is_dense = event.block_size != 0 && event.n_tokens == event.n_hashes * uint64_t{event.block_size};
    if (event.n_hashes == 0 || !is_dense) return route.is_fastest || event.block_size <= block_size_;
    if (event.has_extras && !route.sends_extras) return false;
    if (event.block_size != block_size_ || (route.is_fastest && event.n_lookahead != route.lookahead)) return false;
    learns = route.is_fastest || event.has_extras || !route.sends_extras;
    return true;
}

// Puts the keys of `hashes` into `keys_`; returns false if one is unknown.
bool Ledger::look_up(std::span<const uint64_t> hashes) {
    keys_.clear();
    for (size_t i = 0; i < hashes.size(); ++i) {
        hashes_.prefetch(hashes[std::min(i + kAhead, hashes.size() - 1)]);
        const auto* row = hashes_.find(hashes[i]);
        if (row == nullptr) return false;
        keys_.push_back(row->block_key);
    }
    return true;
}

bool Ledger::learn(const Batch& batch, const Event& event) {
    const auto hashes = batch.hashes(event);
    if (!expected_.empty()) {
        for (const uint64_t hash : hashes) {
            if (expected_.contains(hash)) return false;
        }
    }
    std::optional<uint64_t> before;
    uint32_t depth = 0;
    if (event.has_parent) {
        const auto parent = hashes_.get(event.parent);
        if (!parent) return false;
        before = parent->block_key;
        depth = parent->depth + 1;
    } else {
        before = root_of(event);
    }
    keys_.clear();
    const auto tokens = batch.tokens(event);
    const size_t n_covered = (event.block_size + event.n_lookahead) * sizeof(uint32_t);
    uint64_t parent = event.parent;
    for (size_t i = 0; i < hashes.size(); ++i, ++depth) {
        const uint64_t local = xxh3::hash(tokens.data() + i * event.block_size, n_covered, seed_);
        before = before ? xxh3::chain(*before, local, seed_) : local;
        hashes_.prefetch(hashes[std::min(i + kAhead, hashes.size() - 1)]);
        const auto* known = hashes_.find(hashes[i]);
        if (known == nullptr) hashes_.push_back({hashes[i], *before, parent, depth});
        keys_.push_back(known == nullptr ? *before : known->block_key);
        parent = hashes[i];
    }
    return true;
}

// Returns whether the event agrees with the known chunk size of its tier.
bool Ledger::keeps_chunk(const Event& event, const Route& route, uint64_t last_hash) {
    if (event.n_tokens == 0) return route.chunk == 1;  // otherwise each hash stands for its whole chunk
    if (route.is_chunk_given) return true;
    return route.chunk != 0 && (hashes_.get(last_hash)->depth + 1) % route.chunk == 0;
}

bool Ledger::take_removed(Index::Writer& index, const Batch& batch, const Event& event, Applied& done) {
    if (event.kind != EventKind::kRemoved) return false;
    const Route* route = find_route(event, true);
    if (route == nullptr || !route->takes_removals || !look_up(batch.hashes(event))) return false;
    done.n_unknown += index.remove(route->holder, span_of(keys_));
    done.removing |= uint64_t{1} << (route - routes_.data());
    return true;
}

void Ledger::sweep(const Index::Writer& index, size_t n_blocks) {
    if (hashes_.size() <= kSlack) return;
    const size_t limit = kSlack + 2 * index.total(own_);
    for (size_t n_left = kSweptPerBlock * n_blocks; n_left > 0 && hashes_.size() > limit; --n_left) {
        const HashRow oldest = hashes_.pop_front();
        if (index.any_has(own_, oldest.block_key) || index.any_has(shared_, oldest.block_key)) hashes_.push_back(oldest);
    }
}

// The counterpart of `root_key` in keys.py.
std::optional<uint64_t> Ledger::root_of(const Event& event) const {
    if (event.lora.empty() && event.salt.empty()) return std::nullopt;
    std::string parts;
    for (const std::string_view text : {event.lora, event.salt}) {
        const uint64_t length = text.size();
        parts.append(reinterpret_cast<const char*>(&length), sizeof length);
        parts.append(text);
    }
    return xxh3::hash(parts.data(), parts.size(), seed_);
}

}  // namespace kvatlas
