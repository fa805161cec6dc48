// Threads that serve connections for one thread of Python.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "shared.h"
#include "worker.h"

namespace kvatlas::http2 {

// Only the constructing thread calls it. Threads do not survive a fork: the child must not use the object.
class Server {
public:
    Server(ServerLimits limits, size_t n_threads);
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;
    ~Server();

    // Returns a file descriptor that is readable when there is something to take.
    int fd() const { return shared_.told.fd(); }

    // Returns the oldest `n` of what was told, or all.
    std::vector<Told> take(size_t n);
    bool has_more() const { return !waiting_.empty(); }

    // Has connections that are accepted from here on speak TLS.
    void use(std::shared_ptr<const TlsIdentity> identity) { identity_ = std::move(identity); }

    // Serves a connected socket, which is the server's from here on.
    void accept(int fd);

    // Gives an order about a call; `flush` hands all orders over.
    void order(Order order);
    void flush();

    // Has clients open no more calls; `empty` is told after the last connection.
    void drain();
    void abort_all();

    // Closes one connection without calls, see `Connection::standing`, of the thread with the most connections.
    void shed();

    // Ends all threads. Further calls change nothing.
    void stop();

    // Sets the bytes that connections may hold together.
    void set_room(int64_t n) { shared_.n_room = n; }
    int64_t n_held() const { return shared_.n_held; }
    uint64_t n_deferred() const { return shared_.n_deferred; }

private:
    void order_all(OrderKind kind);

    Shared shared_;
    std::vector<std::unique_ptr<Worker>> workers_;
    std::vector<std::vector<Order>> orders_;  // by worker
    std::deque<Told> waiting_;
    std::shared_ptr<const TlsIdentity> identity_;
    const pid_t process_;
    bool is_stopped_ = false;
};

}  // namespace kvatlas::http2
