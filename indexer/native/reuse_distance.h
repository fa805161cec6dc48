// Reuse distances of the blocks of successive prompts: the counterpart of indexer/reuse_distance.py, which explains them.
// All sums are made in the order of that file, so that both give the same figures.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pages.h"
#include "recency.h"

namespace kvatlas {

// Counts with prefix sums (a Fenwick tree); numbers begin at 1. Memory that no count has used yet is not touched.
class Tally {
public:
    explicit Tally(size_t size) : memory_((size + 1) * sizeof(int64_t)), size_(size + 1) {}

    bool is_full() const { return n_counts_ + 1 == size_; }

    uint32_t append(int64_t count) {
        add(++n_counts_, count);
        return static_cast<uint32_t>(n_counts_);
    }

    void add(size_t number, int64_t change) {
        total_ += change;
        for (; number < size_; number += number & (~number + 1)) tree()[number] += change;
    }

    // Returns the sum of the counts after that one.
    size_t after(size_t number) const {
        int64_t upto = 0;
        for (; number != 0; number &= number - 1) upto += tree()[number];
        return static_cast<size_t>(total_ - upto);
    }

    size_t n_bytes() const { return memory_.size(); }

private:
    int64_t* tree() const { return static_cast<int64_t*>(memory_.data()); }

    Pages memory_;
    size_t size_, n_counts_ = 0;
    int64_t total_ = 0;
};

class ReuseDistances {
public:
    ReuseDistances(size_t max_keys, unsigned max_halvings, std::optional<double> half_life_s)
        : max_keys_(max_keys), max_halvings_(max_halvings), half_life_s_(half_life_s), users_(2 * max_keys),
          changes_memory_((max_keys + 2) * sizeof(double)) {}

    unsigned halvings() const { return halvings_; }
    size_t n_keys() const { return last_user_.size(); }

    // Records a prompt, of whose keys every `stride`-th counts. Without `n_blocks`, all its blocks are full.
    void use(std::span<const uint64_t> keys, size_t stride, std::optional<double> n_blocks, double now) {
        const auto n_keys = static_cast<double>(keys.size() / stride);
        double weight = weight_at(now);
        n_full_ += weight * n_keys;
        n_blocks_ += weight * n_blocks.value_or(n_keys);
        sampled_.clear();
        for (size_t at = stride - 1; at < keys.size(); at += stride) {
            if (is_sampled(keys[at])) sampled_.push_back(keys[at]);
        }
        if (sampled_.empty()) return;
        weight = std::ldexp(weight, static_cast<int>(halvings_));
        n_sampled_ += weight * static_cast<double>(sampled_.size());
        find_users();
        for (const auto& [user, n] : runs_) {
            if (user == kNobody) continue;
            const size_t distance = users_.after(user);
            changes()[distance] += weight;
            changes()[distance + n] -= weight;
        }
        become_recent();
    }

    // Returns the hits of LRU caches of these capacities, with old uses weighted less.
    std::vector<double> hits(std::span<const uint64_t> capacities, double now) {
        const double weight = weight_at(now);
        std::vector<double> found = uses(), hits(capacities.size());
        for (size_t at = 1; at < found.size(); ++at) found[at] += found[at - 1];
        if (found.back() == 0.0) return hits;
        const double n_new = n_sampled_ - found.back(), others = n_full_ - n_new;
        const double worth = (others > 0.0 ? others : 0.0) / found.back() / weight;
        for (size_t i = 0; i < capacities.size(); ++i) {
            const uint64_t capacity = capacities[i], last = (uint64_t{1} << halvings_) - 1;
            const uint64_t n_sampled = (capacity >> halvings_) + ((capacity & last) != 0);
            if (n_sampled != 0) hits[i] = worth * found[std::min<uint64_t>(n_sampled, found.size()) - 1];
        }
        return hits;
    }

    double n_blocks(double now) {
        const double weight = weight_at(now);
        return n_blocks_ / weight;
    }

private:
    struct UserRow {
        uint64_t key;
        uint32_t user;
    };
    struct Run {
        uint32_t user;
        size_t n_keys;
    };
    static constexpr uint32_t kNobody = 0;
    static constexpr double kMaxExponent = 64.0;

