// TLS on the server's side of sockets that do not block.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "openssl.h"

namespace kvatlas::http2 {

// Key and certificate of a listener, and the authorities of its clients. Safe to share between threads.
class TlsIdentity {
public:
    // `key` and `chain` are PEM; clients must have a certificate of `client_ca`, PEM too, unless that is empty.
    // Throws std::invalid_argument if OpenSSL does not take them, std::runtime_error without OpenSSL.
    TlsIdentity(std::string_view key, std::string_view chain, std::string_view client_ca);
    TlsIdentity(const TlsIdentity&) = delete;
    TlsIdentity& operator=(const TlsIdentity&) = delete;
    ~TlsIdentity();

    openssl::Context* context() const { return context_; }

private:
    void load(std::string_view key, std::string_view chain, std::string_view client_ca);

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
    // The handshake happens in between.
    ssize_t read(std::span<char> bytes);
    ssize_t write(std::string_view bytes);

    // Returns whether the handshake is complete.
    bool is_open() const { return is_open_; }

    // Returns whether the handshake waits until the socket is writable.
    bool is_blocked() const { return !is_open_ && wants_write_; }

    // Returns whether the socket must be writable before it goes on.
    bool wants_write() const { return wants_write_; }

    // Returns whether the client does not speak TLS.
    bool is_plain() const { return is_plain_; }

private:
    ssize_t outcome(int result);

    const openssl::Library& library_;
    openssl::Ssl* const ssl_;
    bool is_open_ = false, wants_write_ = false, is_plain_ = false, is_broken_ = false;
};

}  // namespace kvatlas::http2
