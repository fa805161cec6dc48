#include "tls.h"

#include <cerrno>
#include <new>
#include <stdexcept>

namespace kvatlas::http2 {
namespace {

using openssl::Library;

// Messages of TLS itself, both ways: a handshake has at most some twenty, an update of keys and its answer two. OpenSSL goes
// on within one call as long as the client sends them.
constexpr double MESSAGES_AT_ONCE = 100, MESSAGES_PER_SECOND = 2;

// Frees what OpenSSL allocated.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

[[noreturn]] void refuse(const Library& library, const char* what) {
    const char* const reason = library.ERR_reason_error_string(library.ERR_peek_error());
    library.ERR_clear_error();
    throw std::invalid_argument(std::string(what) + ": " + (reason == nullptr ? "not usable" : reason));
}

struct Pem {
    Pem(const Library& used, std::string_view text) : library(used), bio(used.BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))) {
        if (bio == nullptr) throw std::bad_alloc();
    }
    Pem(const Pem&) = delete;
    Pem& operator=(const Pem&) = delete;
    ~Pem() { library.BIO_free(bio); }

    // Returns the next certificate, nothing at the end.
    Owned<openssl::Certificate> certificate() const {
        Owned<openssl::Certificate> next(library.PEM_read_bio_X509(bio, nullptr, nullptr, nullptr), library.X509_free);
        if (!next) library.ERR_clear_error();
        return next;
    }

    const Library& library;
    openssl::Bio* const bio;
};

// Speaks HTTP/2 with every client that offers it.
int select_h2(openssl::Ssl*, const unsigned char** out, unsigned char* n_out, const unsigned char* in, unsigned int n_in, void*) {
    for (unsigned int at = 0; at < n_in && at + 1 + in[at] <= n_in; at += 1 + in[at]) {
        if (in[at] == 2 && in[at + 1] == 'h' && in[at + 2] == '2') {
            *out = in + at + 1;
            *n_out = 2;
            return openssl::SELECTED;
        }
    }
    return openssl::NOT_SELECTED;
}

}  // namespace

TlsIdentity::TlsIdentity(const TlsTerms& terms)
    : library_(openssl::library()), context_(library_.SSL_CTX_new(library_.TLS_server_method())) {
    if (context_ == nullptr) throw std::bad_alloc();
    try {
        restrict_clients(terms);
        load_pair(terms);
        if (!terms.client_ca.empty()) ask_clients(terms.client_ca);
    } catch (...) {
        library_.SSL_CTX_free(context_);
        throw;
    }
}

TlsIdentity::~TlsIdentity() { library_.SSL_CTX_free(context_); }

void TlsIdentity::restrict_clients(const TlsTerms& terms) {
    using namespace openssl;
    if (library_.SSL_CTX_ctrl(context_, SET_MIN_PROTO_VERSION, terms.min_version, nullptr) != 1) refuse(library_, "version");
    if (library_.SSL_CTX_set_cipher_list(context_, terms.cipher_list) != 1) refuse(library_, "cipher suites");
    library_.SSL_CTX_ctrl(context_, SET_MODE, PARTIAL_WRITE | MOVING_WRITE_BUFFER | RELEASE_BUFFERS, nullptr);
    library_.SSL_CTX_ctrl(context_, SET_READ_AHEAD, 1, nullptr);  // all that the socket has at once, not each record's head alone
    // A resumed session would bypass a certificate or client CA that has changed since.
    library_.SSL_CTX_ctrl(context_, SET_SESSION_CACHE, NO_SESSIONS, nullptr);
    library_.SSL_CTX_set_options(context_, NO_TICKET | NO_RENEGOTIATION | NO_COMPRESSION | SERVER_PREFERENCE);
    library_.SSL_CTX_set_num_tickets(context_, 0);
    library_.SSL_CTX_set_alpn_select_cb(context_, select_h2, nullptr);
}

