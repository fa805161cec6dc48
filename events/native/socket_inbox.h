// The counterpart of `FrameInbox` in events/inbox.py, which is the specification.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "inbox.h"
#include "zmq.h"

namespace kvatlas {

// Messages and failures to be reported.
struct Lost {
    size_t n_too_many_parts = 0, n_queue_full = 0;
    int error = 0;
};

class SocketInbox : public Inbox {
public:
    SocketInbox(const char* library, void* socket, size_t max_queued_bytes);

    const Batch* front(uint64_t seq) override;
    void pop() override;
    std::string_view topic() const override { return topic_; }

    // Makes the next message the current one; returns false if there is none.
    bool peek();
    std::span<const std::string_view> frames() const { return {frames_.data(), n_frames_}; }  // of the current message

    void drop();  // the current message

    // Drops the current message, which was given to Python; `front` then returns messages of the same life alone.
    void hand_over();

    // Moves messages from the socket to the queue, or drops them if it is full.
    void collect(std::chrono::duration<double> time);

    Lost lost() { return std::exchange(lost_, {}); }
    bool is_skipping() const { return is_skipping_; }
    void close();

private:
    static constexpr size_t kMaxParts = 16, kSkipped = 1000, kOverheadBytes = 200;  // inbox.py has the reasons
    static constexpr size_t kMaxPayloadBytes = size_t{8} << 20;                     // wire.py, MAX_PAYLOAD_BYTES
    static constexpr uint64_t kMaxSeq = uint64_t{1} << 48;                          // message.py, MAX_SEQ
    static constexpr size_t kKeptBytes = size_t{256} << 10;                         // of the buffers of a batch

    // A message that waits outside of ZMQ.
    struct Waiting {
        std::string bytes;
        std::array<uint32_t, kMaxParts> sizes;
        size_t n_parts;
        size_t n_bytes() const { return bytes.size() + kOverheadBytes; }
    };

    bool receive();
    bool receive(zmq::Part& part);
    bool skip();
    void show_parts();
    Waiting copy() const;
    void put_back();

    zmq::Library library_;
    void* socket_;
    const size_t max_queued_bytes_;
    std::deque<Waiting> queue_;
    size_t queued_bytes_ = 0;
    std::array<std::unique_ptr<zmq::Part>, kMaxParts> parts_;  // of the last message received
    Waiting taken_;                                           // from the queue
    std::array<std::string_view, kMaxParts> frames_;
    size_t n_frames_ = 0;  // 0: no message is current
    std::string topic_;
    std::string life_;  // of the last message that Python got: what follows the sequence number
    bool is_skipping_ = false;
    Lost lost_;
    Batch batch_;
};

}  // namespace kvatlas
