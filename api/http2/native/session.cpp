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

// Limit of the library for stream resets by a client, by default 33 per second. A gateway resets every stream that it has
// finished; the session counts those without an answer itself.
constexpr uint64_t MAX_RESETS = 1'000'000;

// Frames with settings after the first ones. Clients that measure the network adjust their window now and then; each
// adjustment costs a step for every stream.
constexpr double SETTINGS_AT_ONCE = 100, SETTINGS_PER_SECOND = 2;
constexpr size_t MAX_SETTINGS = 16;  // in one frame; eight are defined
constexpr size_t STREAMS_PER_WORK = 4096;

// Frames of one header block; its bytes are limited as those of the headers. Late versions of the library take nine.
constexpr size_t MAX_BLOCK_FRAMES = 8;

// Bytes already sent that are kept at most in front of those that wait.
constexpr size_t MAX_SENT = 1 << 18;

constexpr size_t MAX_HEADER_BYTES = 64 * 1024;
constexpr size_t FIELD_OVERHEAD = 32;  // RFC 9113 section 6.5.2


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

Session::Session(Limits limits)
    : library_(nghttp2::library()),
      limits_(limits),
      early_ends_(static_cast<double>(limits.n_early_ends), static_cast<double>(limits.n_early_ends) / 10),
      settings_(SETTINGS_AT_ONCE, SETTINGS_PER_SECOND) {
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
        library_.option_set_max_settings(option, MAX_SETTINGS);
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
        // The tree of priorities costs a step for every stream in it.
        nghttp2::Setting{nghttp2::NO_RFC7540_PRIORITIES, 1},
    };
    library_.submit_settings(session_, 0, settings.data(), settings.size());
    library_.session_set_local_window_size(session_, 0, 0, CONNECTION_WINDOW);
}

Session::~Session() { library_.session_del(session_); }

void Session::receive(std::string_view bytes, double now, size_t may_hold) {
    now_ = now;
    may_hold_ = may_hold;
    n_work_ = 0;
    if (!input_.empty()) {
        input_.append(bytes);
        input_.erase(0, take(input_));
        if (input_.empty()) input_ = {};
    } else {
        const size_t n = take(bytes);
        input_.assign(bytes.substr(n));
    }
}

// Reads frames until the work is done, and returns the bytes read.
size_t Session::take(std::string_view bytes) {
    for (size_t n = ready_.size(); n > 0 && n_work_ < MAX_WORK; --n) {
        const int32_t stream_id = ready_.front();
        ready_.pop_front();
        take_waiting(stream_id);
    }
    size_t n_taken = 0;
    while (n_taken < bytes.size() && n_work_ < MAX_WORK && *excess_ == 0) {
        const std::string_view rest = bytes.substr(n_taken);
        const size_t n = frames_.next(rest);
        if (frames_.has_begun()) begin_frame(frames_.head());
        if (*excess_ != 0) break;
        const ssize_t n_read = library_.session_mem_recv(session_, reinterpret_cast<const uint8_t*>(rest.data()), n);
        if (n_read < 0) throw std::invalid_argument(library_.strerror(static_cast<int>(n_read)));
        n_taken += n;
    }
    return *excess_ == 0 ? n_taken : bytes.size();
}

void Session::begin_frame(const FrameHead& head) {
    ++n_work_;
    if (head.type == nghttp2::HEADERS) n_block_ = n_block_frames_ = 0;
    if (head.type == nghttp2::HEADERS || head.type == nghttp2::CONTINUATION) {
        n_block_ += head.length;
        n_work_ += head.length / 1024;
        if (n_block_ > MAX_HEADER_BYTES || ++n_block_frames_ > MAX_BLOCK_FRAMES) end("header_block");
    }
    if (head.type == nghttp2::SETTINGS && (head.flags & nghttp2::ACK) == 0) {
        n_work_ += (1 + streams_.size() / STREAMS_PER_WORK) * (head.length / 6);
        if (!settings_.take(now_)) end("settings");
    }
}

void Session::end(const char* excess) {
    if (*excess_ != 0) return;
    excess_ = excess;
    library_.session_terminate_session(session_, nghttp2::ENHANCE_YOUR_CALM);
}

std::string Session::take_output(size_t n) {
    std::string output;
    const uint8_t* bytes = nullptr;
    while (output.size() < n) {
        const ssize_t n_bytes = library_.session_mem_send(session_, &bytes);
        if (n_bytes == 0) break;
        if (n_bytes < 0) throw std::bad_alloc();
        output.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n_bytes));
    }
    return output;
}

