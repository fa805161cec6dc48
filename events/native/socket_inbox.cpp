#include "socket_inbox.h"

namespace kvatlas {

SocketInbox::SocketInbox(const char* library, void* socket, size_t max_queued_bytes)
    : library_(library), socket_(socket), max_queued_bytes_(max_queued_bytes) {
    for (auto& part : parts_) part = std::make_unique<zmq::Part>(library_);
}

const Batch* SocketInbox::front(uint64_t seq) {
    if (!peek() || n_frames_ != 3 || seq >= kMaxSeq) return nullptr;
    std::array<char, sizeof seq> number;
    for (size_t i = 0; i < number.size(); ++i) number[i] = static_cast<char>(seq >> (56 - 8 * i));
    const std::string_view sent = frames_[1], payload = frames_[2];
    if (!sent.starts_with(std::string_view(number.data(), number.size())) || payload.size() > kMaxPayloadBytes) return nullptr;
    if (sent.substr(number.size()) != life_) return nullptr;
    return batch_.read(payload) && batch_.is_usual() ? &batch_ : nullptr;
}

void SocketInbox::pop() {
    if (topic_ != frames_[0]) topic_ = frames_[0];
    drop();
}

void SocketInbox::hand_over() {
    constexpr size_t kSeqBytes = 8, kLifeBytes = 16;  // message.py
    const bool has_life = n_frames_ == 3 && frames_[1].size() == kSeqBytes + kLifeBytes;
    if (n_frames_ == 3) life_ = has_life ? frames_[1].substr(kSeqBytes) : std::string_view();
    drop();
}

void SocketInbox::drop() {
    for (size_t i = 0; i < n_frames_; ++i) parts_[i]->clear();
    n_frames_ = 0;
    taken_.bytes = {};
    if (batch_.n_bytes() > kKeptBytes) batch_ = {};
}

bool SocketInbox::peek() {
    if (n_frames_ != 0) return true;
    if (queue_.empty()) {
        if (!receive()) return false;
        show_parts();
        return true;
    }
    taken_ = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= taken_.n_bytes();
    const char* at = taken_.bytes.data();
    for (; n_frames_ < taken_.n_parts; at += taken_.sizes[n_frames_++]) frames_[n_frames_] = {at, taken_.sizes[n_frames_]};
    return true;
}

void SocketInbox::collect(std::chrono::duration<double> time) {
    const auto end = std::chrono::steady_clock::now() + time;
    put_back();
    while (std::chrono::steady_clock::now() < end && receive()) {
        if (queued_bytes_ >= max_queued_bytes_) {
            ++lost_.n_queue_full;
        } else {
            show_parts();
            queue_.push_back(copy());
            queued_bytes_ += queue_.back().n_bytes();
        }
        drop();
    }
}

void SocketInbox::close() {
    drop();
    queue_.clear();
    queued_bytes_ = 0;
    socket_ = nullptr;
}

// Receives one message into `parts_`; returns false if there is none, or if the socket fails.
bool SocketInbox::receive() {
    while (true) {
        if (is_skipping_ && !skip()) return false;
        for (size_t n = 0;; ++n) {
            if (n == kMaxParts) {
                is_skipping_ = true;
                ++lost_.n_too_many_parts;
                for (auto& part : parts_) part->clear();
                break;
            }
            if (!receive(*parts_[n])) return false;
            if (!parts_[n]->has_more()) return true;
        }
    }
}

bool SocketInbox::receive(zmq::Part& part) {
    if (socket_ == nullptr) return false;
    const int error = part.receive(socket_);
    if (error != 0 && error != EAGAIN) lost_.error = error;
    return error == 0;
}

// Receives more of the parts that are too many; returns whether these were all.
bool SocketInbox::skip() {
    for (size_t n = 0; n < kSkipped; ++n) {
        if (!receive(*parts_[0])) return false;
        const bool has_more = parts_[0]->has_more();
        parts_[0]->clear();
        if (!has_more) {
            is_skipping_ = false;
            return true;
        }
    }
    return false;
}

void SocketInbox::show_parts() {
    do {
        frames_[n_frames_] = parts_[n_frames_]->bytes();
    } while (parts_[n_frames_++]->has_more());
}

SocketInbox::Waiting SocketInbox::copy() const {
    Waiting made{{}, {}, n_frames_};
    size_t n_bytes = 0;
    for (size_t i = 0; i < n_frames_; ++i) n_bytes += frames_[i].size();
    made.bytes.reserve(n_bytes);
    for (size_t i = 0; i < n_frames_; ++i) {
        made.bytes += frames_[i];
        made.sizes[i] = static_cast<uint32_t>(frames_[i].size());
    }
    return made;
}

// Makes room for another message: the current one becomes the first of the queue.
void SocketInbox::put_back() {
    if (n_frames_ == 0) return;
    queue_.push_front(copy());
    queued_bytes_ += queue_.front().n_bytes();
    drop();
}

}  // namespace kvatlas
