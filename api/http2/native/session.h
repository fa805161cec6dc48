// The server's side of one HTTP/2 connection with gRPC calls, without I/O: bytes in, events out, and back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nghttp2.h"

namespace kvatlas::http2 {

constexpr size_t PREFIX_BYTES = 5;  // of a gRPC message: a flag and its length

struct Limits {
    uint32_t n_streams;
    size_t n_message_bytes;
};

enum class EventKind : int {
    opened = 0,   // a call began: `text` is its path, `more` its content type, `timeout` its grpc-timeout
    message = 1,  // `text` is a whole message
    ended = 2,    // the client has sent all
    gone = 3,     // the client gave the call up, or the connection did: nothing can be sent
    broken = 4,   // the client's messages break the protocol or a limit: `status` and `text` are to be told
};

struct Event {
    EventKind kind;
    int32_t stream;
    int status = 0;
    std::string text = {}, more = {}, timeout = {};
};

class Session {
public:
    explicit Session(Limits limits);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session();

    // Takes bytes of the client. Throws std::invalid_argument if they are not HTTP/2; the connection is then lost.
    void receive(std::string_view bytes);

    // Returns the events since the last call.
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

    // Returns bytes for the client. Flow control may hold some back until the client accepts more.
    std::string take_output();

    // Sends one message, or ends a call; without effect if the call is over.
    void send(int32_t stream, std::string_view message);
    void finish(int32_t stream, int status, std::string_view text);

    // Returns the bytes of a call that wait for the client.
    size_t unsent(int32_t stream) const;

    void ping();
    size_t n_pongs() const { return n_pongs_; }

    // Asks the client to open no more calls; `refuse_new` then ignores those that it opens nevertheless.
    void announce_end();
    void refuse_new();

    // Returns whether nothing can be received or sent any more.
    bool is_over() const;

private:
    struct Stream {
        std::string path, content_type, timeout;
        size_t n_header_bytes = 0;
        std::array<uint8_t, PREFIX_BYTES> prefix{};  // of the message that is coming, as far as it came
        size_t n_prefix = 0, n_message = 0;
        std::string message;
        std::string outbound;  // framed messages from `sent` on
        size_t sent = 0;
        size_t n_ignored = 0;
        size_t unconsumed = 0;  // bytes taken from the client for which it got no new window yet
        std::string status_text;
        int status = 0;
        bool is_opened = false, is_broken = false, client_ended = false, has_answered = false, is_finished = false;

        size_t n_unsent() const { return outbound.size() - sent; }
    };

    int begin_headers(const nghttp2::Frame& frame);
    int header(const nghttp2::Frame& frame, std::string_view name, std::string_view value);
    void frame_received(const nghttp2::Frame& frame);
    void data(int32_t stream_id, std::string_view bytes);
    void closed(int32_t stream_id);
    ssize_t read(int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags);

    void take_messages(int32_t stream_id, Stream& stream, std::string_view bytes);
    bool take_prefix(int32_t stream_id, Stream& stream, std::string_view& bytes);
    void break_off(int32_t stream_id, Stream& stream, int status, std::string text);
    void answer(int32_t stream_id, Stream& stream);
    void submit_trailer(int32_t stream_id, const Stream& stream);
    Stream* find(int32_t stream_id);

    struct Callbacks;

    const nghttp2::Library& library_;
    const Limits limits_;
    nghttp2::Session* session_ = nullptr;
    std::unordered_map<int32_t, Stream> streams_;
    std::vector<Event> events_;
    size_t n_pongs_ = 0;
    bool is_refusing_ = false;
};

}  // namespace kvatlas::http2
