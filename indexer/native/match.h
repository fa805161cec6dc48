// Prefix matches of one prompt with all ranks: the counterpart of indexer/match.py, whose `measure` is the specification.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

namespace kvatlas {

using HolderId = uint32_t;

// Holders along a prompt, as maximal runs of blocks with the same holders; one bit mask of `n_words` words per run.
struct Presence {
    size_t n_words = 0;
    std::vector<size_t> ends;  // block after the last of each run
    std::vector<uint64_t> words;

    size_t n_runs() const { return ends.size(); }
    std::span<const uint64_t> mask(size_t run) const { return std::span(words).subspan(run * n_words, n_words); }
    bool has(size_t run, HolderId holder) const {
        const size_t word = holder / 64;
        return word < n_words && (words[run * n_words + word] >> (holder % 64) & 1) != 0;
    }
};

// The layouts of many ranks (RankLayout in indexer/match.py). Every match reads all of them, mostly from cold caches, so
// they are a few flat arrays.
class Layouts {
public:
    using Holders = std::span<const HolderId>;

    // Starts the next rank; `chunk` is the largest chunk of its slower tiers.
    void add_rank(size_t chunk) { ranks_.push_back({chunk, n_tiers(), n_tiers(), n_windows(), n_windows()}); }

    // Adds a tier, or a window of `n_blocks`, to the last rank.
    void add_tier(Holders holders) {
        tiers_.push_back(keep(holders));
        ranks_.back().tiers_end = n_tiers();
    }
    void add_window(Holders holders, size_t n_blocks) {
        windows_.push_back({keep(holders), n_blocks});
        ranks_.back().windows_end = n_windows();
    }

    size_t n_ranks() const { return ranks_.size(); }
    size_t chunk(size_t rank) const { return ranks_[rank].chunk; }
    size_t n_tiers(size_t rank) const { return ranks_[rank].tiers_end - ranks_[rank].tiers_begin; }
    size_t n_windows(size_t rank) const { return ranks_[rank].windows_end - ranks_[rank].windows_begin; }
    Holders tier(size_t rank, size_t tier) const { return holders(tiers_[ranks_[rank].tiers_begin + tier]); }
    Holders window(size_t rank, size_t window) const { return holders(windows_[ranks_[rank].windows_begin + window].range); }
    size_t window_blocks(size_t rank, size_t window) const { return windows_[ranks_[rank].windows_begin + window].n_blocks; }

private:
    struct Range {
        uint32_t begin, end;  // in `holders_`
    };
    struct Window {
        Range range;
        size_t n_blocks;
    };
    struct Rank {
        size_t chunk;
        uint32_t tiers_begin, tiers_end, windows_begin, windows_end;
    };

    uint32_t n_tiers() const { return static_cast<uint32_t>(tiers_.size()); }
    uint32_t n_windows() const { return static_cast<uint32_t>(windows_.size()); }
    Holders holders(Range range) const { return Holders(holders_).subspan(range.begin, range.end - range.begin); }

    Range keep(Holders holders) {
        const auto begin = static_cast<uint32_t>(holders_.size());
        holders_.insert(holders_.end(), holders.begin(), holders.end());
        return {begin, static_cast<uint32_t>(holders_.size())};
    }

    std::vector<Rank> ranks_;
    std::vector<Range> tiers_;
    std::vector<Window> windows_;
    std::vector<HolderId> holders_;
};

struct TierRun {
    size_t tier, n_blocks;
};

struct TierBlocks {
    size_t prefix;  // gap-free in this tier alone
    size_t share;   // blocks of the union prefix whose fastest copy is here
};

struct RankMatch {
    size_t rank;  // position of its layout
    std::vector<TierBlocks> tiers;
    size_t usable_blocks;
    std::vector<TierRun> interleaved;  // runs of the union prefix if a tier comes twice or after a slower one
};

// Stretches of blocks [begin, end) that satisfy a condition, in order, none touching another.
class Stretches {
public:
    void clear() { list_.clear(); }

    void add(size_t begin, size_t end) {
        if (!list_.empty() && list_.back().end == begin) {
            list_.back().end = end;
        } else {
            list_.push_back({begin, end});
        }
    }

    // Returns the number of gap-free blocks from `block` on.
    size_t length_from(size_t block) const {
        const auto found = first_ending_after(block);
        return found != list_.end() && block >= found->begin ? found->end - block : 0;
    }

    // Returns the first of the gap-free blocks before `end` > 0; `end` if the block before it is missing.
    size_t begin_of(size_t end) const {
        const auto found = first_ending_after(end - 1);
        return found != list_.end() && end > found->begin ? found->begin : end;
    }

