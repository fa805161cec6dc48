#include "worker.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <stdexcept>
#include <utility>

#include "pace.h"

namespace kvatlas::http2 {
namespace {

constexpr size_t READ_BYTES = 1 << 16;
constexpr uint64_t ORDERS = 0;  // what epoll reports for the list of orders; connections have numbers from 1
constexpr double LOOK_S = 0.05;

double monotonic_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Worker::Worker(Shared& shared, int number, const std::vector<std::unique_ptr<Worker>>& all)
    : shared_(shared), number_(static_cast<uint64_t>(number)), all_(all), epoll_(::epoll_create1(EPOLL_CLOEXEC)), buffer_(READ_BYTES, 0) {
    if (epoll_ < 0) throw std::runtime_error("no file descriptor is left for a thread of connections");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = ORDERS;
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, orders.fd(), &event);
}

Worker::~Worker() {
    join();
    connections_.clear();
    ::close(epoll_);
}

void Worker::start() {
    // Signals are Python's: its main thread handles them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_setname_np(thread_.native_handle(), "kvatlas-http2");
}

void Worker::join() {
    if (thread_.joinable()) thread_.join();
}

void Worker::run() {
    while (!is_stopping_) {
        try {
            serve();
        } catch (const std::exception& error) {
            // The process is to end. Until it does, the thread obeys orders, and serves nobody.
            if (!std::exchange(has_failed_, true)) shared_.told.push({ToldKind::failed, 0, error.what()});
            close_all();
        }
    }
    close_all();
}

void Worker::close_all() {
    while (!connections_.empty()) close(*connections_.begin()->second);
}

void Worker::serve() {
    std::array<epoll_event, 256> ready;
    const int n = wait(ready);
    came_ = {};
    for (int i = 0; i < n; ++i) {
        if (ready[static_cast<size_t>(i)].data.u64 == ORDERS) {
            for (auto& some : orders.take()) {
                for (Order& order : some) obey(order);
            }
            continue;
        }
        const auto found = connections_.find(ready[static_cast<size_t>(i)].data.u64);
        if (found == connections_.end()) continue;
        Connection& connection = *found->second;
        changed_.erase(found->first);
        const bool is_readable = (ready[static_cast<size_t>(i)].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
        take_turn(connection, is_readable);
    }
    // Connections that had no time in their last turn. Each has one piece of work done before any has a second one.
    for (const uint64_t number : std::exchange(working_, {})) {
        const auto found = connections_.find(number);
        if (found == connections_.end()) continue;
        ++shared_.n_deferred;
        changed_.erase(number);
        take_turn(*found->second, false);
    }
    for (const uint64_t number : std::exchange(changed_, {})) {
        const auto found = connections_.find(number);
        if (found == connections_.end()) continue;
        if (!found->second->flush(now_)) {
            close(*found->second);
        } else if (found->second->has_work()) {
            working_.insert(number);
        }
    }
    if (came_.n_passed > 0) rest();
    look_at_time();
}

void Worker::take_turn(Connection& connection, bool is_readable) {
    if (!connection.take_turn(now_, is_readable)) return close(connection);
    const Came came = connection.take_came();
    came_.n_passed += came.n_passed;
    came_.other |= came.other;
    if (connection.has_work()) working_.insert(connection.number());
}

// Leaves the sockets for a moment after a turn that brought chunks alone. Input that waits is turns enough: a connection that
// always has some must not keep the others from being read.
void Worker::rest() {
    const double since_s = now_ - std::exchange(passed_at_, now_);
    if (!came_.other && working_.empty()) rests_until_ = now_ + rest_s(since_s, came_.n_passed, shared_.limits.gather_s);
}

// Waits for something to do, and sets `now_`. Orders do not wait for the end of a rest.
int Worker::wait(std::span<epoll_event> ready) {
    if (const double rest_s = rests_until_ - monotonic_s(); rest_s > 0) {
        const double wait_s = working_.empty() ? rest_s : 0;
        const auto seconds = static_cast<time_t>(wait_s);
        const timespec limit{seconds, static_cast<long>((wait_s - static_cast<double>(seconds)) * 1e9)};
        pollfd ordered{orders.fd(), POLLIN, 0};
        const bool is_ordered = ::ppoll(&ordered, 1, &limit, nullptr) == 1;
        now_ = monotonic_s();
        ready[0].data.u64 = ORDERS;
        if (is_ordered || !working_.empty()) return is_ordered ? 1 : 0;
    }
    const double wait_s = connections_.empty() ? -1e-3 : LOOK_S;
    const int n = ::epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), working_.empty() ? static_cast<int>(wait_s * 1000) : 0);
    now_ = monotonic_s();
    return n;
}

