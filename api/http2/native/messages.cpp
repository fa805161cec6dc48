// The gRPC messages in the data of streams.

#include <algorithm>
#include <cstring>
#include <utility>

#include "session.h"

namespace kvatlas::http2 {
namespace {

// Limit of replies that wait for a client that does not read; past it, the call's own messages are not read either.
constexpr size_t MAX_UNSENT = 1 << 20;

// Bytes that a client may send on a finished call before its stream is reset. Clients end such a call by themselves, and
// some treat a reset while they send as a failure of the call.
constexpr size_t MAX_IGNORED = 1 << 24;

// Bytes that a passage takes for one unit of work: copied once and searched once.
constexpr size_t PASSED_PER_WORK = 1 << 14;

constexpr int UNIMPLEMENTED = 12, INTERNAL = 13, RESOURCE_EXHAUSTED = 8;  // gRPC status codes

constexpr const char* NO_ROOM = "the server holds too many bytes of calls";

}  // namespace

void Session::end_messages(int32_t stream_id, Stream& stream) {
    if (!stream.inbound.empty() || stream.is_paused || stream.is_broken || stream.is_finished) return;
    if (stream.n_prefix != 0) {
        break_off(stream_id, stream, INTERNAL, "the call ended within a message", "protocol");
    } else {
        end_passage(stream_id, stream);
        events_.push_back({EventKind::ended, stream_id});
        stream.client_ended = false;  // it is told once, however often the call is resumed
    }
}

void Session::data(int32_t stream_id, std::string_view bytes) {
    library_.session_consume_connection(session_, bytes.size());
    Stream* const stream = find(stream_id);
    if (stream == nullptr) return;
    stream->unconsumed += bytes.size();
    came_.other |= stream->passage == nullptr;
    if (stream->is_broken || stream->is_finished) {
        stream->n_ignored += bytes.size();
        if (stream->n_ignored > MAX_IGNORED) library_.submit_rst_stream(session_, 0, stream_id, nghttp2::NO_ERROR);
    } else {
        const bool must_wait = stream->is_paused || !stream->inbound.empty();
        const size_t n = must_wait ? 0 : take_messages(stream_id, *stream, bytes);
        if (n < bytes.size() && !stream->is_broken) {
            if (!has_room(*stream, bytes.size() - n)) {
                break_off(stream_id, *stream, RESOURCE_EXHAUSTED, NO_ROOM, "held_bytes");
            } else {
                if (!must_wait) ready_.push_back(stream_id);
                stream->inbound.append(bytes.substr(n));
                held_ += bytes.size() - n;
            }
        }
    }
    renew_window(stream_id, *stream);
}

// Reads messages that waited for their call or for the next `receive`.
void Session::take_waiting(int32_t stream_id) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_paused || stream->is_finished) return;
    const std::string_view rest = std::string_view(stream->inbound).substr(stream->n_read);
    stream->n_read += take_messages(stream_id, *stream, rest);
    if (stream->n_read < stream->inbound.size()) {
        ready_.push_back(stream_id);
        return;
    }
    held_ -= stream->inbound.size();
    stream->inbound = {};
    stream->n_read = 0;
    if (stream->client_ended) end_messages(stream_id, *stream);
    renew_window(stream_id, *stream);
}

// A client that does not read its answers, or whose call does not take its messages, gets no new window.
void Session::renew_window(int32_t stream_id, Stream& stream) {
    if (stream.unconsumed == 0 || stream.is_paused || !stream.inbound.empty() || stream.n_unsent() > MAX_UNSENT) return;
    library_.session_consume_stream(session_, stream_id, std::exchange(stream.unconsumed, 0));
}

// Returns the bytes read: all of them unless the work of one `receive` is done.
size_t Session::take_messages(int32_t stream_id, Stream& stream, std::string_view bytes) {
    const size_t n_given = bytes.size();
    while (!bytes.empty() && n_work_ < MAX_WORK) {
        if (!take_prefix(stream_id, stream, bytes)) return n_given - bytes.size();
        const size_t n = std::min(bytes.size(), stream.n_message - stream.message.size());
        if (n == stream.n_message && stream.passage) {  // all of it is here: it need not be copied
            const std::string_view message = bytes.substr(0, n);
            bytes.remove_prefix(n);
            end_message(stream_id, stream, message);
            continue;
        }
        if (!has_room(stream, n)) {
            break_off(stream_id, stream, RESOURCE_EXHAUSTED, NO_ROOM, "held_bytes");
            return n_given - bytes.size();
        }
        // A quarter of a message is proof enough that the rest comes; growing to its length step by step would copy it.
        if (stream.message.size() > stream.n_message / 4) stream.message.reserve(stream.n_message);
        stream.message.append(bytes.substr(0, n));
        bytes.remove_prefix(n);
        if (stream.message.size() < stream.n_message) {
            held_ += n;
            continue;
        }
        held_ -= stream.n_message - n;
        end_message(stream_id, stream, std::exchange(stream.message, {}));
    }
    return n_given - bytes.size();
}

