// The messages of ext-proc that carry a piece of a response's body: read, and answered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvatlas::extproc {

struct BodyPiece {
    std::string_view body;
    bool is_last = false;
};

// Returns the piece of a ProcessingRequest with `response_body` and nothing else; nothing for any other message, whose
// meaning or error is not decided here.
std::optional<BodyPiece> read_response_body(std::string_view message);

// Appends framed ProcessingResponses that give a piece back to Envoy, in messages of at most 62,000 bytes of body each.
void append_response_body(std::string& outbound, BodyPiece piece);

// Appends the framed ProcessingResponse that leaves a piece as it is.
void append_unchanged(std::string& outbound);

// Returns the most bytes that the replies add to a piece of this length.
size_t n_bytes_around(size_t n_body);

}  // namespace kvatlas::extproc
