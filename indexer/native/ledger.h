// The daily part of one publisher's books: events whose meaning is plain go from a batch to the index in one call.
// indexer/ledger.py is the specification, and takes every event that is not plain.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "batch.h"
#include "index.h"

namespace kvatlas {

// What an engine's hash means: indexer/hashmap.py, `Known`. `key` is the engine hash. `parent` counts when `depth` is not 0.
struct HashRow {
    uint64_t key, block_key, parent;
    uint32_t depth;
};

// How events of one tier and group are taken; valid until the ledger says that something has changed.
struct Route {
    std::string medium;  // upper case
    uint32_t group = 0, window = 0;
    std::optional<std::string> cache_kind;
    HolderId holder = 0;
    bool is_fastest = false;       // the fastest tier, whose events tell what hashes mean
    bool is_shared = false;        // the tier's blocks are there or not, without counts
    bool tells_extras = false;     // the publisher is known to tell what enters hashes beside tokens
    bool takes_removals = false;   // every hash stands for one block
    uint32_t chunk = 0;            // blocks that move together, as learned; 0: not known
    bool is_chunk_given = false;   // configured: nothing is to be learned
    std::vector<HolderId> copies;  // holders of tiers taken to have a copy of what this one stores
};

// Where `apply` ended, and what it did.
struct Applied {
    size_t position = 0, n_evicted = 0, n_unknown = 0;
};

class Ledger {
public:
    explicit Ledger(uint64_t seed);

    // -- engine hashes, in the order in which they were learned

    std::optional<HashRow> get(uint64_t hash);
    void put(const HashRow& row);  // nothing waits for the hash any more
    std::optional<HashRow> pop_oldest();
    size_t n_hashes();
    std::vector<HashRow> rows();
    void clear();

    // Something waits for these hashes to be known: events that teach them are not plain.
    void expect(uint64_t hash);
    size_t n_expected();
    void expect_only(KeySpan hashes);

    // -- events

    // `own`: holders of this publisher; `shared`: holders of tiers that belong to no server.
    void bind(Index& index, uint32_t block_size, std::vector<HolderId> own, std::vector<HolderId> shared);
    void add_route(Route route);
    void forget_routes();

    // Applies events from `begin` on, up to the first that is not plain.
    Applied apply(const Batch& batch, size_t begin);

private:
    static constexpr size_t kSlack = 16384;     // hashmap.py, SLACK
    static constexpr size_t kSweptPerBlock = 4;  // hashmap.py, SWEPT_PER_BLOCK

    const Route* find_route(const Event& event, bool is_removal) const;
    bool take_stored(const Batch& batch, const Event& event, Applied& done);
    bool take_removed(const Batch& batch, const Event& event, Applied& done);
    bool may_learn(const Event& event, const Route& route, bool& learns) const;
    bool look_up(std::span<const uint64_t> hashes);
    bool learn(const Batch& batch, const Event& event);
    bool keeps_chunk(const Event& event, const Route& route, uint64_t last_hash);
    void sweep(size_t n_blocks);
    bool is_held(uint64_t key) const;
    std::optional<uint64_t> root_of(const Event& event) const;

    const uint64_t seed_;
    std::mutex lock_;
    ChunkPool<HashRow> pool_;
    OrderedKeys<HashRow> hashes_;
    std::unordered_set<uint64_t> expected_;
    Index* index_ = nullptr;
    uint32_t block_size_ = 0;
    std::vector<HolderId> own_, shared_;
    std::vector<Route> routes_;
    std::vector<uint64_t> keys_;  // of the event at hand
};

}  // namespace kvatlas