template <class Text>
void Session::end_message(int32_t stream_id, Stream& stream, Text message) {
    stream.n_prefix = 0;
    ++n_work_;
    if (stream.passage && is_passed(stream_id, stream, message)) return;
    events_.push_back({EventKind::message, stream_id, 0, std::string(std::move(message))});
}

// Returns whether the passage has taken the message; it has ended otherwise.
bool Session::is_passed(int32_t stream_id, Stream& stream, std::string_view message) {
    Passage& passage = *stream.passage;
    const bool waits = stream.n_unsent() != 0;
    if (!waits || has_room(stream, message.size() + passage.n_added(message.size()))) {
        const size_t n_before = stream.n_held();
        const size_t room = held() < may_hold_ ? may_hold_ - held() : 0;
        std::string report;
        stream.outbound.reserve(stream.outbound.size() + message.size() + passage.n_added(message.size()));
        if (passage.take(message, room, stream.outbound, report)) {
            held_ += stream.n_held() - n_before;
            n_work_ += message.size() / PASSED_PER_WORK;
            if (!report.empty()) events_.push_back({EventKind::passed, stream_id, 0, std::move(report)});
            answer(stream_id, stream);
            ++came_.n_passed;
            return true;
        }
    }
    end_passage(stream_id, stream);
    return false;
}

void Session::end_passage(int32_t stream_id, Stream& stream) {
    if (!stream.passage) return;
    held_ -= stream.n_passage();
    std::string report = std::exchange(stream.passage, nullptr)->leave();
    if (!report.empty()) events_.push_back({EventKind::passed, stream_id, 0, std::move(report)});
}

void Session::pass(int32_t stream_id, std::unique_ptr<Passage> passage) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_finished || stream->is_broken) return;
    held_ -= stream->n_passage();
    stream->passage = std::move(passage);
    held_ += stream->n_passage();
}

std::string Session::leave(int32_t stream_id) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || !stream->passage) return {};
    held_ -= stream->n_passage();
    return std::exchange(stream->passage, nullptr)->leave();
}

// Returns whether the prefix is complete and its message is allowed.
bool Session::take_prefix(int32_t stream_id, Stream& stream, std::string_view& bytes) {
    auto& prefix = stream.prefix;
    if (stream.n_prefix == prefix.size()) return true;
    const size_t n_new = std::min(bytes.size(), prefix.size() - stream.n_prefix);
    std::memcpy(prefix.data() + stream.n_prefix, bytes.data(), n_new);
    bytes.remove_prefix(n_new);
    stream.n_prefix += static_cast<uint8_t>(n_new);
    if (stream.n_prefix < prefix.size()) return false;
    const size_t n = size_t{prefix[1]} << 24 | size_t{prefix[2]} << 16 | size_t{prefix[3]} << 8 | prefix[4];
    if (prefix[0] != 0) {
        break_off(stream_id, stream, UNIMPLEMENTED, "compressed messages are not taken", "protocol");
        return false;
    }
    if (n > limits_.n_message_bytes) {
        break_off(stream_id, stream, RESOURCE_EXHAUSTED,
                  "a message of " + std::to_string(n) + " bytes, more than the " + std::to_string(limits_.n_message_bytes) +
                      " that are taken",
                  "too_long");
        return false;
    }
    stream.n_message = n;
    stream.message.reserve(std::min(n, MAX_RESERVED));
    return true;
}

void Session::break_off(int32_t stream_id, Stream& stream, int status, std::string text, const char* reason) {
    stream.is_broken = true;
    forget_messages(stream);
    end_passage(stream_id, stream);
    events_.push_back({EventKind::broken, stream_id, status, std::move(text), reason});
}

void Session::forget_messages(Stream& stream) {
    held_ -= stream.message.size() + stream.inbound.size();
    stream.n_prefix = stream.n_read = 0;
    stream.message = {};
    stream.inbound = {};
    stream.is_paused = false;
}

}  // namespace kvatlas::http2
