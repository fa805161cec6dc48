// The fast path of one publisher's ledger: plain events go from a batch to the index in one call.
// indexer/ledger.py is the specification, and applies every event that is not plain.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "batch.h"
#include "hash_rows.h"
#include "inbox.h"
#include "index.h"

namespace kvatlas {

// Instructions for events of one tier and group, valid until the Python ledger removes them.
struct Route {
    std::string medium;  // upper case
    uint32_t group = 0, window = 0;
    std::optional<std::string> cache_kind;
    HolderId holder = 0;
    bool is_fastest = false;       // the fastest tier, whose events define hashes
    bool is_only_group = false;    // every event is of this group
    bool is_shared = false;        // copies of the tier's blocks are not counted
    uint32_t lookahead = 0;        // tokens after each block that its hash covers
    bool sends_extras = false;     // the publisher sends the inputs of its hashes beside tokens
    bool takes_removals = false;   // every hash stands for one block
    uint32_t chunk = 0;            // learned number of blocks that move together; 0 if unknown
    bool is_chunk_given = false;   // the number is configured and not learned
    std::vector<HolderId> copies;  // holders of inferred tiers, which copy this one
};

// The result of `apply`: the position where it stopped, and counts. `n_blocks`: blocks of the events applied.
struct Applied {
    size_t position = 0, n_evicted = 0, n_unknown = 0, n_blocks = 0;
    uint64_t removing = 0;  // bit i: an event removed blocks by route i
    bool names_adapter = false;
};

// The session of a request that stored blocks, empty if it has none, and the key of the first of them.
using SessionStart = std::pair<uint64_t, std::string>;

// The result of `run`, over all its messages. `n_applied` and `n_unknown_amid`: events of the message that it stopped amid, and the
// unknown removals among them.
struct Run {
    std::string topic;  // of the last message
    std::vector<double> timestamps;
    size_t n_events = 0, n_evicted = 0, n_unknown = 0, n_blocks = 0, n_applied = 0, n_unknown_amid = 0;
    std::vector<std::string> media;  // of the routes
    // For each message that removed blocks: the routes as bits, 0 if a block was unknown; sizes of the tiers before, and after.
    std::vector<uint64_t> removals;
    std::vector<std::string> adapters;
    std::optional<std::string> failure;  // of the last message, whose events are not counted
};

class Ledger {
public:
    explicit Ledger(uint64_t seed);

    // -- engine hashes, in the order in which they were learned

    std::optional<HashRow> get(uint64_t hash);
    void put(const HashRow& row);  // the hash is no longer expected
    std::optional<HashRow> pop_oldest();
    size_t n_hashes();
    std::vector<HashRow> rows();

    // The keys of the block of `hash` and of up to `n_blocks` - 1 blocks before it, as far as known, in prompt order.
    std::vector<uint64_t> chain(uint64_t hash, size_t n_blocks);
    void clear();

    // Expected hashes have waiting events or copies, so events that define them are not plain.
    void expect(uint64_t hash);
    size_t n_expected();
    void expect_only(KeySpan hashes);

    // -- events

    // `own`: holders of this publisher; `shared`: holders of tiers that belong to no server.
    void bind(Index& index, uint32_t block_size, std::vector<HolderId> own, std::vector<HolderId> shared);
    void add_route(Route route);
    void forget_routes();

    // Applies events from `begin` on, up to the first that is not plain, or until `n_blocks` are done; an event is one more.
    Applied apply(const Batch& batch, size_t begin, size_t n_blocks);

    // Applies messages from number `seq` on, up to one with an event that is not plain, or until `n_blocks` are done. A message that
    // names adapters is the last one.
    Run run(Inbox& inbox, uint64_t seq, size_t n_blocks, std::span<const std::vector<HolderId>> tiers);

    // Returns which sessions stored blocks of the fastest tier since the last call; nothing until an event names a session, or
    // after `expect_sessions`.
    std::vector<SessionStart> take_sessions();
    void expect_sessions();

    // Returns the evidence of `recomputed.py` since the last call: 1 for a store that begins with one held block, 0 for one that
    // continues held blocks.
    std::string take_recomputed();

private:
    static constexpr size_t kSlack = 16384;     // hashmap.py, SLACK
    static constexpr size_t kSweptPerBlock = 4;  // hashmap.py, SWEPT_PER_BLOCK
    static constexpr size_t kLeastReported = 3;  // ledger.py, LEAST_REPORTED
    static constexpr size_t kMaxRoutes = 64;     // native_ledger.py, _MAX_ROUTES
    static constexpr size_t kMaxSessions = 16384;  // sessions.py, MAX_STARTS
    static constexpr size_t kMaxNames = 256;     // lazy_batch.py, MAX_NAMES
    static constexpr size_t kMessagePiece = 8192;  // blocks that are applied of one message in a run

    Applied apply_plain(const Batch& batch, size_t begin, size_t n_blocks);
    const Route* find_route(const Event& event, bool is_removal);
    bool take_stored(Index::Writer& index, const Batch& batch, const Event& event, Applied& done);
    bool take_removed(Index::Writer& index, const Batch& batch, const Event& event, Applied& done);
    bool is_report(const Index::Writer& index, const Event& event, const Route& route) const;
    void note_recomputed(const Index::Writer& index, const Event& event, const Route& route);
    bool may_learn(const Event& event, const Route& route, bool& learns) const;
    bool look_up(std::span<const uint64_t> hashes);
    bool learn(const Batch& batch, const Event& event);
    bool keeps_chunk(const Event& event, const Route& route, uint64_t last_hash);
    void sweep(const Index::Writer& index, size_t n_blocks);
    std::optional<uint64_t> root_of(const Event& event) const;

    const uint64_t seed_;
    std::mutex lock_;
    ChunkPool<HashRow> pool_;
    OrderedKeys<HashRow> hashes_;
    std::unordered_set<uint64_t, Mixer> expected_;
    Index* index_ = nullptr;
    uint32_t block_size_ = 0;
    std::vector<HolderId> own_, shared_;
    std::vector<Route> routes_;
    size_t last_route_ = 0;  // most events take the same route as the one before
    std::vector<uint64_t> keys_;  // of the current event
    std::string recomputed_;
    std::vector<SessionStart> sessions_;
    bool has_sessions_ = false;  // whether any event has named one
};

}  // namespace kvatlas
