// Prefix matches of one prompt with all ranks: the counterpart of indexer/match.py, whose `measure` is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "stretches.h"

namespace kvatlas {

// A rank's place in the columns (MatchedRank in indexer/match_columns.py).
struct Place {
    size_t row;
    size_t number;
    bool is_first;    // whether the row shows this rank while no rank holds anything
    bool shares_row;  // whether other ranks have the same row
};

// How the engine reuses what it holds, beside chunks and windows (RankLayout in indexer/match.py).
struct Reuse {
    size_t dropped;  // blocks or chunks at the end of a match that are computed again
    bool one_tree;   // whether all tiers are one tree of pages
};

// The layouts of many ranks (RankLayout in indexer/match.py), in flat arrays.
class Layouts {
public:
    using Holders = std::span<const HolderId>;

    // Starts the next rank; `chunk` is the largest chunk of its slower tiers.
    void add_rank(Place place, size_t chunk, Reuse reuse) {
        ranks_.push_back({place, chunk, reuse, n_tiers(), n_tiers(), n_windows(), n_windows()});
        rows_end_ = std::max(rows_end_, place.row + 1);
    }

    // Adds a tier, or a window of so many blocks in the fastest tier and the next one, to the last rank.
    void add_tier(Holders holders) {
        if (!holders.empty()) note_user(holders.front());
        tiers_.push_back(keep(holders));
        ranks_.back().tiers_end = n_tiers();
        most_tiers_ = std::max(most_tiers_, n_tiers(n_ranks() - 1));
    }
    void add_window(Holders fast, size_t n_blocks, Holders slow, size_t n_slow_blocks) {
        windows_.push_back({keep(fast), keep(slow), n_blocks, n_slow_blocks});
        ranks_.back().windows_end = n_windows();
    }

    size_t n_ranks() const { return ranks_.size(); }
    const Place& place(size_t rank) const { return ranks_[rank].place; }
    size_t chunk(size_t rank) const { return ranks_[rank].chunk; }
    const Reuse& reuse(size_t rank) const { return ranks_[rank].reuse; }
    size_t n_tiers(size_t rank) const { return ranks_[rank].tiers_end - ranks_[rank].tiers_begin; }
    size_t n_windows(size_t rank) const { return ranks_[rank].windows_end - ranks_[rank].windows_begin; }
    Holders tier(size_t rank, size_t tier) const { return holders(tiers_[ranks_[rank].tiers_begin + tier]); }
    Holders window(size_t rank, size_t window) const { return holders(at(rank, window).fast); }
    Holders slow_window(size_t rank, size_t window) const { return holders(at(rank, window).slow); }
    size_t window_blocks(size_t rank, size_t window) const { return at(rank, window).n_blocks; }
    size_t slow_window_blocks(size_t rank, size_t window) const { return at(rank, window).n_slow_blocks; }

    // Returns whether a matrix has a place for the figures of every rank.
    bool fit(size_t n_tiers, size_t n_rows) const { return most_tiers_ <= n_tiers && rows_end_ <= n_rows; }

    // Returns the ranks that have no block of a tier without this holder; with repetitions.
    std::span<const uint32_t> users(HolderId holder) const {
        return holder < users_.size() ? std::span<const uint32_t>(users_[holder]) : std::span<const uint32_t>();
    }

private:
    struct Range {
        uint32_t begin, end;  // in `holders_`
    };
    struct Window {
        Range fast, slow;
        size_t n_blocks, n_slow_blocks;
    };
    struct Rank {
        Place place;
        size_t chunk;
        Reuse reuse;
        uint32_t tiers_begin, tiers_end, windows_begin, windows_end;
    };

    uint32_t n_tiers() const { return static_cast<uint32_t>(tiers_.size()); }
    uint32_t n_windows() const { return static_cast<uint32_t>(windows_.size()); }
    const Window& at(size_t rank, size_t window) const { return windows_[ranks_[rank].windows_begin + window]; }
    Holders holders(Range range) const { return Holders(holders_).subspan(range.begin, range.end - range.begin); }

    Range keep(Holders holders) {
        const auto begin = static_cast<uint32_t>(holders_.size());
        holders_.insert(holders_.end(), holders.begin(), holders.end());
        return {begin, static_cast<uint32_t>(holders_.size())};
    }

