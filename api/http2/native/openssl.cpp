#include "openssl.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace kvatlas::openssl {
namespace {

Library loaded() {
    // libssl brings libcrypto, whose functions are found through it.
    void* const handle = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error("libssl.so.3 is not installed");
    Library library;
#define KVATLAS_LOAD(name, result, arguments)                                                                \
    library.name = reinterpret_cast<result(*) arguments>(dlsym(handle, #name));                              \
    if (library.name == nullptr) throw std::runtime_error(std::string("libssl.so.3 has no function ") + #name);
    KVATLAS_OPENSSL(KVATLAS_LOAD)
#undef KVATLAS_LOAD
    return library;
}

}  // namespace

const Library& library() {
    static const Library library = loaded();
    return library;
}

}  // namespace kvatlas::openssl
