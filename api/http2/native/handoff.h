// Hands values from any thread to one, without a lock.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace kvatlas::http2 {

// A file descriptor that is readable while a thread has something to do.
class Wake {
public:
    Wake() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (fd_ < 0) throw std::runtime_error("no file descriptor is left for a thread's signal");
    }
    Wake(const Wake&) = delete;
    Wake& operator=(const Wake&) = delete;
    ~Wake() { ::close(fd_); }

    int fd() const { return fd_; }
    void signal() const {
        const uint64_t one = 1;
        while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {}
    }
    void clear() const {
        uint64_t count = 0;
        while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {}
    }

private:
    const int fd_;
};

// A list that many threads add to and one takes. Values of one thread keep their order.
template <class T>
class Handoff {
public:
    Handoff() = default;
    Handoff(const Handoff&) = delete;
    Handoff& operator=(const Handoff&) = delete;
    ~Handoff() { take(); }

    void push(T value) {
        Node* before = last_.load(std::memory_order_relaxed);
        Node* const node = new Node{std::move(value), nullptr};
        do {
            node->before = before;
        } while (!last_.compare_exchange_weak(before, node, std::memory_order_release, std::memory_order_relaxed));
        if (before == nullptr) wake_.signal();  // the receiver may have taken and deleted the node by now
    }

    // Returns all values, first come first. Only the receiving thread calls it, when `fd` is readable.
    std::vector<T> take() {
        wake_.clear();
        std::vector<T> values;
        Node* node = last_.exchange(nullptr, std::memory_order_acquire);
        while (node != nullptr) {
            values.push_back(std::move(node->value));
            delete std::exchange(node, node->before);
        }
        return {std::make_move_iterator(values.rbegin()), std::make_move_iterator(values.rend())};
    }

    int fd() const { return wake_.fd(); }

private:
    struct Node {
        T value;
        Node* before;
    };

    std::atomic<Node*> last_{nullptr};
    Wake wake_;
};

}  // namespace kvatlas::http2