    void note_user(HolderId holder) {
        if (holder >= users_.size()) users_.resize(holder + size_t{1});
        users_[holder].push_back(static_cast<uint32_t>(ranks_.size() - 1));
    }

    std::vector<Rank> ranks_;
    std::vector<Range> tiers_;
    std::vector<Window> windows_;
    std::vector<HolderId> holders_;
    std::vector<std::vector<uint32_t>> users_;
    size_t rows_end_ = 0, most_tiers_ = 0;
};

struct TierRun {
    size_t tier, n_blocks;
};

// The match of one rank; `tiers` has its stretches, valid until the next one.
struct RankMatch {
    std::span<const Stretches> tiers;
    std::span<const TierRun> runs;  // of the union prefix, each block in its fastest tier; neighbours have different tiers
    size_t usable_blocks;

    // Whether a tier comes twice or after a slower one.
    bool is_interleaved() const {
        return !std::is_sorted(runs.begin(), runs.end(), [](const TierRun& a, const TierRun& b) { return a.tier < b.tier; });
    }
};

class Matcher {
public:
    Matcher(const Presence& presence, size_t n_tokens, size_t block_size)
        : presence_(presence), stretches_(presence), n_tokens_(n_tokens), block_size_(block_size) {}

    // Calls `visit` with each rank that holds the first block in any tier, in order. Ranks without it cost nothing.
    template <class Visit>
    void match(const Layouts& layouts, Visit visit) {
        for (const size_t rank : ranks_with_first(layouts)) {
            collect(layouts, rank);
            if (std::none_of(tiers_.begin(), tiers_.end(), [](Stretches tier) { return tier.has_first(); })) continue;
            find_runs();
            visit(rank, RankMatch{tiers_, runs_, usable(layouts, rank)});
        }
    }

private:
    static constexpr size_t kLoadBackTokens = 10;  // match.py, LOAD_BACK_TOKENS

    // Returns the ranks that may hold the first block.
    std::vector<size_t> ranks_with_first(const Layouts& layouts) const {
        std::vector<size_t> found;
        if (presence_.n_runs() == 0) return found;
        std::vector<bool> is_found(layouts.n_ranks());
        const auto first = presence_.mask(0);
        for (size_t word = 0; word < first.size(); ++word) {
            for (uint64_t bits = first[word]; bits != 0; bits &= bits - 1) {
                const size_t holder = word * 64 + static_cast<size_t>(std::countr_zero(bits));
                for (const uint32_t rank : layouts.users(static_cast<HolderId>(holder))) {
                    if (!is_found[rank]) found.push_back(rank);
                    is_found[rank] = true;
                }
            }
        }
        std::sort(found.begin(), found.end());
        return found;
    }

    void collect(const Layouts& layouts, size_t rank) {
        tiers_.resize(layouts.n_tiers(rank));
        if (parts_.size() < tiers_.size()) parts_.resize(tiers_.size());
        for (size_t tier = 0; tier < tiers_.size(); ++tier) tiers_[tier] = held_by_all(layouts.tier(rank, tier), parts_[tier]);
    }

    // Returns the blocks that all these holders have, in `memory` if they are several.
    Stretches held_by_all(Layouts::Holders holders, std::vector<Stretch>& memory) {
        if (holders.empty()) return {};
        Stretches found = stretches_.of(holders.front());
        for (const HolderId holder : holders.subspan(1)) {
            intersect(found, stretches_.of(holder), spare_);
            std::swap(memory, spare_);
            found = Stretches(memory);
        }
        return found;
    }

    // Assigns each block to its fastest tier, up to the first block that no tier has.
    void find_runs() {
        runs_.clear();
        next_.clear();
        for (const Stretches tier : tiers_) next_.push_back(tier.begin());
        for (size_t block = 0;;) {
            size_t fastest = 0, end = std::numeric_limits<size_t>::max();
            for (; fastest < tiers_.size(); ++fastest) {
                auto& next = next_[fastest];
                while (next != tiers_[fastest].end() && next->end <= block) ++next;
                if (next == tiers_[fastest].end()) continue;
                end = std::min(end, next->begin <= block ? next->end : next->begin);
                if (next->begin <= block) break;
            }
            if (fastest == tiers_.size()) return;
            runs_.push_back({fastest, end - block});
            block = end;
        }
    }