    double* changes() const { return static_cast<double*>(changes_memory_.data()); }
    size_t n_changes() const { return max_keys_ + 2; }
    bool is_sampled(uint64_t key) const { return halvings_ == 0 || key >> (64 - halvings_) == 0; }

    // Returns the uses at each distance.
    std::vector<double> uses() const {
        std::vector<double> uses(changes(), changes() + n_changes());
        for (size_t at = 1; at < uses.size(); ++at) uses[at] += uses[at - 1];
        return uses;
    }

    // Takes the sampled keys from their last users, into `runs_` of neighbours with the same one.
    void find_users() {
        runs_.clear();
        for (const uint64_t key : sampled_) {
            const UserRow* row = last_user_.find(key);
            const uint32_t user = row == nullptr ? kNobody : row->user;
            if (row != nullptr) last_user_.erase(key);
            if (runs_.empty() || runs_.back().user != user) runs_.push_back({user, 0});
            ++runs_.back().n_keys;
        }
    }

    void become_recent() {
        for (const auto& [user, n] : runs_) {
            if (user != kNobody) users_.add(user, -static_cast<int64_t>(n));
        }
        if (users_.is_full()) renumber();
        const size_t n_before = last_user_.size();
        const uint32_t number = users_.append(0);
        for (size_t i = sampled_.size(); i-- > 0;) {
            if (last_user_.find(sampled_[i]) == nullptr) last_user_.push_back({sampled_[i], number});
        }
        users_.add(number, static_cast<int64_t>(last_user_.size() - n_before));
        while (last_user_.size() > max_keys_) {
            if (halvings_ < max_halvings_) {
                halve();
            } else {
                users_.add(last_user_.pop_front().user, -1);
            }
        }
    }

    std::vector<UserRow> rows() const {
        std::vector<UserRow> rows;
        last_user_.read(std::nullopt, last_user_.size(), rows);
        return rows;
    }

    // Halves the sampling rate; distances among sampled blocks are then half as long.
    void halve() {
        ++halvings_;
        const std::vector<UserRow> all = rows();
        last_user_.clear();
        for (const UserRow& row : all) {
            if (is_sampled(row.key)) last_user_.push_back(row);
        }
        renumber();
        const std::vector<double> before = uses();
        std::fill_n(changes(), n_changes(), 0.0);
        double previous = 0.0;
        for (size_t place = 0; place < before.size(); place += 2) {
            const double halved = place + 1 < before.size() ? before[place] + before[place + 1] : before[place];
            changes()[place / 2] = halved - previous;
            previous = halved;
        }
    }

    // Renumbers the prompts that are still last users.
    void renumber() {
        users_ = Tally(2 * max_keys_);
        const std::vector<UserRow> all = rows();
        for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
            while (end < all.size() && all[end].user == all[begin].user) ++end;
            const uint32_t number = users_.append(static_cast<int64_t>(end - begin));
            for (size_t at = begin; at < end; ++at) last_user_.find(all[at].key)->user = number;
        }
    }

    // Returns the weight of a use; every sum of before counts less beside it.
    double weight_at(double now) {
        if (!half_life_s_) return 1.0;
        if (!origin_) origin_ = now;
        double exponent = (now - *origin_) / *half_life_s_;
        if (exponent > kMaxExponent) {
            scale(std::exp2(-exponent));
            origin_ = now;
            exponent = 0.0;
        }
        return std::exp2(exponent);
    }

    void scale(double factor) {
        for (size_t at = 0; at < n_changes(); ++at) changes()[at] *= factor;
        n_sampled_ *= factor;
        n_full_ *= factor;
        n_blocks_ *= factor;
    }

    size_t max_keys_;
    unsigned max_halvings_, halvings_ = 0;
    std::optional<double> half_life_s_, origin_;
    ChunkPool<UserRow> pool_;
    OrderedKeys<UserRow> last_user_{pool_, Mixer()};  // by the use of each key, the longest unused first
    Tally users_;
    Pages changes_memory_;  // by distance: uses at this distance minus uses at the previous one
    double n_sampled_ = 0.0, n_full_ = 0.0, n_blocks_ = 0.0;
    // Members, so that their memory is reused between prompts.
    std::vector<uint64_t> sampled_;
    std::vector<Run> runs_;
};

}  // namespace kvatlas
