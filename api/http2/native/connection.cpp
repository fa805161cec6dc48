#include "connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

#include "timeout.h"
#include "worker.h"

namespace kvatlas::http2 {
namespace {

constexpr int UNIMPLEMENTED = 12, DEADLINE_EXCEEDED = 4, RESOURCE_EXHAUSTED = 8;  // gRPC status codes

constexpr size_t OUTPUT_BYTES = 1 << 18;  // handed to the socket at once
constexpr int MAX_OUTPUTS = 16;           // in one turn; a client that takes more waits for the next
constexpr size_t DROPPED_AT_ONCE = 100;   // calls that pass a time limit and end at once; others wait for the next look
constexpr int MAX_RECORDS = 256;          // of TLS, read in one turn: tiny ones cost as much as others
constexpr double LOOK_S = 0.25;           // between two looks at the time limits

constexpr std::string_view CLIENT_HELLO = "\x16\x03";  // start of every TLS connection

bool is_grpc(std::string_view content_type) { return content_type.starts_with("application/grpc"); }

}  // namespace

Connection::Connection(Worker& worker, Shared& shared, int fd, const TlsIdentity* identity, uint64_t number, double now)
    : worker_(worker), shared_(shared), session_(shared.limits.session), fd_(fd), began_at_(now),
      tls_(identity == nullptr ? nullptr : new Tls(*identity, fd)), untaken_(new Untaken{{0}, number}), heard_at_(now), next_check_(now + LOOK_S) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

Connection::~Connection() {
    while (!calls_.empty()) drop(calls_.begin()->first);
    shared_.n_held -= static_cast<int64_t>(n_held_);
    tls_.reset();  // says goodbye on the socket, whose number may be another's once it is closed
    ::close(fd_);
}

bool Connection::take_turn(double now, bool is_readable) {
    is_readable |= tls_ && tls_->is_blocked();
    if (is_readable && !read_some(now)) return false;
    if (!is_readable && has_work()) {
        if (session_.has_input()) {
            receive({}, now);
        } else if (!read_some(now)) {
            return false;
        }
    }
    return flush(now);
}

// Returns what the socket has, as much as fits into the thread's buffer; without data at the end of the connection.
std::string_view Connection::read_socket(double now) {
    const std::span<char> buffer = worker_.buffer();
    size_t n_read = 0;
    has_more_ = false;
    for (int n_records = 0; n_read < buffer.size(); ++n_records) {
        has_more_ = n_records == MAX_RECORDS;
        if (has_more_) break;
        const std::span<char> rest = buffer.subspan(n_read);
        const ssize_t n = tls_ ? tls_->read(rest, now) : ::recv(fd_, rest.data(), rest.size(), 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n <= 0) {
            if (tls_ && tls_->is_plain()) worker_.tell({ToldKind::mismatch, 0, "plaintext"});
            has_more_ = n_read != 0;  // what came before the end counts, and the next turn finds the end
            if (has_more_) break;
            if (tls_ && tls_->is_flooded()) worker_.tell({ToldKind::closed, 0, "tls_messages"});
            return {};
        }
        n_read += static_cast<size_t>(n);
        if (!tls_ || !tls_->has_pending()) break;  // a record of TLS is a piece; a socket gives all that it has
        has_more_ = n_read == buffer.size();
    }
    return {buffer.data(), n_read};
}

// Returns false at the end of the stream.
bool Connection::read_some(double now) {
    const std::string_view bytes = read_socket(now);
    if (bytes.data() == nullptr) return false;
    if (bytes.empty()) return true;
    heard_at_ = now;
    if (has_ended_) return true;
    if (!tls_ && !std::exchange(has_begun_, true) && bytes.starts_with(CLIENT_HELLO)) worker_.tell({ToldKind::mismatch, 0, "tls"});
    if (session_.has_input() || is_full()) {
        session_.keep(bytes);
    } else {
        receive(bytes, now);
    }
    return true;
}

void Connection::receive(std::string_view bytes, double now) {
    try {
        session_.receive(bytes, now, shared_.room(n_held_));
    } catch (const std::invalid_argument&) {  // not HTTP/2
        end("protocol", now);
        return;
    }
    for (Event& event : session_.take_events()) tell(event, now);
    if (refuses_at_ < NEVER && session_.n_pongs() >= n_pongs_awaited_) {
        refuses_at_ = NEVER;
        session_.refuse_new();
    }
}

void Connection::tell(Event& event, double now) {
    if (event.kind == EventKind::opened) return open(event, now);
    const auto found = calls_.find(event.stream);
    if (found == calls_.end()) return;  // Python has ended it
    Call& call = found->second;
    switch (event.kind) {
        case EventKind::message:
            call.is_silent = false;
            return worker_.tell({ToldKind::message, call.id, std::move(event.text), untaken_});
        case EventKind::passed:
            return worker_.tell({ToldKind::passed, call.id, std::move(event.text), untaken_});
        case EventKind::ended:
            return worker_.tell({ToldKind::ended, call.id, {}, untaken_});
        case EventKind::broken:
            worker_.tell({ToldKind::refused, 0, event.more, untaken_});
            return cancel(event.stream, event.status, event.text);
        default:
            drop(event.stream);
    }
}

void Connection::open(Event& event, double now) {
    if (!is_grpc(event.more)) {
        return session_.finish(event.stream, UNIMPLEMENTED, "content type '" + event.more.substr(0, 200) + "' is not gRPC");
    }
    const int64_t n_calls = shared_.n_calls.load(std::memory_order_relaxed);
    if (n_calls >= static_cast<int64_t>(shared_.limits.n_calls) && calls_.size() >= shared_.limits.n_fair_calls) {
        worker_.tell({ToldKind::refused, 0, "streams", untaken_});
        return session_.finish(event.stream, RESOURCE_EXHAUSTED,
                               std::to_string(n_calls) + " calls are in progress, as many as are taken");
    }
    const CallId id = worker_.open(*this, event.stream);
    const double deadline = now + timeout_s(event.timeout);
    calls_.emplace(event.stream, Call{id, now, deadline});
    next_check_ = std::min(next_check_, deadline);
    ++shared_.n_calls;
    worker_.tell({ToldKind::opened, id, std::move(event.text), untaken_});
}

// Ends a call that is over, after the last report of its passage.
void Connection::drop(int32_t stream) {
    const auto found = calls_.find(stream);
    if (found == calls_.end()) return;
    const CallId id = found->second.id;
    if (std::string report = session_.leave(stream); !report.empty())
        worker_.tell({ToldKind::passed, id, std::move(report), untaken_});
    worker_.tell({ToldKind::gone, id, {}, untaken_});
    worker_.forget(id);
    calls_.erase(found);
    --shared_.n_calls;
}

void Connection::cancel(int32_t stream, int status, std::string_view text) {
    drop(stream);
    session_.finish(stream, status, text);
}

void Connection::obey(Order& order, int32_t stream) {
    const auto found = calls_.find(stream);
    if (found == calls_.end()) return;
    switch (order.kind) {
        case OrderKind::send:
            if (!session_.send(stream, order.text)) {
                worker_.tell({ToldKind::refused, 0, "held_bytes", untaken_});
                drop(stream);
            }
            break;
        case OrderKind::finish:
            worker_.forget(found->second.id);
            calls_.erase(found);
            --shared_.n_calls;
            session_.finish(stream, order.number, order.text);
            break;
        case OrderKind::ask:
            session_.pause(stream);
            worker_.tell({ToldKind::ready, found->second.id, {}, untaken_});
            break;
        case OrderKind::pass:
            session_.pass(stream, std::move(order.passage));
            session_.resume(stream);
            break;
        case OrderKind::pause:
            session_.pause(stream);
            break;
        case OrderKind::resume:
            session_.resume(stream);
            break;
        case OrderKind::tell_drained:
            draining_.push_back(stream);
            break;
        default:
            break;
    }
}

bool Connection::flush(double now) {
    if (is_over_) return false;
    if (tls_ && !tls_->is_open()) {  // the client begins
        watch();
        return true;
    }
    for (int i = 0;; ++i) {
        if (output_.empty()) output_ = session_.take_output(OUTPUT_BYTES);
        if (output_.empty() || i == MAX_OUTPUTS) break;  // what is left goes out in the next turn, which the socket announces
        if (!write_some()) return false;
        if (!output_.empty()) break;  // the socket is full
    }
    std::erase_if(draining_, [&](int32_t stream) {
        if (session_.unsent(stream) != 0) return false;
        if (const auto found = calls_.find(stream); found != calls_.end())
            worker_.tell({ToldKind::drained, found->second.id, {}, untaken_});
        return true;
    });
    if (session_.is_over() && !has_ended_ && output_.empty()) {
        if (*session_.excess() == 0) return false;
        end(session_.excess(), now);
    }
    count_held();
    watch();
    return true;
}

// Returns false if the socket is broken.
bool Connection::write_some() {
    while (n_written_ < output_.size()) {
        const std::string_view rest = std::string_view(output_).substr(n_written_);
        const ssize_t n = tls_ ? tls_->write(rest) : ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
        must_read_ = false;
        if (n < 0) {
            if (errno == EINTR) continue;
            must_read_ = tls_ && !tls_->wants_write();
            return errno == EAGAIN;
        }
        n_written_ += static_cast<size_t>(n);
    }
    output_.clear();
    n_written_ = 0;
    return true;
}

// A client that does not read its answers is not read either, nor one whose input waits.
void Connection::watch() {
    const bool is_blocked = tls_ && tls_->is_blocked();
    const bool is_read = !is_blocked && (has_ended_ || must_read_ || (output_.empty() && !session_.has_input() && !is_full()));
    const bool is_written = is_blocked || (!output_.empty() && !must_read_);
    const uint32_t wanted = (is_read ? static_cast<uint32_t>(EPOLLIN) : 0) | (is_written ? static_cast<uint32_t>(EPOLLOUT) : 0);
    if (wanted == watched_) return;
    worker_.watch(*this, wanted, !std::exchange(is_watched_, true));
    watched_ = wanted;
}

void Connection::count_held() {
    const size_t n = session_.held() + output_.size() - n_written_;
    shared_.n_held += static_cast<int64_t>(n) - static_cast<int64_t>(n_held_);
    n_held_ = n;
}

// Counts the reason, has what is left sent, the GOAWAY above all, and closes the connection after a moment. What the client
// still sends is dropped: a socket closed with unread data takes the GOAWAY away from the client.
void Connection::end(const char* reason, double now) {
    if (std::exchange(has_ended_, true)) return;
    worker_.tell({ToldKind::closed, 0, reason});
    while (!calls_.empty()) drop(calls_.begin()->first);
    ends_at_ = now + shared_.limits.linger_s;
    next_check_ = std::min(next_check_, ends_at_);
}

void Connection::close(const char* reason) {
    worker_.tell({ToldKind::closed, 0, reason});
    is_over_ = true;
}

bool Connection::drain(double now) {
    if (!session_.is_greeted()) return false;
    session_.announce_end();
    session_.ping();
    n_pongs_awaited_ = session_.n_pongs() + 1;
    refuses_at_ = now + shared_.limits.notice_s;
    next_check_ = std::min(next_check_, refuses_at_);
    return true;
}

bool Connection::check_time(double now) {
    if (now < next_check_) return true;
    next_check_ = now + LOOK_S;
    const ServerLimits& limits = shared_.limits;
    if (now >= ends_at_) return false;
    if (now >= refuses_at_) {
        refuses_at_ = NEVER;
        session_.refuse_new();
    }
    if (!session_.is_greeted()) {
        if (now - began_at_ >= limits.greeting_s) close(tls_ && !tls_->is_open() ? "handshake" : "greeting");
    } else if (pinged_at_ > heard_at_) {
        if (now - pinged_at_ >= limits.pong_s) close("silence");
    } else if (now - heard_at_ >= limits.silence_s) {
        session_.ping();
        pinged_at_ = now;
    }
    size_t n_late = 0;
    for (auto each = calls_.begin(); each != calls_.end() && n_late < DROPPED_AT_ONCE;) {
        const auto& [stream, call] = *each++;
        const bool is_silent = call.is_silent && now - call.opened_at >= limits.first_message_s;
        if (!is_silent && now < call.deadline) {
            next_check_ = std::min(next_check_, call.deadline);
            continue;
        }
        ++n_late;
        if (is_silent) worker_.tell({ToldKind::refused, 0, "first_message", untaken_});
        cancel(stream, DEADLINE_EXCEEDED, is_silent ? "no message came on the call" : "the call took longer than its deadline");
    }
    if (is_over_) return false;
    return flush(now);
}

}  // namespace kvatlas::http2