void TlsIdentity::load_pair(const TlsTerms& terms) {
    using namespace openssl;
    const Pem certificates(library_, terms.chain);
    const auto leaf = certificates.certificate();
    if (!leaf || library_.SSL_CTX_use_certificate(context_, leaf.get()) != 1) refuse(library_, "certificate");
    while (auto next = certificates.certificate()) {
        if (library_.SSL_CTX_ctrl(context_, CHAIN_CERTIFICATE, 0, next.get()) != 1) refuse(library_, "chain");
        next.release();  // the context's from here on
    }
    const Pem keys(library_, terms.key);
    const Owned<Key> own(library_.PEM_read_bio_PrivateKey(keys.bio, nullptr, nullptr, nullptr), library_.EVP_PKEY_free);
    if (!own || library_.SSL_CTX_use_PrivateKey(context_, own.get()) != 1) refuse(library_, "key");
}

void TlsIdentity::ask_clients(std::string_view client_ca) {
    const Pem authorities(library_, client_ca);
    openssl::Store* const store = library_.SSL_CTX_get_cert_store(context_);
    bool has_any = false;
    while (const auto each = authorities.certificate()) {
        library_.X509_STORE_add_cert(store, each.get());
        library_.SSL_CTX_add_client_CA(context_, each.get());
        has_any = true;
    }
    if (!has_any) refuse(library_, "client CA");
    library_.SSL_CTX_set_verify(context_, openssl::VERIFY_PEER | openssl::FAIL_IF_NO_PEER_CERTIFICATE, nullptr);
}

Tls::Tls(const TlsIdentity& identity, int fd)
    : library_(openssl::library()), ssl_(library_.SSL_new(identity.context())), messages_(MESSAGES_AT_ONCE, MESSAGES_PER_SECOND) {
    if (ssl_ == nullptr) throw std::bad_alloc();
    library_.SSL_set_msg_callback(ssl_, see);
    library_.SSL_ctrl(ssl_, openssl::SET_MESSAGE_USER, 0, this);
    library_.SSL_set_fd(ssl_, fd);
    library_.SSL_set_accept_state(ssl_);
}

Tls::~Tls() {
    if (is_open_ && !is_broken_) library_.SSL_shutdown(ssl_);
    library_.ERR_clear_error();
    library_.SSL_free(ssl_);
}

ssize_t Tls::read(std::span<char> bytes, double now) {
    now_ = now;
    library_.ERR_clear_error();
    const ssize_t n = outcome(library_.SSL_read(ssl_, bytes.data(), static_cast<int>(bytes.size())));
    if (!is_open_) is_open_ = library_.SSL_is_init_finished(ssl_) != 0;
    is_blocked_ = n < 0 && wants_write_;
    return n;
}

// Counts the messages of TLS itself.
void Tls::see(int, int, int content_type, const void*, size_t, openssl::Ssl* ssl, void* self) {
    if (content_type != openssl::HANDSHAKE && content_type != openssl::ALERT) return;
    Tls& tls = *static_cast<Tls*>(self);
    if (tls.messages_.take(tls.now_)) return;
    tls.is_flooded_ = true;
    tls.library_.SSL_set_shutdown(ssl, openssl::RECEIVED_SHUTDOWN);  // OpenSSL drops what follows
}

ssize_t Tls::write(std::string_view bytes) {
    library_.ERR_clear_error();
    return outcome(library_.SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())));
}

ssize_t Tls::outcome(int result) {
    wants_write_ = false;
    if (result > 0) return result;
    if (is_flooded_) {
        is_broken_ = true;
        errno = ECONNRESET;
        return -1;
    }
    switch (library_.SSL_get_error(ssl_, result)) {
        case openssl::WANT_WRITE:
            wants_write_ = true;
            [[fallthrough]];
        case openssl::WANT_READ:
            errno = EAGAIN;
            return -1;
        case openssl::ZERO_RETURN:
            return 0;
        default:
            break;
    }
    if (const char* const reason = library_.ERR_reason_error_string(library_.ERR_peek_error()); reason != nullptr) {
        const std::string_view text = reason;
        is_plain_ = text == "http request" || text == "https proxy request" || text == "wrong version number";
    }
    library_.ERR_clear_error();
    is_broken_ = true;
    errno = ECONNRESET;
    return -1;
}

}  // namespace kvatlas::http2