void Worker::obey(Order& order) {
    switch (order.kind) {
        case OrderKind::accept:
            return accept(order);
        case OrderKind::stop:
            is_stopping_ = true;
            return;
        case OrderKind::abort_all:
            return close_all();
        case OrderKind::drain:
            return drain();
        case OrderKind::shed:
            shed("no_descriptor");
            return;
        case OrderKind::read_on:
            changed_.insert(order.call);
            return;
        default:
            break;
    }
    const auto found = calls_.find(order.call);
    if (found == calls_.end()) return;  // the call is over
    Connection& connection = *found->second.connection;
    changed_.insert(connection.number());
    connection.obey(order, found->second.stream);
}

void Worker::drain() {
    std::vector<Connection*> over;
    for (auto& [number, connection] : connections_) {
        changed_.insert(number);
        if (!connection->drain(now_)) over.push_back(connection.get());
    }
    for (Connection* each : over) close(*each);
}

void Worker::accept(Order& order) {
    if (has_failed_ || shared_.is_draining) return refuse(order.number);
    if (shared_.n_served >= static_cast<int64_t>(shared_.limits.n_connections) && !shed("full")) {
        if (++order.n_passed_on < all_.size()) return pass_on(order);
        tell({ToldKind::closed, 0, "full"});
        return refuse(order.number);
    }
    const uint64_t number = ++n_accepted_ << 8 | number_;
    try {
        connections_[number] = std::make_unique<Connection>(*this, shared_, order.number, order.identity.get(), number, now_);
    } catch (...) {
        connections_.erase(number);
        refuse(order.number);
        throw;
    }
    ++shared_.n_served;
    changed_.insert(number);
}

void Worker::pass_on(Order& order) {
    Worker& next = *all_[(number_ + 1) % all_.size()];
    --n_connections;
    ++next.n_connections;
    std::vector<Order> orders;
    orders.push_back(std::move(order));
    next.orders.push(std::move(orders));
}

void Worker::refuse(int fd) {
    ::close(fd);
    count_end();
}

// Closes the connection without calls that stands lowest. Returns false if there is none.
bool Worker::shed(const char* reason) {
    Connection* const victim = lowest_idle();
    if (victim == nullptr) return false;
    victim->close(reason);
    close(*victim);
    return true;
}

Connection* Worker::lowest_idle() const {
    Connection* lowest = nullptr;
    for (const auto& [_, each] : connections_) {
        if (each->n_calls() != 0) continue;
        if (lowest == nullptr || each->standing() < lowest->standing()) lowest = each.get();
    }
    return lowest;
}

void Worker::look_at_time() {
    if (now_ < next_look_) return;
    next_look_ = now_ + LOOK_S;
    std::vector<Connection*> over;
    for (auto& [number, connection] : connections_) {
        if (!connection->check_time(now_)) over.push_back(connection.get());
    }
    for (Connection* each : over) close(*each);
}

void Worker::close(Connection& connection) {
    const uint64_t number = connection.number();
    working_.erase(number);
    changed_.erase(number);
    connections_.erase(number);
    --shared_.n_served;
    count_end();
}

void Worker::count_end() {
    --n_connections;
    if (--shared_.n_connections == 0 && shared_.is_draining) shared_.told.push({ToldKind::empty});
}

void Worker::watch(const Connection& connection, uint32_t events, bool is_new) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = connection.number();
    ::epoll_ctl(epoll_, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, connection.fd(), &event);
}

void Worker::tell(Told told) {
    if (told.untaken) told.untaken->n += told.weight();
    shared_.n_held += static_cast<int64_t>(told.text.size());
    shared_.told.push(std::move(told));
}

CallId Worker::open(Connection& connection, int32_t stream) {
    const CallId id = number_ << THREAD_SHIFT | ++n_opened_;
    calls_.emplace(id, Place{&connection, stream});
    return id;
}

}  // namespace kvatlas::http2
