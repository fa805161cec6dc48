// A gateway that streams responses, and asks for decisions beside them, with so little work that it measures a server rather than
// itself. Each chunk and each request is sent when it is due.
//
// Usage: chunk_gateway PORT CONNECTIONS STREAMS CHUNKS RATE SHORT LONG. CHUNKS of one stream; RATE of all streams, requests with a
// short and with a long prompt, by second. Standard input has lines of a name and what to send in hexadecimal: `short` and `long`,
// whole requests; `headers` of a response; a `chunk` and the `last` one. Prints JSON: times in milliseconds.
#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "frames.h"

namespace {

using namespace std::string_view_literals;

// Header block of a call: indexed `:method POST` and `:scheme http`, and literals without an index (RFC 7541).
constexpr std::string_view CALL = "\x83\x86\x04\x34/envoy.service.ext_proc.v3.ExternalProcessor/Process\x01\x07gateway"
                                  "\x0f\x10\x10""application/grpc\x00\x02te\x08trailers"sv;

// Tags of ProcessingResponse; the end of a request's reply.
constexpr char REQUEST_BODY = 0x1a, RESPONSE_BODY = 0x22;
constexpr std::string_view END = "\x10\x01"sv;

constexpr double WAIT_S = 20;  // for replies

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void fail(const char* what) {
    std::fprintf(stderr, "chunk_gateway: %s\n", what);
    std::exit(1);
}

struct Figures {
    std::vector<double> s;
    size_t n_sent = 0;

    void print(const char* name, const char* after) {
        std::ranges::sort(s);
        const auto at = [this](double share) { return s.empty() ? 0 : s[static_cast<size_t>(static_cast<double>(s.size() - 1) * share)] * 1e3; };
        std::printf("\"%s\": {\"n\": %zu, \"missing\": %zu, \"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}%s", name, s.size(), n_sent - s.size(),
                    at(0.5), at(0.99), at(1), after);
    }
};

struct Call {
    Figures* figures;            // of requests; none for a stream of chunks
    double sent_at = 0;          // of a request
    std::vector<double> chunks;  // when each was sent
    size_t n_replies = 0;
    bool is_answered = false;
};

class Gateway {
public:
    Gateway(uint16_t port, size_t n_connections) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        for (size_t i = 0; i < n_connections; ++i) {
            const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
            if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("no connection");
            auto& peer = lines_.emplace_back(std::make_unique<Line>(fd))->peer;
            peer.raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            peer.greet();
        }
    }

    // Moves bytes until `due`, or for one time if that has passed.
    void turn(double due) {
        std::vector<pollfd> polled;
        for (const auto& each : lines_) {
            if (!each->peer.flush()) fail("the connection is broken");
            polled.push_back({each->peer.fd(), static_cast<short>(POLLIN | (each->peer.has_output() ? POLLOUT : 0)), 0});
        }
        const double wait_s = std::max(0.0, due - now_s());
        const auto seconds = static_cast<time_t>(wait_s);
        const timespec limit{seconds, static_cast<long>((wait_s - static_cast<double>(seconds)) * 1e9)};
        ::ppoll(polled.data(), polled.size(), &limit, nullptr);
        now_ = now_s();
        for (size_t i = 0; i < polled.size(); ++i) {
            if ((polled[i].revents & POLLIN) != 0 && !receive(*lines_[i])) fail("the connection has ended");
        }
    }

    bool is_greeted() const {
        return std::ranges::all_of(lines_, [](const auto& each) { return each->peer.has_settings(); });
    }

    // Opens a call and sends a request. The call is valid until its end.
    std::pair<size_t, uint32_t> open(size_t line, std::string_view request, Figures* figures) {
        Line& to = *lines_[line];
        const uint32_t stream = std::exchange(to.next_stream, to.next_stream + 2);
        to.peer.frame(bench::HEADERS, bench::END_HEADERS, stream, CALL);
        to.peer.data(stream, request);
        to.calls.emplace(stream, Call{figures, now_s(), {}});
        if (figures != nullptr) ++figures->n_sent;
        return {line, stream};
    }

    void send(std::pair<size_t, uint32_t> call, std::string_view bytes, bool is_chunk) {
        Line& to = *lines_[call.first];
        to.peer.data(call.second, bytes);
        if (!is_chunk) return;
        const auto found = to.calls.find(call.second);
        if (found == to.calls.end()) return;
        found->second.chunks.push_back(now_);
        ++chunks.n_sent;
    }

