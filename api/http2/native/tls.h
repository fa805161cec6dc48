// TLS on the server's side of sockets that do not block.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "budget.h"
#include "openssl.h"

namespace kvatlas::http2 {

// What a listener shows its clients, and asks of them.
struct TlsTerms {
    std::string_view key, chain;      // PEM
    std::string_view client_ca;       // PEM; clients must have a certificate of it, unless it is empty
    long min_version = 0;             // as OpenSSL numbers versions
    const char* cipher_list = "";     // of TLS 1.2, in OpenSSL's form
};

// Key and certificate of a listener, and the authorities of its clients. Safe to share between threads.
class TlsIdentity {
public:
    // Throws std::invalid_argument if OpenSSL does not take them, std::runtime_error without OpenSSL.
    explicit TlsIdentity(const TlsTerms& terms);
    TlsIdentity(const TlsIdentity&) = delete;
    TlsIdentity& operator=(const TlsIdentity&) = delete;
    ~TlsIdentity();

    openssl::Context* context() const { return context_; }

private:
    void restrict_clients(const TlsTerms& terms);
    void load_pair(const TlsTerms& terms);
    void ask_clients(std::string_view client_ca);

    const openssl::Library& library_;
    openssl::Context* context_;
};

class Tls {
public:
    // Uses a socket that it does not own.
    Tls(const TlsIdentity& identity, int fd);
    Tls(const Tls&) = delete;
    Tls& operator=(const Tls&) = delete;
    ~Tls();

    // As `recv` and `send`: bytes, 0 at the end of the connection, or -1 with `errno`, EAGAIN if the socket is not ready.
    // The handshake happens in between. `now` is in seconds.
    ssize_t read(std::span<char> bytes, double now);
    ssize_t write(std::string_view bytes);

    // Returns whether bytes were taken from the socket that `read` has not returned yet.
    bool has_pending() const { return library_.SSL_has_pending(ssl_) != 0; }

    // Returns whether the handshake is complete.
    bool is_open() const { return is_open_; }

    // Returns whether nothing can be read until the socket is writable: an answer of TLS itself waits.
    bool is_blocked() const { return is_blocked_; }

    // Returns whether the socket must be writable before it goes on.
    bool wants_write() const { return wants_write_; }

    // Returns whether the client has had TLS itself do more than it may. Nothing more can be read then.
    bool is_flooded() const { return is_flooded_; }

    // Returns whether the client does not speak TLS.
    bool is_plain() const { return is_plain_; }

private:
    static void see(int, int, int content_type, const void*, size_t, openssl::Ssl* ssl, void* self);
    ssize_t outcome(int result);

    const openssl::Library& library_;
    openssl::Ssl* const ssl_;
    Rate messages_;
    double now_ = 0;
    bool is_open_ = false, wants_write_ = false, is_blocked_ = false, is_flooded_ = false, is_plain_ = false, is_broken_ = false;
};

}  // namespace kvatlas::http2