void Session::pause(int32_t stream_id) {
    Stream* const stream = find(stream_id);
    if (stream != nullptr && !stream->is_finished) stream->is_paused = true;
}

void Session::resume(int32_t stream_id) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || !stream->is_paused) return;
    stream->is_paused = false;
    ready_.push_back(stream_id);
}

bool Session::send(int32_t stream_id, std::string_view message) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_finished || stream->is_broken) return true;
    if (stream->n_unsent() != 0 && !has_room(*stream, PREFIX_BYTES + message.size())) {
        stream->is_broken = true;
        forget_messages(*stream);
        held_ -= stream->outbound.size();
        stream->outbound = {};
        stream->sent = 0;
        library_.submit_rst_stream(session_, 0, stream_id, nghttp2::ENHANCE_YOUR_CALM);
        return false;
    }
    append_message_prefix(stream->outbound, message.size());
    stream->outbound.append(message);
    held_ += PREFIX_BYTES + message.size();
    answer(stream_id, *stream);
    return true;
}

void Session::finish(int32_t stream_id, int status, std::string_view text) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr || stream->is_finished) return;
    stream->is_finished = true;
    forget_messages(*stream);
    held_ -= stream->n_passage();
    stream->passage = nullptr;
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
    came_.other = true;
    return 0;
}

int Session::header(const Frame& frame, std::string_view name, std::string_view value) {
    Stream* const stream = find(frame.header.stream_id);
    if (stream == nullptr) return 0;
    const size_t n = name.size() + value.size() + FIELD_OVERHEAD;
    n_work_ += n / 1024;
    stream->n_header_bytes += n;
    if (stream->n_header_bytes > MAX_HEADER_BYTES) return nghttp2::ERR_TEMPORAL_CALLBACK_FAILURE;  // resets the stream
    if (!stream->opening) return 0;  // trailers
    if (name == ":path") stream->opening->path = value;
    if (name == "content-type") stream->opening->content_type = value;
    if (name == "grpc-timeout") stream->opening->timeout = value;
    return 0;
}

void Session::frame_received(const Frame& frame) {
    const nghttp2::FrameHeader& header = frame.header;
    if (header.type == nghttp2::PING && (header.flags & nghttp2::ACK) != 0) ++n_pongs_;
    if (header.type == nghttp2::SETTINGS) is_greeted_ = true;
    if (header.type != nghttp2::HEADERS && header.type != nghttp2::DATA) return;
    Stream* const stream = find(header.stream_id);
    if (stream == nullptr) return;
    if (const auto opening = std::exchange(stream->opening, nullptr)) {
        events_.push_back({EventKind::opened, header.stream_id, 0, std::move(opening->path), std::move(opening->content_type),
                           std::move(opening->timeout)});
    }
    if ((header.flags & nghttp2::END_STREAM) == 0) return;
    stream->client_ended = true;
    end_messages(header.stream_id, *stream);
}

void Session::closed(int32_t stream_id) {
    const auto found = streams_.find(stream_id);
    if (found == streams_.end()) return;
    const bool is_told = !found->second.opening && !found->second.is_finished;
    const bool is_early = !found->second.has_answered;
    if (is_told) end_passage(stream_id, found->second);
    held_ -= found->second.n_held();
    streams_.erase(found);
    if (is_told) events_.push_back({EventKind::gone, stream_id});
    if (is_early && !early_ends_.take(now_)) end("resets");
}

ssize_t Session::read(int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags) {
    Stream* const stream = find(stream_id);
    if (stream == nullptr) return nghttp2::ERR_TEMPORAL_CALLBACK_FAILURE;
    const size_t n = std::min(n_out, stream->n_unsent());
    std::memcpy(out, stream->outbound.data() + stream->sent, n);
    stream->sent += n;
    const bool is_sent = stream->n_unsent() == 0;
    if (is_sent || (stream->sent > MAX_SENT && stream->sent > stream->outbound.size() / 2)) {
        held_ -= stream->sent;
        stream->outbound.erase(0, std::exchange(stream->sent, 0));
    }
    if (is_sent) {
        stream->outbound = {};  // of thousands of streams, few send at any moment
        if (stream->is_finished) {
            *flags = nghttp2::DATA_EOF | nghttp2::DATA_NO_END_STREAM;
            submit_trailer(stream_id, *stream);
        } else if (n == 0) {
            return nghttp2::ERR_DEFERRED;
        }
    }
    renew_window(stream_id, *stream);
    return static_cast<ssize_t>(n);
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
