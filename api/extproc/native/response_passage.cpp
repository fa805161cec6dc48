#include "response_passage.h"

#include <utility>

#include "body_message.h"

namespace kvatlas::extproc {
namespace {

// Longer messages are for Python, which waits for the client between pieces of the reply. As in replies.py.
constexpr size_t MAX_AT_ONCE_BYTES = 1 << 20;

// Flags of a report; see passing.py.
constexpr uint8_t BEGUN = 1, ENDED = 2, LEFT = 4, SKIPPING = 8;

void append_number(std::string& out, uint64_t number) {
    for (int i = 0; i < 8; ++i, number >>= 8) out.push_back(static_cast<char>(number));
}

}  // namespace

bool ResponsePassage::take(std::string_view message, size_t room, std::string& outbound, std::string& report) {
    if (has_ended_ || message.size() > MAX_AT_ONCE_BYTES) return false;
    const auto piece = read_response_body(message);
    if (!piece || (piece->is_last && leaves_end_)) return false;
    uint8_t flags = 0;
    if (!piece->body.empty()) {
        if (!std::exchange(has_begun_, true)) flags |= BEGUN;
        scan_.feed(piece->body, room);
    }
    if (piece->is_last) {
        has_ended_ = true;
        flags |= ENDED;
    }
    if (gives_back_) {
        append_response_body(outbound, *piece);
    } else {
        append_unchanged(outbound);
    }
    if (flags != 0 || scan_.is_full()) report = reported(flags);
    return true;
}

std::string ResponsePassage::leave() { return has_ended_ ? std::string() : reported(LEFT); }

size_t ResponsePassage::n_added(size_t n_message) const { return n_bytes_around(n_message); }

// Flags, number of events, length of the lines found, these lines, and what is held if Python goes on or the body is over.
std::string ResponsePassage::reported(uint8_t flags) {
    std::string report;
    report.push_back(static_cast<char>(flags | (scan_.is_skipping() ? SKIPPING : 0)));
    append_number(report, scan_.n_events());
    append_number(report, scan_.found().size());
    report.append(scan_.found());
    scan_.clear_found();
    if ((flags & (ENDED | LEFT)) != 0) report.append(scan_.held());
    return report;
}

}  // namespace kvatlas::extproc
