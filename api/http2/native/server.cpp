#include "server.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace kvatlas::http2 {
namespace {

int64_t n_connections(const std::unique_ptr<Worker>& worker) { return worker->n_connections; }

}  // namespace

Server::Server(ServerLimits limits, size_t n_threads) : shared_(limits), process_(::getpid()) {
    for (size_t i = 0; i < n_threads; ++i) workers_.push_back(std::make_unique<Worker>(shared_, static_cast<int>(i), workers_));
    orders_.resize(n_threads);
    try {
        for (auto& worker : workers_) worker->start();
    } catch (...) {
        stop();  // those that run would be waited for without end
        throw;
    }
}

Server::~Server() {
    if (::getpid() == process_) {
        stop();
        return;
    }
    for (auto& worker : workers_) worker.release();  // the threads are the parent's, and so is what they use
}

void Server::stop() {
    if (std::exchange(is_stopped_, true)) return;
    order_all(OrderKind::stop);
    for (auto& worker : workers_) worker->join();
}

std::vector<Told> Server::take(size_t n) {
    for (Told& told : shared_.told.take()) waiting_.push_back(std::move(told));
    std::vector<Told> taken;
    for (; n > 0 && !waiting_.empty(); --n) {
        Told& told = taken.emplace_back(std::move(waiting_.front()));
        waiting_.pop_front();
        shared_.n_held -= static_cast<int64_t>(told.text.size());
        if (!told.untaken) continue;
        const uint64_t connection = told.untaken->connection;
        const size_t n_before = told.untaken->n.fetch_sub(told.weight());
        if (n_before >= MAX_UNTAKEN / 2 && n_before - told.weight() < MAX_UNTAKEN / 2)
            orders_[connection & 0xff].push_back({OrderKind::read_on, connection});
    }
    return taken;
}

void Server::accept(int fd) {
    const auto least = std::ranges::min_element(workers_, {}, n_connections);
    ++(*least)->n_connections;
    ++shared_.n_connections;
    orders_[static_cast<size_t>(least - workers_.begin())].push_back({OrderKind::accept, 0, fd, {}, {}, identity_});
    flush();
}

void Server::shed() {
    const auto most = std::ranges::max_element(workers_, {}, n_connections);
    orders_[static_cast<size_t>(most - workers_.begin())].push_back({OrderKind::shed});
    flush();
}

void Server::order(Order order) {
    const size_t worker = order.call >> THREAD_SHIFT;
    if (worker < orders_.size()) orders_[worker].push_back(std::move(order));
}

void Server::flush() {
    for (size_t i = 0; i < orders_.size(); ++i) {
        if (!orders_[i].empty()) workers_[i]->orders.push(std::exchange(orders_[i], {}));
    }
}

void Server::drain() {
    shared_.is_draining = true;
    if (shared_.n_connections == 0) shared_.told.push({ToldKind::empty});
    order_all(OrderKind::drain);
}

void Server::abort_all() { order_all(OrderKind::abort_all); }

void Server::order_all(OrderKind kind) {
    for (auto& orders : orders_) orders.push_back({kind});
    flush();
}

}  // namespace kvatlas::http2