    Figures chunks;
    size_t n_answered = 0;  // requests

private:
    struct Line {
        explicit Line(int fd) : peer(fd, 0) {}
        bench::Peer peer;
        std::map<uint32_t, Call> calls = {};
        uint32_t next_stream = 1;
    };

    bool receive(Line& line) {
        return line.peer.receive(
            [&](uint32_t stream, std::string_view message) {
                const auto found = line.calls.find(stream);
                if (found == line.calls.end()) return;
                Call& call = found->second;
                if (message[0] == RESPONSE_BODY && call.n_replies < call.chunks.size()) chunks.s.push_back(now_ - call.chunks[call.n_replies++]);
                if (message[0] != REQUEST_BODY || !message.ends_with(END) || std::exchange(call.is_answered, true)) return;
                ++n_answered;
                if (call.figures == nullptr) return;
                call.figures->s.push_back(now_ - call.sent_at);
                line.peer.data(stream, {}, true);
            },
            [&](uint32_t stream, bool) { line.calls.erase(stream); });
    }

    std::vector<std::unique_ptr<Line>> lines_;
    double now_ = 0;
};

std::string unhex(const std::string& text) {
    std::string bytes;
    for (size_t i = 0; i + 1 < text.size(); i += 2) bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
    return bytes;
}

// When the next of something is due that comes at a steady rate.
struct Steady {
    double per_second, begins_at, n = 0;

    double due() const { return per_second > 0 ? begins_at + n / per_second : 1e300; }
    bool take(double now) {
        if (due() > now) return false;
        ++n;
        return true;
    }
};

}  // namespace

int main(int n_arguments, char** arguments) {
    if (n_arguments != 8) return 2;
    const size_t n_connections = std::stoul(arguments[2]), n_streams = std::stoul(arguments[3]), n_chunks = std::stoul(arguments[4]);
    std::map<std::string, std::string> texts;
    for (std::string name, hex; std::cin >> name >> hex;) texts[name] = unhex(hex);
    Gateway gateway(static_cast<uint16_t>(std::stoul(arguments[1])), n_connections + 1);  // requests have one of their own
    const auto wait = [&](auto is_done) {
        for (const double ends_at = now_s() + WAIT_S; !is_done() && now_s() < ends_at;) gateway.turn(now_s() + 0.01);
        return is_done();
    };
    if (!wait([&] { return gateway.is_greeted(); })) fail("the server sends no settings");
    std::vector<std::pair<size_t, uint32_t>> streams;
    for (size_t i = 0; i < n_streams; ++i) streams.push_back(gateway.open(i % n_connections, texts["short"], nullptr));
    if (!wait([&] { return gateway.n_answered == n_streams; })) fail("not every request was answered");
    for (const auto& each : streams) gateway.send(each, texts["headers"], false);
    const double begins_at = now_s() + 0.5;
    while (now_s() < begins_at) gateway.turn(begins_at);

    Steady chunks{std::stod(arguments[5]), begins_at}, shorts{std::stod(arguments[6]), begins_at}, longs{std::stod(arguments[7]), begins_at};
    Figures of_short, of_long;
    const size_t n_all = n_streams * n_chunks;
    size_t n = 0;
    while (n < n_all) {
        for (const double now = now_s(); n < n_all && chunks.take(now); ++n)
            gateway.send(streams[n % n_streams], texts[n + n_streams < n_all ? "chunk" : "last"], true);
        for (const double now = now_s(); shorts.take(now);) gateway.open(n_connections, texts["short"], &of_short);
        for (const double now = now_s(); longs.take(now);) gateway.open(n_connections, texts["long"], &of_long);
        gateway.turn(std::min({chunks.due(), shorts.due(), longs.due()}));
    }
    const double took_s = now_s() - begins_at;
    wait([&] { return gateway.chunks.s.size() == n_all && of_short.s.size() == of_short.n_sent && of_long.s.size() == of_long.n_sent; });
    std::printf("{\"rate\": %.0f, ", static_cast<double>(n_all) / took_s);
    gateway.chunks.print("chunks", ", ");
    of_short.print("short", ", ");
    of_long.print("long", "}\n");
}