    // Returns the end of the last stretch at or before `block`, 0 if there is none.
    size_t last_end(size_t block) const {
        const auto found = first_ending_after(block);
        return found == list_.begin() ? 0 : std::prev(found)->end;
    }

private:
    struct Stretch {
        size_t begin, end;
    };

    std::vector<Stretch>::const_iterator first_ending_after(size_t block) const {
        return std::upper_bound(list_.begin(), list_.end(), block, [](size_t b, const Stretch& s) { return b < s.end; });
    }

    std::vector<Stretch> list_;
};

class Matcher {
public:
    Matcher(const Presence& presence, size_t n_tokens, size_t block_size)
        : presence_(presence), n_tokens_(n_tokens), block_size_(block_size) {}

    // Returns the ranks that hold the first block in any tier.
    std::vector<RankMatch> match(const Layouts& layouts) {
        std::vector<RankMatch> found;
        for (size_t rank = 0; rank < layouts.n_ranks(); ++rank) {
            std::vector<TierRun> runs = union_runs(layouts, rank);
            if (runs.empty()) continue;
            RankMatch& match = found.emplace_back();
            match.rank = rank;
            for (size_t tier = 0; tier < n_tiers_; ++tier) match.tiers.push_back({tiers_[tier].length_from(0), 0});
            for (const TierRun& run : runs) match.tiers[run.tier].share += run.n_blocks;
            match.usable_blocks = usable(layouts, rank);
            const auto in_turn = [](const TierRun& a, const TierRun& b) { return a.tier < b.tier; };
            if (!std::is_sorted(runs.begin(), runs.end(), in_turn)) match.interleaved = std::move(runs);
        }
        return found;
    }

private:
    bool holds(Layouts::Holders holders, size_t run) const {
        return !holders.empty() &&
               std::all_of(holders.begin(), holders.end(), [&](HolderId h) { return presence_.has(run, h); });
    }

    // Assigns each block to its fastest tier, up to the first block that no tier has, and records each tier's stretches.
    // Blocks after the union do not count in any result.
    std::vector<TierRun> union_runs(const Layouts& layouts, size_t rank) {
        n_tiers_ = layouts.n_tiers(rank);
        if (tiers_.size() < n_tiers_) tiers_.resize(n_tiers_);
        for (Stretches& tier : tiers_) tier.clear();
        std::vector<TierRun> runs;
        for (size_t begin = 0, run = 0; run < presence_.n_runs(); begin = presence_.ends[run++]) {
            const size_t end = presence_.ends[run];
            size_t fastest = n_tiers_;
            for (size_t tier = n_tiers_; tier-- > 0;) {
                if (!holds(layouts.tier(rank, tier), run)) continue;
                tiers_[tier].add(begin, end);
                fastest = tier;
            }
            if (fastest == n_tiers_) break;
            if (!runs.empty() && runs.back().tier == fastest) {
                runs.back().n_blocks += end - begin;
            } else {
                runs.push_back({fastest, end - begin});
            }
        }
        return runs;
    }

    size_t usable(const Layouts& layouts, size_t rank) {
        const size_t before_last_token = n_tokens_ == 0 ? 0 : (n_tokens_ - 1) / block_size_;
        const size_t fast = std::min(tiers_[0].length_from(0), before_last_token);
        if (layouts.n_windows(rank) != 0) return windowed(fast, layouts, rank);
        const size_t chunk = layouts.chunk(rank), first = fast / chunk * chunk;
        const size_t limit = n_tokens_ / block_size_ / chunk * chunk;
        size_t position = first;
        while (position < limit) {
            size_t n_blocks = 0;
            for (size_t tier = 1; tier < n_tiers_; ++tier)
                n_blocks = std::max(n_blocks, tiers_[tier].length_from(position) / chunk * chunk);
            if (n_blocks == 0) break;
            position = std::min(position + n_blocks, limit);
        }
        return position > first && position - fast >= chunk ? position : fast;
    }

    // Returns the longest boundary before which every window group has its blocks. Boundaries that fail because of the
    // same gap are skipped together.
    size_t windowed(size_t longest, const Layouts& layouts, size_t rank) {
        const size_t n_windows = layouts.n_windows(rank);
        windows_.resize(n_windows);
        for (size_t w = 0; w < n_windows; ++w) {
            windows_[w].clear();
            for (size_t begin = 0, run = 0; run < presence_.n_runs(); begin = presence_.ends[run++]) {
                if (holds(layouts.window(rank, w), run)) windows_[w].add(begin, presence_.ends[run]);
            }
        }
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
    size_t n_tokens_, block_size_;
    size_t n_tiers_ = 0;
    std::vector<Stretches> tiers_, windows_;  // members, so that their memory is reused between ranks
};

}  // namespace kvatlas
