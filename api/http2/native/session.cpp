#include "session.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace kvatlas::http2 {
namespace {

using nghttp2::Field;
using nghttp2::Frame;

// Window of a client: a body of usual size in one go, and no more memory for one that stalls.
constexpr int32_t STREAM_WINDOW = 1 << 20, CONNECTION_WINDOW = 1 << 24;

// Limit of replies that wait for a client that does not read; past it, the call's own messages are not read either.
constexpr size_t MAX_UNSENT = 1 << 20;

// Limit of stream resets by a client, by default 33 per second. A gateway resets every stream that it has finished.
constexpr uint64_t MAX_RESETS = 1'000'000;

// Bytes that a client may send on a finished call before its stream is reset. Clients end such a call by themselves, and
// some treat a reset while they send as a failure of the call.
constexpr size_t MAX_IGNORED = 1 << 24;

// Most memory reserved for the length in a prefix; a longer message grows as it comes.
constexpr size_t MAX_RESERVED = 1 << 20;

constexpr size_t MAX_HEADER_BYTES = 64 * 1024;
constexpr size_t FIELD_OVERHEAD = 32;  // RFC 9113 section 6.5.2

constexpr int UNIMPLEMENTED = 12, INTERNAL = 13, RESOURCE_EXHAUSTED = 8;  // gRPC status codes

Field field(std::string_view name, std::string_view value) {
    return {reinterpret_cast<const uint8_t*>(name.data()), reinterpret_cast<const uint8_t*>(value.data()), name.size(),
            value.size(), 0};
}

// grpc-message in the gRPC wire format: all but printable ASCII percent-encoded.
std::string percent_encoded(std::string_view text) {
    constexpr char digits[] = "0123456789ABCDEF";
    std::string encoded;
    for (const char each : text) {
        const auto byte = static_cast<uint8_t>(each);
        if (byte >= 0x20 && byte <= 0x7e && byte != '%') {
            encoded += each;
        } else {
            encoded += {'%', digits[byte >> 4], digits[byte & 15]};
        }
    }
    return encoded;
}

}  // namespace

struct Session::Callbacks {
    static Session& of(void* user) { return *static_cast<Session*>(user); }

    static int begin_headers(nghttp2::Session*, const Frame* frame, void* user) { return of(user).begin_headers(*frame); }
    static int header(nghttp2::Session*, const Frame* frame, const uint8_t* name, size_t n_name, const uint8_t* value,
                      size_t n_value, uint8_t, void* user) {
        return of(user).header(*frame, {reinterpret_cast<const char*>(name), n_name},
                               {reinterpret_cast<const char*>(value), n_value});
    }
    static int frame_received(nghttp2::Session*, const Frame* frame, void* user) {
        of(user).frame_received(*frame);
        return 0;
    }
    static int data(nghttp2::Session*, uint8_t, int32_t stream_id, const uint8_t* data, size_t n_data, void* user) {
        of(user).data(stream_id, {reinterpret_cast<const char*>(data), n_data});
        return 0;
    }
    static int closed(nghttp2::Session*, int32_t stream_id, uint32_t, void* user) {
        of(user).closed(stream_id);
        return 0;
    }
    static ssize_t read(nghttp2::Session*, int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags, nghttp2::Source*,
                        void* user) {
        return of(user).read(stream_id, out, n_out, flags);
    }
};

Session::Session(Limits limits) : library_(nghttp2::library()), limits_(limits) {
    nghttp2::Callbacks* callbacks = nullptr;
    nghttp2::Option* option = nullptr;
    if (library_.session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
    library_.session_callbacks_set_on_begin_headers_callback(callbacks, Callbacks::begin_headers);
    library_.session_callbacks_set_on_header_callback(callbacks, Callbacks::header);
    library_.session_callbacks_set_on_frame_recv_callback(callbacks, Callbacks::frame_received);
    library_.session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::data);
    library_.session_callbacks_set_on_stream_close_callback(callbacks, Callbacks::closed);
    if (library_.option_new(&option) == 0) {
        library_.option_set_no_auto_window_update(option, 1);
        library_.option_set_no_closed_streams(option, 1);
        if (library_.option_set_stream_reset_rate_limit != nullptr)
            library_.option_set_stream_reset_rate_limit(option, MAX_RESETS, MAX_RESETS);
        library_.session_server_new2(&session_, callbacks, this, option);
        library_.option_del(option);
    }
    library_.session_callbacks_del(callbacks);
    if (session_ == nullptr) throw std::bad_alloc();
    const std::array settings = {
        nghttp2::Setting{nghttp2::MAX_CONCURRENT_STREAMS, limits_.n_streams},
        nghttp2::Setting{nghttp2::INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        nghttp2::Setting{nghttp2::MAX_HEADER_LIST_SIZE, MAX_HEADER_BYTES},
    };
    library_.submit_settings(session_, 0, settings.data(), settings.size());
    library_.session_set_local_window_size(session_, 0, 0, CONNECTION_WINDOW);
}

Session::~Session() { library_.session_del(session_); }

void Session::receive(std::string_view bytes) {
    const ssize_t n = library_.session_mem_recv(session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (n < 0) throw std::invalid_argument(library_.strerror(static_cast<int>(n)));
}

std::string Session::take_output() {
    std::string output;
    const uint8_t* bytes = nullptr;
    for (ssize_t n; (n = library_.session_mem_send(session_, &bytes)) != 0;) {
        if (n < 0) throw std::bad_alloc();
        output.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
    }
    return output;
}

void Session::send(int32_t stream_id, std::string_view message) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_finished) return;
    const auto n = static_cast<uint32_t>(message.size());
    const char prefix[PREFIX_BYTES] = {0, static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
                                       static_cast<char>(n)};
    stream->outbound.append(prefix, PREFIX_BYTES).append(message);
    answer(stream_id, *stream);
}

