// The holders along a prompt.
#include <algorithm>
#include <bit>

#include "index.h"

namespace kvatlas {

Presence Index::presence(KeySpan keys) const {
    constexpr size_t kFarAhead = 12;
    Presence found;
    std::vector<uint64_t> mask;
    const std::shared_lock lock(table_lock_);
    found.n_words = (holders_.size() + 63) / 64;
    std::vector<Followed> followed;
    SetId current = kEmptySet;
    SetId plain = kEmptySet;  // `current` while no tail is followed: all that most prompts need
    bool has_begun = false;   // tails begin after the block before
    size_t block = 0;
    for (size_t i = 0; i < std::min(kFarAhead, keys.size()); ++i) table_.prefetch(keys[i]);
    for (; block < keys.size(); ++block) {
        if (block + kFarAhead < keys.size()) table_.prefetch(keys[block + kFarAhead]);
        const SetId found_set = table_.find(keys[block]), set = found_set & ~kMark;
        if (found_set == plain && plain != kEmptySet) continue;
        const bool has_ended = !followed.empty() && follow(followed, keys[block]);
        if (set == kEmptySet && followed.empty()) break;
        const bool is_same = set == current && !has_ended && !has_begun;
        has_begun = set != found_set && begin_tails(keys[block], set, followed);
        plain = followed.empty() ? set : kEmptySet;
        if (is_same) continue;
        current = set;
        translate(set, mask);
        for (const Followed& each : followed) mask[each.holder / 64] |= uint64_t{1} << each.holder % 64;
        if (std::all_of(mask.begin(), mask.end(), [](uint64_t word) { return word == 0; })) break;
        if (block != 0) {
            if (std::equal(mask.begin(), mask.end(), found.words.end() - static_cast<std::ptrdiff_t>(mask.size()))) continue;
            found.ends.push_back(block);
        }
        found.words.insert(found.words.end(), mask.begin(), mask.end());
    }
    if (block != 0) found.ends.push_back(block);
    return found;
}

// Adds the tails of `head` to those that a prompt follows; returns whether there is one.
bool Index::begin_tails(uint64_t head, SetId set, std::vector<Followed>& followed) const {
    const size_t n_before = followed.size();
    for_each_tail(head, set, [&](HolderId holder, const Tail& tail) { followed.push_back({holder, tail}); });
    return followed.size() != n_before;
}

// Follows tails by one key of the prompt; returns whether any ends before it.
bool Index::follow(std::vector<Followed>& followed, uint64_t key) {
    size_t n_on = 0;
    for (Followed& each : followed) {
        if (!each.keys.empty() && each.keys.front() == key) followed[n_on++] = {each.holder, each.keys.subspan(1)};
    }
    const bool has_ended = n_on != followed.size();
    followed.resize(n_on);
    return has_ended;
}

// Translates the slots of a set to holders, without closed ones.
void Index::translate(SetId set, std::vector<uint64_t>& mask) const {
    const MaskView view = sets_.view(set);
    mask.assign((holders_.size() + 63) / 64, 0);
    if (n_translated_ == 0) {
        std::copy(view.words.begin(), view.words.end(), mask.begin() + static_cast<std::ptrdiff_t>(view.first));
        return;
    }
    for (size_t i = 0; i < view.words.size(); ++i) {
        for (uint64_t bits = view.words[i]; bits != 0; bits &= bits - 1) {
            const HolderId holder = meaning_[(view.first + i) * 64 + static_cast<size_t>(std::countr_zero(bits))];
            if (holder < kSwept) mask[holder / 64] |= uint64_t{1} << holder % 64;
        }
    }
}

}  // namespace kvatlas
