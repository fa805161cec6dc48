// Finds what a response says of its tokens, in chunks cut anywhere; Python reads what is found. See usage.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvatlas::extproc {

enum class Reads : int {
    nothing = 0,
    events = 1,  // lines of server-sent events
    whole = 2,   // one JSON object
};

class UsageScan {
public:
    // Goes on where Python stopped: `held` is the beginning of a line, or of the object.
    UsageScan(Reads reads, bool is_skipping, std::string_view held) : reads_(reads), is_skipping_(is_skipping), held_(held) {
        n_allowed_ = held_.size() > FREE_LINE_BYTES ? held_.size() : FREE_LINE_BYTES;
    }

    // Reads the next piece of the body; may hold `room` bytes more than it does.
    void feed(std::string_view chunk, size_t room);

    // Returns whether the lines found are many enough to be read.
    bool is_full() const { return found_.size() > MAX_FOUND_BYTES; }

    // Lines found since `clear_found`, each with its end: events with "usage", and `!too_long` or `!overload` where a line or
    // the object was dropped.
    const std::string& found() const { return found_; }
    void clear_found() { found_.clear(); }

    // The beginning of a line, or of the object.
    const std::string& held() const { return held_; }
    bool is_skipping() const { return is_skipping_; }

    // Events of a stream so far, without the closing `[DONE]`.
    uint64_t n_events() const { return n_events_; }

    size_t n_held() const {
        return found_.size() + (reads_ == Reads::whole ? held_.size() : n_allowed_ - FREE_LINE_BYTES);
    }

private:
    static constexpr size_t MAX_HELD_BYTES = 1 << 20, FREE_LINE_BYTES = 4096, MAX_EVENTS_BYTES = 1 << 18;  // as in usage.py
    static constexpr size_t MAX_FOUND_BYTES = 1 << 13;

    void feed_object(std::string_view chunk, size_t room);
    void feed_events(std::string_view chunk, size_t room);
    void hold(std::string_view piece, size_t room);
    void skip(std::string_view why);
    void read(std::string_view line);

    const Reads reads_;
    bool is_skipping_;
    std::string held_, found_;
    size_t n_allowed_;
    uint64_t n_events_ = 0;
};

}  // namespace kvatlas::extproc