void Session::finish(int32_t stream_id, int status, std::string_view text) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_finished) return;
    stream->is_finished = true;
    stream->status = status;
    stream->status_text = percent_encoded(text);
    answer(stream_id, *stream);
}

size_t Session::unsent(int32_t stream_id) const {
    const auto found = streams_.find(stream_id);
    return found == streams_.end() ? 0 : found->second.n_unsent();
}

void Session::ping() { library_.submit_ping(session_, 0, nullptr); }

void Session::announce_end() { library_.submit_shutdown_notice(session_); }

void Session::refuse_new() {
    is_refusing_ = true;
    library_.submit_goaway(session_, 0, library_.session_get_last_proc_stream_id(session_), nghttp2::NO_ERROR, nullptr, 0);
}

bool Session::is_over() const {
    if (library_.session_want_write(session_) != 0) return false;
    if (library_.session_want_read(session_) == 0) return true;
    // A call that is finished and sent may still be open on the client's side.
    return is_refusing_ && std::ranges::all_of(streams_, [](const auto& each) {
        return each.second.is_finished && each.second.n_unsent() == 0;
    });
}

int Session::begin_headers(const Frame& frame) {
    streams_.try_emplace(frame.header.stream_id);  // trailers begin on a stream that is there
    return 0;
}

int Session::header(const Frame& frame, std::string_view name, std::string_view value) {
    Stream* const stream = find(frame.header.stream_id);
    if (stream == nullptr) return 0;
    stream->n_header_bytes += name.size() + value.size() + FIELD_OVERHEAD;
    if (stream->n_header_bytes > MAX_HEADER_BYTES) return nghttp2::ERR_TEMPORAL_CALLBACK_FAILURE;  // resets the stream
    if (name == ":path") stream->path = value;
    if (name == "content-type") stream->content_type = value;
    if (name == "grpc-timeout") stream->timeout = value;
    return 0;
}

void Session::frame_received(const Frame& frame) {
    const nghttp2::FrameHeader& header = frame.header;
    if (header.type == nghttp2::PING && (header.flags & nghttp2::ACK) != 0) ++n_pongs_;
    if (header.type != nghttp2::HEADERS && header.type != nghttp2::DATA) return;
    Stream* const stream = find(header.stream_id);
    if (stream == nullptr) return;
    if (!stream->is_opened) {
        stream->is_opened = true;
        events_.push_back({EventKind::opened, header.stream_id, 0, std::move(stream->path), std::move(stream->content_type),
                           std::move(stream->timeout)});
    }
    if ((header.flags & nghttp2::END_STREAM) == 0) return;
    stream->client_ended = true;
    if (stream->n_prefix != 0) {
        break_off(header.stream_id, *stream, INTERNAL, "the call ended within a message");
    } else if (!stream->is_broken) {
        events_.push_back({EventKind::ended, header.stream_id});
    }
}

void Session::data(int32_t stream_id, std::string_view bytes) {
    library_.session_consume_connection(session_, bytes.size());
    Stream* const stream = find(stream_id);
    if (stream == nullptr) return;
    if (stream->n_unsent() > MAX_UNSENT) {
        stream->unconsumed += bytes.size();
    } else {
        library_.session_consume_stream(session_, stream_id, bytes.size());
    }
    if (stream->is_broken || stream->is_finished) {
        stream->n_ignored += bytes.size();
        if (stream->n_ignored > MAX_IGNORED) library_.submit_rst_stream(session_, 0, stream_id, nghttp2::NO_ERROR);
        return;
    }
    take_messages(stream_id, *stream, bytes);
}

