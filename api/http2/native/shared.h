// What the threads of a server share with each other and with Python.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "handoff.h"
#include "session.h"
#include "tls.h"

namespace kvatlas::http2 {

// Number of a call among all of a server: of its thread in the upper bits, counted up in the lower ones.
using CallId = uint64_t;
constexpr int THREAD_SHIFT = 48;

struct ServerLimits {
    Limits session;
    size_t n_connections, n_calls, n_fair_calls;  // all connections; calls in progress; calls that a connection may always open
    double greeting_s, first_message_s, silence_s, pong_s, notice_s, linger_s, gather_s;
};

enum class ToldKind : int {
    opened = 0,     // a call began: `text` is its path
    message = 1,    // `text` is a whole message
    ended = 2,      // the client has sent all
    gone = 3,       // the call is over, whoever ended it, unless Python finished it
    passed = 4,     // `text` is a report of the call's passage
    drained = 5,    // no message of the call waits for the client
    closed = 6,     // a connection was closed by the limit in `text`
    refused = 7,    // a call was refused by the limit in `text`
    mismatch = 8,   // a client speaks TLS, or plain text where TLS is spoken: `text` is which
    empty = 9,      // no connection is left, and no new one is taken
    failed = 10,    // a thread has died: `text` says why
    ready = 11,     // the call waits for the order `pass`: nothing of it is told before
};

// What a connection has told Python and Python has not taken: events and kilobytes.
struct Untaken {
    std::atomic<size_t> n{0};
    const uint64_t connection;  // its number
};

// Limit of `Untaken::n` from which on the client is not read. A service that pauses its call still gets what was told: up to this,
// and what is told until the order arrives; `MAX_WAITING_BYTES` in extproc/call.py is more than both.
constexpr size_t MAX_UNTAKEN = 256;

// What a thread tells Python.
struct Told {
    ToldKind kind;
    CallId call = 0;
    std::string text = {};
    std::shared_ptr<Untaken> untaken = {};  // set if the event counts there

    size_t weight() const { return 1 + text.size() / 1024; }
};

class Shared {
public:
    explicit Shared(ServerLimits server_limits) : limits(server_limits) {}

    const ServerLimits limits;
    Handoff<Told> told;
    std::atomic<int64_t> n_held{0};      // bytes held by all sessions, and by what was told and not taken
    std::atomic<int64_t> n_room{0};      // bytes that sessions may hold together
    std::atomic<int64_t> n_calls{0};
    std::atomic<int64_t> n_connections{0}, n_served{0};  // those handed over to threads included, and without them
    std::atomic<uint64_t> n_deferred{0};  // turns that connections waited for
    std::atomic<bool> is_draining{false};

    // Returns the bytes that a connection may hold, itself holding `n`.
    size_t room(size_t n) const {
        const int64_t room = n_room.load(std::memory_order_relaxed) - n_held.load(std::memory_order_relaxed) + static_cast<int64_t>(n);
        return static_cast<size_t>(std::max<int64_t>(0, room));
    }
};

// `ask` has a call wait until `pass` comes, with a passage or none; `pass` and `resume` have it go on.
enum class OrderKind : int { accept, send, finish, ask, pass, pause, resume, tell_drained, drain, abort_all, shed, read_on, stop };

// What Python, or another thread, has a thread do.
struct Order {
    OrderKind kind;
    CallId call = 0;  // of `read_on`: the number of the connection
    int number = 0;   // file descriptor of `accept`, status of `finish`
    std::string text = {};
    std::unique_ptr<Passage> passage = {};
    std::shared_ptr<const TlsIdentity> identity = {};  // of `accept`; none for plain text
    size_t n_passed_on = 0;                            // by threads without room for the connection of `accept`
};

}  // namespace kvatlas::http2
