// One HTTP/2 connection of gRPC calls with as little work as can be: frames in, frames out, on a socket that does not block.
// Nothing is checked: both ends of it are known.
#pragma once

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace bench {

using namespace std::string_view_literals;

enum Type : uint8_t { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
constexpr uint8_t END_STREAM = 1, ACK = 1, END_HEADERS = 4;
constexpr size_t HEAD_BYTES = 9, PREFIX_BYTES = 5, MAX_FRAME_BYTES = 16'384;

inline std::string number(uint32_t n) {
    return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8), static_cast<char>(n)};
}

inline uint32_t number(std::string_view bytes) {
    uint32_t n = 0;
    for (const char each : bytes.substr(0, 4)) n = n << 8 | static_cast<uint8_t>(each);
    return n;
}

class Peer {
public:
    // `n_skipped` bytes come before the first frame.
    Peer(int fd, size_t n_skipped) : fd_(fd), n_skipped_(n_skipped) {
        const int yes = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    }

    int fd() const { return fd_; }
    bool has_settings() const { return has_settings_; }
    bool has_output() const { return !output_.empty(); }

    // Opens all windows of the other side.
    void greet() {
        frame(SETTINGS, 0, 0, "\x00\x04\x7f\xff\xff\xff"sv);
        frame(WINDOW_UPDATE, 0, 0, "\x7f\xfe\x00\x00"sv);
    }

    void raw(std::string_view bytes) { output_ += bytes; }

    void frame(Type type, uint8_t flags, uint32_t stream, std::string_view payload) {
        output_ += number(static_cast<uint32_t>(payload.size())).substr(1);
        output_ += {static_cast<char>(type), static_cast<char>(flags)};
        output_ += number(stream);
        output_ += payload;
    }

    // Sends data, as soon as the connection's window allows it.
    void data(uint32_t stream, std::string_view bytes, bool is_last = false) {
        do {
            const std::string_view piece = bytes.substr(0, MAX_FRAME_BYTES);
            bytes.remove_prefix(piece.size());
            waiting_.push_back({stream, std::string(piece), is_last && bytes.empty()});
        } while (!bytes.empty());
        send_waiting();
    }

    // Reads what is there, and calls `on_message(stream, message)` and `on_end(stream, is_reset)`. Returns false at the end of
    // the connection.
    template <class OnMessage, class OnEnd>
    bool receive(OnMessage on_message, OnEnd on_end) {
        const ssize_t n = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        if (n == 0) return false;
        input_.append(buffer_.data(), static_cast<size_t>(n));
        size_t at = std::min(n_skipped_, input_.size());
        n_skipped_ -= at;
        while (input_.size() - at >= HEAD_BYTES) {
            const std::string_view rest = std::string_view(input_).substr(at);
            const size_t n_payload = number(rest) >> 8;
            if (rest.size() < HEAD_BYTES + n_payload) break;
            const auto type = static_cast<Type>(rest[3]);
            const auto flags = static_cast<uint8_t>(rest[4]);
            const uint32_t stream = number(rest.substr(5));
            at += HEAD_BYTES + n_payload;
            if (type == GOAWAY) return false;
            take(type, flags, stream, rest.substr(HEAD_BYTES, n_payload), on_message);
            if (type == RST_STREAM || ((type == DATA || type == HEADERS) && (flags & END_STREAM) != 0)) {
                messages_.erase(stream);
                on_end(stream, type == RST_STREAM);
            }
        }
        input_.erase(0, at);
        return true;
    }

    // Returns false if the connection is broken.
    bool flush() {
        size_t n_sent = 0;
        while (n_sent < output_.size()) {
            const ssize_t n = ::send(fd_, output_.data() + n_sent, output_.size() - n_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
            if (n < 0) break;
            n_sent += static_cast<size_t>(n);
        }
        output_.erase(0, n_sent);
        return true;
    }

private:
    struct Data {
        uint32_t stream;
        std::string bytes;
        bool is_last;
    };

    template <class OnMessage>
    void take(Type type, uint8_t flags, uint32_t stream, std::string_view payload, OnMessage on_message) {
        if (type == SETTINGS && (flags & ACK) == 0) {
            has_settings_ = true;
            frame(SETTINGS, ACK, 0, {});
        }
        if (type == PING && (flags & ACK) == 0) frame(PING, ACK, 0, payload);
        if (type == WINDOW_UPDATE && stream == 0) {
            window_ += number(payload);
            send_waiting();
        }
        if (type != DATA) return;
        std::string& bytes = messages_[stream];
        bytes += payload;
        size_t at = 0;
        while (bytes.size() - at >= PREFIX_BYTES) {
            const size_t n = number(std::string_view(bytes).substr(at + 1));
            if (bytes.size() - at < PREFIX_BYTES + n) break;
            on_message(stream, std::string_view(bytes).substr(at + PREFIX_BYTES, n));
            at += PREFIX_BYTES + n;
        }
        bytes.erase(0, at);
    }

    void send_waiting() {
        while (!waiting_.empty() && window_ >= static_cast<int64_t>(waiting_.front().bytes.size())) {
            const Data& next = waiting_.front();
            window_ -= static_cast<int64_t>(next.bytes.size());
            frame(DATA, next.is_last ? END_STREAM : 0, next.stream, next.bytes);
            waiting_.pop_front();
        }
    }

    const int fd_;
    size_t n_skipped_;
    std::string input_, output_;
    std::deque<Data> waiting_;
    std::unordered_map<uint32_t, std::string> messages_;  // of each stream, as far as they came
    std::array<char, 1 << 16> buffer_;
    int64_t window_ = 65'535;  // of the connection; those of streams are larger than what is sent on one
    bool has_settings_ = false;
};

}  // namespace bench