    size_t usable(const Layouts& layouts, size_t rank) {
        const size_t before_last_token = n_tokens_ == 0 ? 0 : (n_tokens_ - 1) / block_size_;
        const Reuse& reuse = layouts.reuse(rank);
        const size_t matched = std::min(tiers_[0].length_from(0), before_last_token);
        const size_t fast = matched - std::min(matched, reuse.dropped);
        if (reuse.one_tree) return usable_of_tree(fast, before_last_token);
        if (layouts.n_windows(rank) != 0) return usable_of_hybrid(windowed(fast, layouts, rank), layouts, rank);
        const size_t chunk = layouts.chunk(rank), first = fast / chunk * chunk;
        const size_t limit = n_tokens_ / block_size_ / chunk * chunk;
        size_t position = first;
        while (position < limit) {
            size_t n_blocks = 0;
            for (size_t tier = 1; tier < tiers_.size(); ++tier)
                n_blocks = std::max(n_blocks, tiers_[tier].length_from(position) / chunk * chunk);
            if (n_blocks == 0) break;
            position = std::min(position + n_blocks, limit);
        }
        position -= std::min(position, reuse.dropped * chunk);
        return position > first && position >= fast + chunk ? position : fast;
    }

    // Returns the blocks that a hybrid model would reuse, with those of the next tier; a last one in part counts as one.
    size_t usable_of_hybrid(size_t fast, const Layouts& layouts, size_t rank) {
        if (tiers_.size() < 2) return fast;
        const size_t n_windows = layouts.n_windows(rank);
        size_t best = std::min(n_tokens_ == 0 ? 0 : n_tokens_ - 1, (fast + tiers_[1].length_from(fast)) * block_size_);
        for (size_t w = 0; w < n_windows; ++w) windows_[w] = held_by_all(layouts.slow_window(rank, w), window_parts_[w]);
        for (bool shrank = true; shrank;) {
            shrank = false;
            for (size_t w = 0; w < n_windows; ++w) {
                const size_t end = (best + block_size_ - 1) / block_size_;
                const size_t limit = windows_[w].last_run_end(fast, end, layouts.slow_window_blocks(rank, w)) * block_size_;
                if (limit >= best) continue;
                best = limit;
                shrank = true;
            }
        }
        return best >= (fast + 1) * block_size_ ? (best + block_size_ - 1) / block_size_ : fast;
    }

    // Returns the pages that an engine with one tree would reuse, from the runs of the union prefix.
    size_t usable_of_tree(size_t fast, size_t reusable) const {
        size_t n_blocks = 0;
        for (const TierRun& run : runs_) n_blocks += run.n_blocks;
        n_blocks = std::min(n_blocks, reusable);
        return n_blocks > fast && (n_blocks - fast) * block_size_ >= kLoadBackTokens ? n_blocks : fast;
    }

    // Returns the longest boundary before which every window group has its blocks. Boundaries that fail because of the
    // same gap are skipped together.
    size_t windowed(size_t longest, const Layouts& layouts, size_t rank) {
        const size_t n_windows = layouts.n_windows(rank);
        windows_.resize(n_windows);
        if (window_parts_.size() < n_windows) window_parts_.resize(n_windows);
        for (size_t w = 0; w < n_windows; ++w) windows_[w] = held_by_all(layouts.window(rank, w), window_parts_[w]);
        size_t end = longest;
        for (size_t w = 0; end > 0 && w < n_windows;) {
            const size_t n_blocks = layouts.window_blocks(rank, w), begin = windows_[w].begin_of(end);
            if (n_blocks == 0 || begin <= (end > n_blocks ? end - n_blocks : 0)) {
                ++w;
                continue;
            }
            // Because of the gap before `begin`, no boundary down to it has its blocks.
            end = windows_[w].last_end(std::min(begin, end - 1));
            w = 0;
        }
        return end;
    }

    const Presence& presence_;
    const HolderStretches stretches_;
    size_t n_tokens_, block_size_;
    // Members, so that their memory is reused between ranks.
    std::vector<Stretches> tiers_, windows_;
    std::vector<std::vector<Stretch>> parts_, window_parts_;
    std::vector<Stretch> spare_;
    std::vector<TierRun> runs_;
    std::vector<std::span<const Stretch>::iterator> next_;
};

}  // namespace kvatlas