void Session::closed(int32_t stream_id) {
    const auto found = streams_.find(stream_id);
    if (found == streams_.end()) return;
    const bool is_told = found->second.is_opened && !found->second.is_finished;
    streams_.erase(found);
    if (is_told) events_.push_back({EventKind::gone, stream_id});
}

ssize_t Session::read(int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr) return nghttp2::ERR_TEMPORAL_CALLBACK_FAILURE;
    const size_t n = std::min(n_out, stream->n_unsent());
    std::memcpy(out, stream->outbound.data() + stream->sent, n);
    stream->sent += n;
    if (stream->n_unsent() == 0) {
        stream->outbound.clear();
        stream->sent = 0;
        if (stream->is_finished) {
            *flags = nghttp2::DATA_EOF | nghttp2::DATA_NO_END_STREAM;
            submit_trailer(stream_id, *stream);
        } else if (n == 0) {
            return nghttp2::ERR_DEFERRED;
        }
    }
    if (stream->unconsumed != 0 && stream->n_unsent() <= MAX_UNSENT) {
        library_.session_consume_stream(session_, stream_id, std::exchange(stream->unconsumed, 0));
    }
    return static_cast<ssize_t>(n);
}

void Session::take_messages(int32_t stream_id, Stream& stream, std::string_view bytes) {
    while (!bytes.empty()) {
        if (!take_prefix(stream_id, stream, bytes)) return;
        const size_t n = std::min(bytes.size(), stream.n_message - stream.message.size());
        stream.message.append(bytes.substr(0, n));
        bytes.remove_prefix(n);
        if (stream.message.size() < stream.n_message) return;
        events_.push_back({EventKind::message, stream_id, 0, std::exchange(stream.message, {})});
        stream.n_prefix = 0;
    }
}

// Returns whether the prefix is complete and its message is allowed.
bool Session::take_prefix(int32_t stream_id, Stream& stream, std::string_view& bytes) {
    auto& prefix = stream.prefix;
    if (stream.n_prefix == prefix.size()) return true;
    const size_t n_new = std::min(bytes.size(), prefix.size() - stream.n_prefix);
    std::memcpy(prefix.data() + stream.n_prefix, bytes.data(), n_new);
    bytes.remove_prefix(n_new);
    stream.n_prefix += n_new;
    if (stream.n_prefix < prefix.size()) return false;
    const size_t n = size_t{prefix[1]} << 24 | size_t{prefix[2]} << 16 | size_t{prefix[3]} << 8 | prefix[4];
    if (prefix[0] != 0) {
        break_off(stream_id, stream, UNIMPLEMENTED, "compressed messages are not taken");
        return false;
    }
    if (n > limits_.n_message_bytes) {
        break_off(stream_id, stream, RESOURCE_EXHAUSTED,
                  "a message of " + std::to_string(n) + " bytes, more than the " + std::to_string(limits_.n_message_bytes) +
                      " that are taken");
        return false;
    }
    stream.n_message = n;
    stream.message.reserve(std::min(n, MAX_RESERVED));
    return true;
}

void Session::break_off(int32_t stream_id, Stream& stream, int status, std::string text) {
    stream.is_broken = true;
    stream.n_prefix = 0;
    stream.message = {};
    events_.push_back({EventKind::broken, stream_id, status, std::move(text)});
}

// Headers are sent with the first message, or with the status of a call without messages.
void Session::answer(int32_t stream_id, Stream& stream) {
    if (stream.has_answered) {
        library_.session_resume_data(session_, stream_id);
        return;
    }
    stream.has_answered = true;
    const std::string status = std::to_string(stream.status);
    const std::array fields = {
        field(":status", "200"), field("content-type", "application/grpc"), field("grpc-accept-encoding", "identity"),
        field("grpc-status", status), field("grpc-message", stream.status_text),
    };
    if (stream.is_finished && stream.outbound.empty()) {
        library_.submit_response(session_, stream_id, fields.data(), fields.size() - (stream.status_text.empty() ? 1 : 0), nullptr);
        return;
    }
    const nghttp2::DataProvider provider = {{.pointer = nullptr}, Callbacks::read};
    library_.submit_response(session_, stream_id, fields.data(), 3, &provider);
}

void Session::submit_trailer(int32_t stream_id, const Stream& stream) {
    const std::string status = std::to_string(stream.status);
    const std::array fields = {field("grpc-status", status), field("grpc-message", stream.status_text)};
    library_.submit_trailer(session_, stream_id, fields.data(), stream.status_text.empty() ? 1 : 2);
}

Session::Stream* Session::find(int32_t stream_id) {
    const auto found = streams_.find(stream_id);
    return found == streams_.end() ? nullptr : &found->second;
}

}  // namespace kvatlas::http2
