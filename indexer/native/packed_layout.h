// Layouts of ranks as Python passes them: RankLayout.packed in indexer/match.py.
#pragma once

#include <vector>

#include "index.h"
#include "match.h"
#include "python.h"

namespace kvatlas::python {

// Reads the numbers of a packed layout, one after the other.
class PackedReader {
public:
    explicit PackedReader(KeySpan numbers) : numbers_(numbers) {}

    size_t next(size_t most) {
        if (at_ == numbers_.size() || numbers_[at_] > most) raise(PyExc_ValueError, "a packed layout ends early, or has an impossible number");
        return numbers_[at_++];
    }
    std::vector<HolderId> holders() {
        std::vector<HolderId> holders(next(numbers_.size()));
        for (HolderId& holder : holders) holder = static_cast<HolderId>(next(~HolderId{0} - 1));
        return holders;
    }
    bool is_at_end() const { return at_ == numbers_.size(); }

private:
    KeySpan numbers_;
    size_t at_ = 0;
};

inline void add_layout(Layouts& layouts, PackedReader packed, PackedReader& places) {
    constexpr size_t kAny = ~size_t{0}, kMost = 0x7fffffff;
    const Place place{places.next(kMost), places.next(kMost), places.next(1) != 0, places.next(1) != 0};
    const size_t chunk = packed.next(kAny), n_tiers = packed.next(kAny), n_windows = packed.next(kAny);
    if (chunk == 0) raise(PyExc_ValueError, "chunk must be at least 1 block");
    if (n_tiers == 0) raise(PyExc_ValueError, "a layout needs at least one tier");
    layouts.add_rank(place, chunk);
    for (size_t tier = 0; tier < n_tiers; ++tier) layouts.add_tier(packed.holders());
    for (size_t window = 0; window < n_windows; ++window) {
        const size_t n_blocks = packed.next(kAny);
        layouts.add_window(packed.holders(), n_blocks);
    }
    if (!packed.is_at_end()) raise(PyExc_ValueError, "a packed layout has more numbers than it describes");
}

}  // namespace kvatlas::python
