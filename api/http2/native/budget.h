// Limits of what one connection may make this process do, whatever version of libnghttp2 reads its frames.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace kvatlas::http2 {

struct FrameHead {
    uint32_t length;
    uint8_t type, flags;
};

// Finds where frames begin and end.
class FrameReader {
public:
    // Returns how many of `bytes`, at least one, belong to the preface or to one frame.
    size_t next(std::string_view bytes) {
        has_begun_ = false;
        if (n_preface_ > 0) return counted(n_preface_, bytes.size());
        if (n_payload_ > 0) return counted(n_payload_, bytes.size());
        const size_t n = std::min(head_.size() - n_head_, bytes.size());
        std::memcpy(head_.data() + n_head_, bytes.data(), n);
        n_head_ += n;
        if (n_head_ < head_.size()) return n;
        n_head_ = 0;
        has_begun_ = true;
        n_payload_ = head().length;
        return n + counted(n_payload_, bytes.size() - n);
    }

    // Returns whether the head of a frame ended in the last bytes.
    bool has_begun() const { return has_begun_; }
    FrameHead head() const {
        return {uint32_t{head_[0]} << 16 | uint32_t{head_[1]} << 8 | head_[2], head_[3], head_[4]};
    }

private:
    static size_t counted(size_t& n_left, size_t n_given) {
        const size_t n = std::min(n_left, n_given);
        n_left -= n;
        return n;
    }

    std::array<uint8_t, 9> head_{};
    size_t n_head_ = 0, n_payload_ = 0, n_preface_ = 24;
    bool has_begun_ = false;
};

// Allows `burst` acts at once, and `per_second` in the long run.
class Rate {
public:
    Rate(double burst, double per_second) : burst_(burst), per_second_(per_second), left_(burst) {}

    // Returns whether one more act is allowed at `now`, in seconds.
    bool take(double now) {
        left_ = std::min(burst_, left_ + std::max(0.0, now - at_) * per_second_);
        at_ = now;
        if (left_ < 1) return false;
        left_ -= 1;
        return true;
    }

private:
    double burst_, per_second_, left_, at_ = 0;
};

}  // namespace kvatlas::http2
