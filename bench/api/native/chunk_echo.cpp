// The least that a server of ext-proc can do: answers each chunk of a response with a chunk, on one thread. What a measurement
// of it shows is what the gateway, the kernel and the machine take. Prints its port.
#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "frames.h"

namespace {

using namespace std::string_view_literals;

// Header blocks: indexed `:status 200`, and literals without an index (RFC 7541).
constexpr std::string_view BEGIN = "\x88\x0f\x10\x10"sv "application/grpc"sv;
constexpr std::string_view OK = "\x00\x0bgrpc-status\x01\x30"sv;

// Tags of ProcessingRequest, and the reply to the end of a request.
constexpr char REQUEST_BODY = 0x22, RESPONSE_BODY = 0x2a;
constexpr std::string_view END_OF_REQUEST = "\x1a\x08\x0a\x06\x1a\x04\x1a\x02\x10\x01"sv;

std::string layered(std::string_view tags, std::string content) {
    for (const char tag : tags) {
        std::string around{tag};
        size_t n = content.size();
        for (; n > 127; n >>= 7) around += static_cast<char>((n & 127) | 128);
        around += static_cast<char>(n);
        content.insert(0, around);
    }
    return content;
}

class Connection {
public:
    explicit Connection(int fd) : peer_(fd, 24) { peer_.greet(); }

    bool turn() {
        return peer_.receive([this](uint32_t stream, std::string_view message) { answer(stream, message); },
                             [this](uint32_t stream, bool is_reset) {
                                 if (!is_reset) peer_.frame(bench::HEADERS, bench::END_HEADERS | bench::END_STREAM, stream, OK);
                                 begun_.erase(stream);
                             }) &&
               peer_.flush();
    }

    bool has_output() const { return peer_.has_output(); }

private:
    // The content of a body begins with the field of its bytes, which a reply repeats as it is.
    void answer(uint32_t stream, std::string_view message) {
        const bool is_long = (message[1] & 128) != 0;
        const std::string_view content = message.substr(is_long ? 3 : 2);
        if (message[0] == REQUEST_BODY && content.ends_with("\x10\x01"sv)) reply(stream, END_OF_REQUEST);
        if (message[0] == RESPONSE_BODY) reply(stream, layered("\x1a\x1a\x0a\x22"sv, std::string(content)));
    }

    void reply(uint32_t stream, std::string_view message) {
        if (begun_.insert(stream).second) peer_.frame(bench::HEADERS, bench::END_HEADERS, stream, BEGIN);
        peer_.data(stream, '\0' + bench::number(static_cast<uint32_t>(message.size())) + std::string(message));
    }

    bench::Peer peer_;
    std::set<uint32_t> begun_;
};

}  // namespace

int main() {
    const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    socklen_t n_address = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(listening, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(listening, 16) != 0) return 1;
    ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &n_address);
    std::printf("%d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    std::map<int, std::unique_ptr<Connection>> connections;
    while (true) {
        std::vector<pollfd> polled{{listening, POLLIN, 0}};
        for (const auto& [fd, each] : connections) polled.push_back({fd, static_cast<short>(POLLIN | (each->has_output() ? POLLOUT : 0)), 0});
        ::poll(polled.data(), polled.size(), -1);
        for (const pollfd& each : polled) {
            if (each.revents == 0) continue;
            if (each.fd == listening) {
                const int fd = ::accept4(listening, nullptr, nullptr, SOCK_NONBLOCK);
                connections.emplace(fd, std::make_unique<Connection>(fd));
            } else if (!connections[each.fd]->turn()) {
                ::close(each.fd);
                connections.erase(each.fd);
            }
        }
    }
}
