#include "nghttp2.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace kvatlas::nghttp2 {
namespace {

constexpr const char* NAME = "libnghttp2.so.14";

Library load() {
    // Never closed: at the end of a process, sessions may outlive everything else.
    void* const handle = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    const auto describe = reinterpret_cast<decltype(Library::version)>(dlsym(handle, "nghttp2_version"));
    if (const Version* const version = describe == nullptr ? nullptr : describe(0); version == nullptr || version->number < OLDEST)
        throw std::runtime_error(std::string(NAME) + " is version " + (version == nullptr ? "unknown" : version->text) +
                                 ", older than 1.41.0, the oldest that bounds what a client makes it keep");
    Library found{};
#define KVATLAS_FIND(name, ...)                                                                                        \
    found.name = reinterpret_cast<std::type_identity_t<__VA_ARGS__>>(dlsym(handle, "nghttp2_" #name));                 \
    if (found.name == nullptr) throw std::runtime_error(std::string(NAME) + " has no nghttp2_" #name);
    KVATLAS_NGHTTP2_FUNCTIONS(KVATLAS_FIND)
#undef KVATLAS_FIND
    found.option_set_stream_reset_rate_limit = reinterpret_cast<decltype(found.option_set_stream_reset_rate_limit)>(
        dlsym(handle, "nghttp2_option_set_stream_reset_rate_limit"));
    return found;
}

}  // namespace

const Library& library() {
    static const Library loaded = load();
    return loaded;
}

}  // namespace kvatlas::nghttp2
