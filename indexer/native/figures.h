// The matches of all rows as a matrix: the counterpart of indexer/match_columns.py, which describes its lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "match.h"

namespace kvatlas {

// The figures of one matched rank that shares its row, for `other_ranks`.
struct SharedRow {
    int32_t row, number, usable_tokens;
};

// The union prefix of a rank whose runs are not in the order of tiers.
struct Interleaved {
    size_t row, number;
    std::vector<TierRun> runs;
};

class Figures {
public:
    Figures(int32_t* values, size_t n_tiers, size_t n_rows) : values_(values), n_tiers_(n_tiers), n_rows_(n_rows) {}

    // Writes the matches of one prompt and block size, of ranks that other sizes may share a row with.
    void fill(const Layouts& layouts, Matcher& matcher, size_t n_blocks, size_t block_size) {
        for (size_t rank = 0; rank < layouts.n_ranks(); ++rank) {
            const Place& place = layouts.place(rank);
            // Another rank of the row may have been found with blocks of another size.
            if (place.is_first && line(kNumber)[place.row] == as_int(place.number)) line(kNBlocks)[place.row] = as_int(n_blocks);
        }
        matcher.match(layouts, [&](size_t rank, const RankMatch& match) {
            const Place& place = layouts.place(rank);
            if (place.shares_row) {
                shared.push_back({as_int(place.row), as_int(place.number), as_int(match.usable_blocks * block_size)});
                if (!is_better(place, match.usable_blocks * block_size)) return;
            }
            put(place, match, n_blocks, block_size);
        });
    }

    // Changes a row to what results once it holds `n_blocks` in its fastest tier (MatchColumns.predict).
    void predict(size_t row, size_t n_blocks, size_t n_tokens, size_t block_size) {
        int32_t* column = values_ + row;
        const int32_t wanted = as_int(n_blocks);
        if (static_cast<size_t>(line(kBlockSize)[row]) != block_size || wanted <= column[0]) return;
        line(kPredicted)[row] = wanted - column[0];
        const size_t reusable = std::min(n_blocks, n_tokens == 0 ? 0 : (n_tokens - 1) / block_size);
        line(kUsable)[row] = std::max(line(kUsable)[row], as_int(reusable));
        // The first blocks of the union are in the fastest tier: each other tier has what comes after them.
        int64_t end = 0;
        for (size_t tier = 0; tier < n_tiers_; ++tier) {
            int32_t& held = column[(n_tiers_ + tier) * n_rows_];
            end += held;
            held = static_cast<int32_t>(std::min<int64_t>(held, std::max<int64_t>(end - wanted, 0)));
        }
        column[0] = column[n_tiers_ * n_rows_] = wanted;
    }

    std::vector<SharedRow> shared;
    std::vector<Interleaved> interleaved;

private:
    enum Line { kUsable, kNumber, kPredicted, kNBlocks, kBlockSize };  // after those by tier

    static int32_t as_int(size_t value) { return static_cast<int32_t>(value); }
    int32_t* line(Line which) const { return values_ + (2 * n_tiers_ + which) * n_rows_; }

    // Returns whether the row should show this rank: most usable tokens, then lowest number.
    bool is_better(const Place& place, size_t tokens) const {
        const auto shown = static_cast<size_t>(line(kUsable)[place.row]) * static_cast<size_t>(line(kBlockSize)[place.row]);
        const auto number = static_cast<size_t>(line(kNumber)[place.row]);
        return tokens > shown || (tokens == shown && place.number <= number);
    }

    void put(const Place& place, const RankMatch& match, size_t n_blocks, size_t block_size) {
        int32_t* column = values_ + place.row;
        for (size_t tier = 0; tier < n_tiers_; ++tier) {
            column[tier * n_rows_] = tier < match.tiers.size() ? as_int(match.tiers[tier].length_from(0)) : 0;
            column[(n_tiers_ + tier) * n_rows_] = 0;
        }
        for (const TierRun& run : match.runs) column[(n_tiers_ + run.tier) * n_rows_] += as_int(run.n_blocks);
        line(kUsable)[place.row] = as_int(match.usable_blocks);
        line(kNumber)[place.row] = as_int(place.number);
        line(kNBlocks)[place.row] = as_int(n_blocks);
        line(kBlockSize)[place.row] = as_int(block_size);
        if (match.is_interleaved()) interleaved.push_back({place.row, place.number, {match.runs.begin(), match.runs.end()}});
    }

    int32_t* values_;
    size_t n_tiers_, n_rows_;
};

}  // namespace kvatlas
