// One client's connection in a thread: bytes between a socket and a session, and the calls on it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "session.h"
#include "shared.h"

namespace kvatlas::http2 {

class Worker;

constexpr double NEVER = std::numeric_limits<double>::infinity();

class Connection {
public:
    // Takes the socket `fd` over. Speaks TLS if there is an identity.
    Connection(Worker& worker, Shared& shared, int fd, const TlsIdentity* identity, uint64_t number, double now);
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    ~Connection();

    int fd() const { return fd_; }
    uint64_t number() const { return untaken_->connection; }

    // Reads from the socket, if it is readable, and does one piece of work. Returns false if the connection is over.
    bool take_turn(double now, bool is_readable);

    // Returns what came since the last call.
    Came take_came() { return session_.take_came(); }

    // Returns whether input waits for another turn.
    bool has_work() const { return !has_ended_ && !is_full() && (session_.has_input() || has_more_); }

    // Returns false if the connection has passed a time limit and is over.
    bool check_time(double now);

    // Carries out an order about a call; `flush` must follow.
    void obey(Order& order, int32_t stream);

    // Sends what there is to send. Returns false if the connection is over.
    bool flush(double now);

    // Has the client open no more calls. Returns false if it has not begun: the connection is over.
    bool drain(double now);
    void close(const char* reason);  // tells the reason; the connection is over

    size_t n_calls() const { return calls_.size(); }
    // Where it stands among those without calls: the lowest is closed first. One that has not greeted comes before those that
    // have, in order of arrival, so that no bytes of half a greeting keep a place.
    std::tuple<bool, double, uint64_t> standing() const {
        const bool is_greeted = session_.is_greeted();
        return {is_greeted, is_greeted ? heard_at_ : began_at_, number()};
    }

private:
    struct Call {
        CallId id;
        double opened_at, deadline;  // seconds; deadline is infinite without one
        bool is_silent = true;
    };

    bool read_some(double now);
    std::string_view read_socket(double now);
    void receive(std::string_view bytes, double now);
    void tell(Event& event, double now);
    void open(Event& event, double now);
    void drop(int32_t stream);
    void cancel(int32_t stream, int status, std::string_view text);
    void end(const char* reason, double now);
    bool write_some();
    void watch();
    void count_held();
    bool is_full() const { return untaken_->n.load(std::memory_order_relaxed) >= MAX_UNTAKEN; }

    Worker& worker_;
    Shared& shared_;
    Session session_;
    const int fd_;
    const double began_at_;
    std::unique_ptr<Tls> tls_;  // none for plain text
    std::unordered_map<int32_t, Call> calls_;
    std::vector<int32_t> draining_;  // calls of which Python waits until all is sent
    std::shared_ptr<Untaken> untaken_;
    std::string output_;  // from `n_written_` on
    size_t n_written_ = 0, n_held_ = 0, n_pongs_awaited_ = 0;
    double heard_at_, pinged_at_ = 0, refuses_at_ = NEVER, ends_at_ = NEVER, next_check_;
    uint32_t watched_ = 0;  // what epoll watches
    bool has_ended_ = false, is_over_ = false, has_begun_ = false, is_watched_ = false, must_read_ = false;
    bool has_more_ = false;  // TLS may hold bytes that the socket no longer shows
};

}  // namespace kvatlas::http2
