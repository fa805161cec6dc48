// The part of libnghttp2's interface that is used here, loaded from the shared library at the start: its headers are not
// needed to build, and without the library kvatlas uses another transport.
// Source: the library's documented C interface, whose layouts have not changed since version 1.0 (soname 14).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvatlas::nghttp2 {

struct Session;
struct Callbacks;
struct Option;

struct FrameHeader {
    size_t length;
    int32_t stream_id;
    uint8_t type, flags, reserved;
};

// Every frame begins with its header; the rest is not read.
struct Frame {
    FrameHeader header;
};

struct Field {
    const uint8_t* name;
    const uint8_t* value;
    size_t n_name, n_value;
    uint8_t flags;
};

struct Setting {
    int32_t id;
    uint32_t value;
};

union Source {
    int descriptor;
    void* pointer;
};

using ReadData = ssize_t (*)(Session*, int32_t stream_id, uint8_t* out, size_t n_out, uint32_t* flags, Source*, void* user);

struct DataProvider {
    Source source;
    ReadData read;
};

using OnFrame = int (*)(Session*, const Frame*, void* user);
using OnHeader = int (*)(Session*, const Frame*, const uint8_t* name, size_t n_name, const uint8_t* value, size_t n_value,
                         uint8_t flags, void* user);
using OnData = int (*)(Session*, uint8_t flags, int32_t stream_id, const uint8_t* data, size_t n_data, void* user);
using OnClose = int (*)(Session*, int32_t stream_id, uint32_t error, void* user);

constexpr uint8_t DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, CONTINUATION = 9;  // frame types
constexpr uint8_t END_STREAM = 1, ACK = 1;                                     // frame flags
constexpr uint32_t DATA_EOF = 1, DATA_NO_END_STREAM = 2;                       // flags of ReadData
constexpr int ERR_DEFERRED = -508, ERR_TEMPORAL_CALLBACK_FAILURE = -521;       // answers of callbacks
constexpr int32_t MAX_CONCURRENT_STREAMS = 3, INITIAL_WINDOW_SIZE = 4, MAX_HEADER_LIST_SIZE = 6,
                  NO_RFC7540_PRIORITIES = 9;                                   // settings
constexpr uint32_t NO_ERROR = 0, ENHANCE_YOUR_CALM = 11;                       // error codes

// Oldest version that bounds by itself the answers that wait for a client and the settings in a frame (CVE-2019-9513,
// CVE-2020-11080). What later versions bound, a session bounds too.
constexpr int OLDEST = 0x012900;  // 1.41.0

struct Version {
    int age;
    int number;
    const char* text;
    const char* protocol;
};

// name in the library, type
#define KVATLAS_NGHTTP2_FUNCTIONS(X)                                                                                   \
    X(session_callbacks_new, int (*)(Callbacks**))                                                                     \
    X(session_callbacks_del, void (*)(Callbacks*))                                                                     \
    X(session_callbacks_set_on_begin_headers_callback, void (*)(Callbacks*, OnFrame))                                  \
    X(session_callbacks_set_on_header_callback, void (*)(Callbacks*, OnHeader))                                        \
    X(session_callbacks_set_on_frame_recv_callback, void (*)(Callbacks*, OnFrame))                                     \
    X(session_callbacks_set_on_data_chunk_recv_callback, void (*)(Callbacks*, OnData))                                 \
    X(session_callbacks_set_on_stream_close_callback, void (*)(Callbacks*, OnClose))                                   \
    X(option_new, int (*)(Option**))                                                                                   \
    X(option_del, void (*)(Option*))                                                                                   \
    X(option_set_no_auto_window_update, void (*)(Option*, int))                                                        \
    X(option_set_no_closed_streams, void (*)(Option*, int))                                                            \
    X(option_set_max_settings, void (*)(Option*, size_t))                                                              \
    X(session_server_new2, int (*)(Session**, const Callbacks*, void*, const Option*))                                 \
    X(session_del, void (*)(Session*))                                                                                 \
    X(session_mem_recv, ssize_t (*)(Session*, const uint8_t*, size_t))                                                 \
    X(session_mem_send, ssize_t (*)(Session*, const uint8_t**))                                                        \
    X(session_want_read, int (*)(Session*))                                                                            \
    X(session_want_write, int (*)(Session*))                                                                           \
    X(session_resume_data, int (*)(Session*, int32_t))                                                                 \
    X(session_consume_connection, int (*)(Session*, size_t))                                                           \
    X(session_consume_stream, int (*)(Session*, int32_t, size_t))                                                      \
    X(session_set_local_window_size, int (*)(Session*, uint8_t, int32_t, int32_t))                                     \
    X(session_get_last_proc_stream_id, int32_t (*)(Session*))                                                          \
    X(submit_settings, int (*)(Session*, uint8_t, const Setting*, size_t))                                             \
    X(submit_response, int (*)(Session*, int32_t, const Field*, size_t, const DataProvider*))                          \
    X(submit_trailer, int (*)(Session*, int32_t, const Field*, size_t))                                                \
    X(submit_rst_stream, int (*)(Session*, uint8_t, int32_t, uint32_t))                                                \
    X(submit_ping, int (*)(Session*, uint8_t, const uint8_t*))                                                         \
    X(submit_goaway, int (*)(Session*, uint8_t, int32_t, uint32_t, const uint8_t*, size_t))                            \
    X(submit_shutdown_notice, int (*)(Session*))                                                                       \
    X(session_terminate_session, int (*)(Session*, uint32_t))                                                          \
    X(version, Version* (*)(int))                                                                                      \
    X(strerror, const char* (*)(int))

struct Library {
#define KVATLAS_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name;
    KVATLAS_NGHTTP2_FUNCTIONS(KVATLAS_MEMBER)
#undef KVATLAS_MEMBER
    // Null in versions without limits.
    void (*option_set_stream_reset_rate_limit)(Option*, uint64_t burst, uint64_t per_second);
};

// Returns the library; throws std::runtime_error with what is missing, or that it is too old.
const Library& library();

}  // namespace kvatlas::nghttp2
