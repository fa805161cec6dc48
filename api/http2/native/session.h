// The server's side of one HTTP/2 connection with gRPC calls, without I/O: bytes in, events out, and back.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "budget.h"
#include "nghttp2.h"
#include "passage.h"

namespace kvatlas::http2 {

constexpr size_t PREFIX_BYTES = 5;  // of a gRPC message: a flag and its length

// Work of one `receive`, in frames, messages and kilobytes of headers: at most a few milliseconds for the whole process.
constexpr size_t MAX_WORK = 128;

// Most memory reserved for the length in a prefix, which costs the client nothing; a longer message grows as it comes.
constexpr size_t MAX_RESERVED = 1 << 16;

// Most bytes of a stream that holds little.
constexpr size_t MAX_SMALL = 1 << 20;

struct Limits {
    uint32_t n_streams;
    size_t n_message_bytes;
    size_t n_early_ends;  // streams that may end at once without an answer; a tenth of them per second in the long run
    size_t n_spare_bytes;  // held beyond `may_hold` for streams that hold little, so that large ones cannot crowd them out
};

enum class EventKind : int {
    opened = 0,   // a call began: `text` is its path, `more` its content type, `timeout` its grpc-timeout
    message = 1,  // `text` is a whole message
    ended = 2,    // the client has sent all
    gone = 3,     // the client gave the call up, or the connection did: nothing can be sent
    broken = 4,   // the client's messages break the protocol or a limit: `status` and `text` are to be told, `more` is counted
    passed = 5,   // `text` is a report of the call's passage
};

struct Event {
    EventKind kind;
    int32_t stream;
    int status = 0;
    std::string text = {}, more = {}, timeout = {};
};

struct Came {
    size_t n_passed = 0;  // messages that passages answered
    bool other = false;   // what may be a request
};

class Session {
public:
    explicit Session(Limits limits);
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session();

    // Takes bytes of the client, at `now` in seconds, as long as their work is within the budget of one call; keeps the
    // rest for the next call. The session may hold `may_hold` bytes. Throws std::invalid_argument if the bytes are not
    // HTTP/2; the connection is then lost.
    void receive(std::string_view bytes, double now, size_t may_hold);

    // Keeps bytes of the client for the next `receive`.
    void keep(std::string_view bytes) { input_.append(bytes); }
    bool has_input() const { return !input_.empty() || !ready_.empty(); }

    // Returns the bytes held: partial messages, messages of paused calls, answers that wait, input.
    size_t held() const { return held_ + input_.size(); }

    // Returns the limit that the client broke, after which the connection has to be closed; empty if none.
    const char* excess() const { return excess_; }

    // Returns whether the client has sent its preface and settings.
    bool is_greeted() const { return is_greeted_; }

    // Stops and continues delivering the messages of a call. A paused client gets no new window.
    void pause(int32_t stream);
    void resume(int32_t stream);

    // Returns what came since the last call.
    Came take_came() { return std::exchange(came_, {}); }

    // Returns the events since the last call.
    std::vector<Event> take_events() { return std::exchange(events_, {}); }

    // Returns at least `n` bytes for the client, or all that there are. Flow control may hold some back until the client
    // accepts more.
    std::string take_output(size_t n);

    // Sends one message, or ends a call; without effect if the call is over. Returns false if there is no room for a
    // further message that waits: the stream is then reset.
    bool send(int32_t stream, std::string_view message);
    void finish(int32_t stream, int status, std::string_view text);

    // Has a passage answer the messages of a call from the next one on. Its reports become events, the last of them before
    // the event of the message that it leaves, or of the end of the call. Without effect if the call is over.
    void pass(int32_t stream, std::unique_ptr<Passage> passage);

    // Ends the passage of a call, and returns its last report; empty if there is none.
    std::string leave(int32_t stream);

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
    struct Opening {
        std::string path, content_type, timeout;
    };

    struct Stream {
        std::unique_ptr<Opening> opening = std::make_unique<Opening>();  // until the call is told
        size_t n_header_bytes = 0, n_message = 0;
        std::string message;
        std::string inbound;  // bytes not yet read, from `n_read` on: the call is paused, or the work of one `receive` is done
        size_t n_read = 0;
        std::string outbound;  // framed messages from `sent` on
        size_t sent = 0;
        size_t n_ignored = 0;
        size_t unconsumed = 0;  // bytes taken from the client for which it got no new window yet
        std::string status_text;
        std::unique_ptr<Passage> passage;
        int status = 0;
        std::array<uint8_t, PREFIX_BYTES> prefix{};  // of the message that is coming, as far as it came
        uint8_t n_prefix = 0;
        bool is_broken = false, client_ended = false, has_answered = false, is_finished = false, is_paused = false;

        size_t n_unsent() const { return outbound.size() - sent; }
        size_t n_passage() const { return passage ? passage->n_held() : 0; }
        size_t n_held() const { return message.size() + inbound.size() + outbound.size() + n_passage(); }
    };

    int begin_headers(const nghttp2::Frame& frame);
    int header(const nghttp2::Frame& frame, std::string_view name, std::string_view value);
    void frame_received(const nghttp2::Frame& frame);
    void data(int32_t stream_id, std::string_view bytes);
    void closed(int32_t stream_id);
    ssize_t read(int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags);

    size_t take(std::string_view bytes);
    void begin_frame(const FrameHead& head);
    void take_waiting(int32_t stream_id);
    void end_messages(int32_t stream_id, Stream& stream);
    size_t take_messages(int32_t stream_id, Stream& stream, std::string_view bytes);
    bool take_prefix(int32_t stream_id, Stream& stream, std::string_view& bytes);
    template <class Text>
    void end_message(int32_t stream_id, Stream& stream, Text message);
    bool is_passed(int32_t stream_id, Stream& stream, std::string_view message);
    void end_passage(int32_t stream_id, Stream& stream);
    void forget_messages(Stream& stream);
    bool has_room(const Stream& stream, size_t n) const {
        const size_t n_spare = stream.n_held() + n <= MAX_SMALL ? limits_.n_spare_bytes : 0;
        return held() + n <= may_hold_ + n_spare;
    }
    void renew_window(int32_t stream_id, Stream& stream);
    void break_off(int32_t stream_id, Stream& stream, int status, std::string text, const char* reason);
    void end(const char* excess);
    void answer(int32_t stream_id, Stream& stream);
    void submit_trailer(int32_t stream_id, const Stream& stream);
    Stream* find(int32_t stream_id);

    struct Callbacks;

    const nghttp2::Library& library_;
    const Limits limits_;
    nghttp2::Session* session_ = nullptr;
    std::unordered_map<int32_t, Stream> streams_;
    std::vector<Event> events_;
    std::string input_;
    std::deque<int32_t> ready_;  // streams with bytes to read that are not paused
    FrameReader frames_;
    Rate early_ends_, settings_;
    size_t n_block_ = 0, n_block_frames_ = 0;  // of the header block that is coming
    size_t n_work_ = 0, held_ = 0, may_hold_ = SIZE_MAX;
    double now_ = 0;
    const char* excess_ = "";
    size_t n_pongs_ = 0;
    bool is_refusing_ = false, is_greeted_ = false;
    Came came_;
};

}  // namespace kvatlas::http2
