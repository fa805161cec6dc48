#include "body_message.h"

#include <algorithm>

#include "passage.h"

namespace kvatlas::extproc {
namespace {

// Protobuf tags: field number << 3 | wire type. Lengths and messages have wire type 2, booleans 0.
constexpr uint8_t REQUEST_RESPONSE_BODY = 5 << 3 | 2;  // ProcessingRequest.response_body
constexpr uint8_t BODY = 1 << 3 | 2, END_OF_STREAM = 2 << 3;  // HttpBody and StreamedBodyResponse
constexpr uint8_t RESPONSE_RESPONSE_BODY = 4 << 3 | 2;  // ProcessingResponse.response_body
constexpr uint8_t COMMON = 1 << 3 | 2;  // BodyResponse.response
constexpr uint8_t MUTATION = 3 << 3 | 2;  // CommonResponse.body_mutation
constexpr uint8_t STREAMED = 3 << 3 | 2;  // BodyMutation.streamed_response

constexpr std::string_view NO_METADATA("\x42\0", 2);  // ProcessingRequest.metadata_context, which Envoy sends empty, too

constexpr size_t MAX_CHUNK_BYTES = 62'000;  // as in replies.py
constexpr size_t MAX_AROUND_BYTES = 32;  // of one reply: five tags with lengths of up to three bytes, a flag and a prefix

// Takes a tag of one byte from the front of `bytes`.
std::optional<uint8_t> take_tag(std::string_view& bytes) {
    if (bytes.empty()) return std::nullopt;
    const auto tag = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    return tag;
}

// Takes a varint of at most five bytes, which no length or flag of a valid message exceeds.
std::optional<uint64_t> take_varint(std::string_view& bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < std::min<size_t>(5, bytes.size()); ++i) {
        const auto byte = static_cast<uint8_t>(bytes[i]);
        value |= uint64_t{byte & 0x7fu} << (7 * i);
        if (byte < 0x80) {
            bytes.remove_prefix(i + 1);
            return value;
        }
    }
    return std::nullopt;
}

// Takes a length and as many bytes.
std::optional<std::string_view> take_bytes(std::string_view& bytes) {
    const auto n = take_varint(bytes);
    if (!n || *n > bytes.size()) return std::nullopt;
    const std::string_view taken = bytes.substr(0, *n);
    bytes.remove_prefix(*n);
    return taken;
}

constexpr size_t varint_bytes(size_t value) { return value < 1 << 7 ? 1 : value < 1 << 14 ? 2 : 3; }

void append_field(std::string& out, uint8_t tag, size_t n) {
    out.push_back(static_cast<char>(tag));
    for (; n > 0x7f; n >>= 7) out.push_back(static_cast<char>((n & 0x7f) | 0x80));
    out.push_back(static_cast<char>(n));
}

void append_piece(std::string& out, BodyPiece piece) {
    const size_t n_body = piece.body.empty() ? 0 : 1 + varint_bytes(piece.body.size()) + piece.body.size();
    const size_t n_streamed = n_body + (piece.is_last ? 2 : 0);
    const size_t n_mutation = 1 + varint_bytes(n_streamed) + n_streamed;
    const size_t n_common = 1 + varint_bytes(n_mutation) + n_mutation;
    const size_t n_body_response = 1 + varint_bytes(n_common) + n_common;
    http2::append_message_prefix(out, 1 + varint_bytes(n_body_response) + n_body_response);
    append_field(out, RESPONSE_RESPONSE_BODY, n_body_response);
    append_field(out, COMMON, n_common);
    append_field(out, MUTATION, n_mutation);
    append_field(out, STREAMED, n_streamed);
    if (!piece.body.empty()) {
        append_field(out, BODY, piece.body.size());
        out.append(piece.body);
    }
    if (piece.is_last) out.append({static_cast<char>(END_OF_STREAM), 1});
}

}  // namespace

std::optional<BodyPiece> read_response_body(std::string_view message) {
    if (take_tag(message) != REQUEST_RESPONSE_BODY) return std::nullopt;
    auto content = take_bytes(message);
    if (!content || (!message.empty() && message != NO_METADATA)) return std::nullopt;
    BodyPiece piece;
    bool has_body = false, has_end = false;
    while (!content->empty()) {
        const auto tag = take_tag(*content);
        if (tag == BODY && !has_body) {
            const auto body = take_bytes(*content);
            if (!body) return std::nullopt;
            piece.body = *body;
            has_body = true;
        } else if (tag == END_OF_STREAM && !has_end) {
            const auto flag = take_varint(*content);
            if (!flag) return std::nullopt;
            piece.is_last = *flag != 0;
            has_end = true;
        } else {
            return std::nullopt;
        }
    }
    return piece;
}

void append_response_body(std::string& outbound, BodyPiece piece) {
    while (piece.body.size() > MAX_CHUNK_BYTES) {
        append_piece(outbound, {piece.body.substr(0, MAX_CHUNK_BYTES), false});
        piece.body.remove_prefix(MAX_CHUNK_BYTES);
    }
    append_piece(outbound, piece);
}

void append_unchanged(std::string& outbound) {
    http2::append_message_prefix(outbound, 2);
    outbound.append({static_cast<char>(RESPONSE_RESPONSE_BODY), 0});
}

size_t n_bytes_around(size_t n_body) { return MAX_AROUND_BYTES * (1 + n_body / MAX_CHUNK_BYTES); }

}  // namespace kvatlas::extproc
