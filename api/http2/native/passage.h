// What answers the messages of a call within its session, so that the service in Python hears only what it has to know.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvatlas::http2 {

class Passage {
public:
    virtual ~Passage() = default;

    // Takes one whole message: appends its replies to `outbound` (see `append_message`), and what the service has to know
    // to `report`. It may hold `room` bytes more than it does. Returns false if the message is for the service, after which
    // only `leave` is called; nothing is appended then.
    virtual bool take(std::string_view message, size_t room, std::string& outbound, std::string& report) = 0;

    // Returns what the service has to know to go on by itself.
    virtual std::string leave() = 0;

    // Returns the bytes held that count against the limits.
    virtual size_t n_held() const = 0;

    // Returns the most bytes that the replies to a message add to its length.
    virtual size_t n_added(size_t n_message) const = 0;
};

// Name of the capsules in which Python hands passages to a session, which deletes them.
constexpr const char* PASSAGE_CAPSULE = "kvatlas.api.http2.Passage";

// Appends the prefix of a gRPC message of `n` bytes, which must follow.
inline void append_message_prefix(std::string& outbound, size_t n) {
    const char prefix[] = {0, static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
                           static_cast<char>(n)};
    outbound.append(prefix, sizeof prefix);
}

}  // namespace kvatlas::http2
