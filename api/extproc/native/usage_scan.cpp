#include "usage_scan.h"

namespace kvatlas::extproc {
namespace {

constexpr std::string_view TOO_LONG = "!too_long\n", OVERLOAD = "!overload\n";

std::string_view without_blanks(std::string_view text) {
    const size_t start = text.find_first_not_of(" \t\r");
    return start == text.npos ? std::string_view() : text.substr(start);
}

// Returns whether a line has a member "usage" that is not null, or something that looks like it.
bool has_usage(std::string_view line) {
    constexpr std::string_view name = "\"usage\"";
    for (size_t at = line.find(name); at != line.npos; at = line.find(name, at)) {
        at += name.size();
        std::string_view rest = without_blanks(line.substr(at));
        if (rest.empty() || rest.front() != ':') return true;
        rest = without_blanks(rest.substr(1));
        if (!rest.starts_with("null")) return true;
    }
    return false;
}

}  // namespace

void UsageScan::feed(std::string_view chunk, size_t room) {
    if (reads_ == Reads::events) feed_events(chunk, room);
    if (reads_ == Reads::whole) feed_object(chunk, room);
}

void UsageScan::feed_object(std::string_view chunk, size_t room) {
    if (is_skipping_) return;
    if (held_.size() + chunk.size() > MAX_HELD_BYTES) {
        skip(TOO_LONG);
    } else if (chunk.size() > room) {
        skip(OVERLOAD);
    } else {
        held_.append(chunk);
    }
}

void UsageScan::feed_events(std::string_view chunk, size_t room) {
    if (chunk.size() > MAX_EVENTS_BYTES) {
        skip(TOO_LONG);
        return;
    }
    for (size_t end = chunk.find('\n'); end != chunk.npos; end = chunk.find('\n')) {
        const std::string_view piece = chunk.substr(0, end);
        chunk.remove_prefix(end + 1);
        if (held_.empty() && !is_skipping_) {
            read(piece);
            continue;
        }
        hold(piece, room);
        read(held_);
        held_.clear();
        is_skipping_ = false;
    }
    if (!chunk.empty()) hold(chunk, room);
}

void UsageScan::hold(std::string_view piece, size_t room) {
    if (is_skipping_) return;
    const size_t n = held_.size() + piece.size();
    if (n > MAX_HELD_BYTES) return skip(TOO_LONG);
    if (n > n_allowed_) {
        if (n - n_allowed_ > room) return skip(OVERLOAD);
        n_allowed_ = n;
    }
    held_.append(piece);
}

void UsageScan::skip(std::string_view why) {
    held_ = {};
    is_skipping_ = true;
    found_.append(why);
}

void UsageScan::read(std::string_view line) {
    if (!line.starts_with("data:") || line.starts_with("data: [DONE]") || line.starts_with("data:[DONE]")) return;
    ++n_events_;
    if (has_usage(line)) found_.append(line).push_back('\n');
}

}  // namespace kvatlas::extproc
