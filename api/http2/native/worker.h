// A thread that serves connections: sockets, frames, and the chunks that pass. It never runs Python.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "connection.h"
#include "shared.h"

namespace kvatlas::http2 {

class Worker {
public:
    // `all` are the threads of the server, which pass connections on in their order.
    Worker(Shared& shared, int number, const std::vector<std::unique_ptr<Worker>>& all);
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;
    ~Worker();

    void start();
    void join();

    Handoff<std::vector<Order>> orders;
    std::atomic<int64_t> n_connections{0};  // those handed over included

    // -- for its connections ------------------------------------------------------------------------------------------

    // For what is read; one connection at a time uses it.
    std::span<char> buffer() { return buffer_; }
    void watch(const Connection& connection, uint32_t events, bool is_new);
    void tell(Told told);
    CallId open(Connection& connection, int32_t stream);
    void forget(CallId call) { calls_.erase(call); }

private:
    struct Place {
        Connection* connection;
        int32_t stream;
    };

    void run();
    void serve();
    int wait(std::span<epoll_event> ready);
    void take_turn(Connection& connection, bool is_readable);
    void obey(Order& order);
    void accept(Order& order);
    void drain();
    void rest();
    void look_at_time();
    void close(Connection& connection);
    void close_all();
    void pass_on(Order& order);
    void refuse(int fd);
    void count_end();
    bool shed(const char* reason);
    Connection* lowest_idle() const;

    Shared& shared_;
    const uint64_t number_;
    const std::vector<std::unique_ptr<Worker>>& all_;
    const int epoll_;
    std::thread thread_;
    std::string buffer_;
    std::unordered_map<uint64_t, std::unique_ptr<Connection>> connections_;  // by their number
    std::unordered_map<CallId, Place> calls_;
    std::unordered_set<uint64_t> working_, changed_;  // connections with input that waits; with something to send
    uint64_t n_opened_ = 0, n_accepted_ = 0;
    double now_ = 0, next_look_ = 0, rests_until_ = 0, passed_at_ = 0;
    Came came_;  // in this turn, on all connections
    bool is_stopping_ = false, has_failed_ = false;
};

}  // namespace kvatlas::http2
