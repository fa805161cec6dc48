// The part of OpenSSL's interface that is used here, loaded from the shared libraries at the start: its headers are not needed
// to build. Source: the documented C interface of OpenSSL 3, whose numbers have not changed since 1.1.1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvatlas::openssl {

struct Method;
struct Context;
struct Ssl;
struct Bio;
struct Certificate;
struct Key;
struct Store;

using SelectProtocol = int (*)(Ssl*, const unsigned char** out, unsigned char* n_out, const unsigned char* in, unsigned int n_in,
                               void* user);
using SeeMessage = void (*)(int is_written, int version, int content_type, const void* bytes, size_t n, Ssl*, void* user);

// Commands of SSL_CTX_ctrl and SSL_ctrl.
constexpr int SET_MESSAGE_USER = 16, SET_MODE = 33, SET_READ_AHEAD = 41, SET_SESSION_CACHE = 44, CHAIN_CERTIFICATE = 89, SET_MIN_PROTO_VERSION = 123;
constexpr long PARTIAL_WRITE = 1, MOVING_WRITE_BUFFER = 2, RELEASE_BUFFERS = 16;
constexpr long NO_SESSIONS = 0;
constexpr uint64_t NO_TICKET = uint64_t{1} << 14, NO_COMPRESSION = uint64_t{1} << 17, SERVER_PREFERENCE = uint64_t{1} << 22,
                   NO_RENEGOTIATION = uint64_t{1} << 30;
constexpr int VERIFY_PEER = 1, FAIL_IF_NO_PEER_CERTIFICATE = 2;
constexpr int WANT_READ = 2, WANT_WRITE = 3, ZERO_RETURN = 6;  // of SSL_get_error
constexpr int ALERT = 21, HANDSHAKE = 22;                      // content types of SeeMessage
constexpr int RECEIVED_SHUTDOWN = 2;                           // of SSL_set_shutdown
constexpr int SELECTED = 0, NOT_SELECTED = 3;                  // of SelectProtocol

// Every function used: its name in the library, result and arguments.
#define KVATLAS_OPENSSL(F)                                                                                                   \
    F(TLS_server_method, const Method*, (void))                                                                              \
    F(SSL_CTX_new, Context*, (const Method*))                                                                                \
    F(SSL_CTX_free, void, (Context*))                                                                                        \
    F(SSL_CTX_ctrl, long, (Context*, int, long, void*))                                                                      \
    F(SSL_CTX_set_cipher_list, int, (Context*, const char*))                                                                 \
    F(SSL_CTX_set_options, uint64_t, (Context*, uint64_t))                                                                   \
    F(SSL_CTX_set_num_tickets, int, (Context*, size_t))                                                                      \
    F(SSL_CTX_use_certificate, int, (Context*, Certificate*))                                                                \
    F(SSL_CTX_use_PrivateKey, int, (Context*, Key*))                                                                         \
    F(SSL_CTX_get_cert_store, Store*, (const Context*))                                                                      \
    F(SSL_CTX_add_client_CA, int, (Context*, Certificate*))                                                                  \
    F(SSL_CTX_set_verify, void, (Context*, int, void*))                                                                      \
    F(SSL_CTX_set_alpn_select_cb, void, (Context*, SelectProtocol, void*))                                                   \
    F(SSL_new, Ssl*, (Context*))                                                                                             \
    F(SSL_free, void, (Ssl*))                                                                                                \
    F(SSL_set_fd, int, (Ssl*, int))                                                                                          \
    F(SSL_ctrl, long, (Ssl*, int, long, void*))                                                                              \
    F(SSL_set_msg_callback, void, (Ssl*, SeeMessage))                                                                        \
    F(SSL_set_shutdown, void, (Ssl*, int))                                                                                   \
    F(SSL_set_accept_state, void, (Ssl*))                                                                                    \
    F(SSL_is_init_finished, int, (const Ssl*))                                                                               \
    F(SSL_read, int, (Ssl*, void*, int))                                                                                     \
    F(SSL_has_pending, int, (const Ssl*))                                                                                    \
    F(SSL_write, int, (Ssl*, const void*, int))                                                                              \
    F(SSL_shutdown, int, (Ssl*))                                                                                             \
    F(SSL_get_error, int, (const Ssl*, int))                                                                                 \
    F(ERR_peek_error, unsigned long, (void))                                                                                 \
    F(ERR_clear_error, void, (void))                                                                                         \
    F(ERR_reason_error_string, const char*, (unsigned long))                                                                 \
    F(BIO_new_mem_buf, Bio*, (const void*, int))                                                                             \
    F(BIO_free, int, (Bio*))                                                                                                 \
    F(PEM_read_bio_X509, Certificate*, (Bio*, Certificate**, void*, void*))                                                  \
    F(PEM_read_bio_PrivateKey, Key*, (Bio*, Key**, void*, void*))                                                            \
    F(X509_free, void, (Certificate*))                                                                                       \
    F(EVP_PKEY_free, void, (Key*))                                                                                           \
    F(X509_STORE_add_cert, int, (Store*, Certificate*))

struct Library {
#define KVATLAS_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
    KVATLAS_OPENSSL(KVATLAS_MEMBER)
#undef KVATLAS_MEMBER
};

// Returns the loaded library. Throws std::runtime_error if this machine has none that is new enough.
const Library& library();

}  // namespace kvatlas::openssl
