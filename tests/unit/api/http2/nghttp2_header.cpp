// Compared by the compiler: the part of libnghttp2's interface that api/http2/native/nghttp2.h declares, and the library's
// own header.
#include "nghttp2.h"

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <type_traits>

namespace ours = kvatlas::nghttp2;

// The type of the header, with our names for its structures.
template <class T>
struct Named {
    using type = T;
};
template <class T>
using named = typename Named<T>::type;

#define SAME(theirs, our) \
    template <>           \
    struct Named<theirs> { \
        using type = our; \
    };
SAME(nghttp2_session, ours::Session)
SAME(nghttp2_session_callbacks, ours::Callbacks)
SAME(nghttp2_option, ours::Option)
SAME(nghttp2_frame, ours::Frame)
SAME(nghttp2_nv, ours::Field)
SAME(nghttp2_settings_entry, ours::Setting)
SAME(nghttp2_data_source, ours::Source)
SAME(nghttp2_data_provider, ours::DataProvider)
SAME(nghttp2_info, ours::Version)
#undef SAME

template <class T>
struct Named<const T> {
    using type = const named<T>;
};
template <class T>
struct Named<T*> {
    using type = named<T>*;
};
template <class R, class... A>
struct Named<R(A...)> {
    using type = named<R>(named<A>...);
};

#define FUNCTION(name, ...)                                                       \
    static_assert(std::is_same_v<named<decltype(&::nghttp2_##name)>, __VA_ARGS__>, \
                  "nghttp2_" #name " has another type in the library's header");
namespace kvatlas::nghttp2 {
KVATLAS_NGHTTP2_FUNCTIONS(FUNCTION)
FUNCTION(option_set_stream_reset_rate_limit, decltype(Library::option_set_stream_reset_rate_limit))
}  // namespace kvatlas::nghttp2

#define MEMBER(ours_type, our, theirs_type, their)                                                            \
    static_assert(offsetof(ours_type, our) == offsetof(theirs_type, their) &&                                 \
                      std::is_same_v<decltype(ours_type::our), named<decltype(theirs_type::their)>>,          \
                  #theirs_type "::" #their " is elsewhere, or of another type, in the library's header");
#define SIZE(ours_type, theirs_type) \
    static_assert(sizeof(ours_type) == sizeof(theirs_type), #theirs_type " has another size in the library's header");

SIZE(ours::FrameHeader, nghttp2_frame_hd)
MEMBER(ours::FrameHeader, length, nghttp2_frame_hd, length)
MEMBER(ours::FrameHeader, stream_id, nghttp2_frame_hd, stream_id)
MEMBER(ours::FrameHeader, type, nghttp2_frame_hd, type)
MEMBER(ours::FrameHeader, flags, nghttp2_frame_hd, flags)
static_assert(offsetof(nghttp2_frame, hd) == offsetof(ours::Frame, header));
SIZE(ours::Field, nghttp2_nv)
static_assert(offsetof(ours::Field, name) == offsetof(nghttp2_nv, name) && offsetof(ours::Field, value) == offsetof(nghttp2_nv, value));
MEMBER(ours::Field, n_name, nghttp2_nv, namelen)
MEMBER(ours::Field, n_value, nghttp2_nv, valuelen)
MEMBER(ours::Field, flags, nghttp2_nv, flags)
SIZE(ours::Setting, nghttp2_settings_entry)
MEMBER(ours::Setting, id, nghttp2_settings_entry, settings_id)
MEMBER(ours::Setting, value, nghttp2_settings_entry, value)
SIZE(ours::Source, nghttp2_data_source)
MEMBER(ours::Source, pointer, nghttp2_data_source, ptr)
SIZE(ours::DataProvider, nghttp2_data_provider)
MEMBER(ours::DataProvider, source, nghttp2_data_provider, source)
MEMBER(ours::DataProvider, read, nghttp2_data_provider, read_callback)
SIZE(ours::Version, nghttp2_info)
MEMBER(ours::Version, age, nghttp2_info, age)
MEMBER(ours::Version, number, nghttp2_info, version_num)
MEMBER(ours::Version, text, nghttp2_info, version_str)

#define VALUE(our, theirs) static_assert(static_cast<long long>(our) == static_cast<long long>(theirs), #theirs " has another value");
VALUE(ours::DATA, NGHTTP2_DATA)
VALUE(ours::HEADERS, NGHTTP2_HEADERS)
VALUE(ours::SETTINGS, NGHTTP2_SETTINGS)
VALUE(ours::PING, NGHTTP2_PING)
VALUE(ours::CONTINUATION, NGHTTP2_CONTINUATION)
VALUE(ours::END_STREAM, NGHTTP2_FLAG_END_STREAM)
VALUE(ours::ACK, NGHTTP2_FLAG_ACK)
VALUE(ours::DATA_EOF, NGHTTP2_DATA_FLAG_EOF)
VALUE(ours::DATA_NO_END_STREAM, NGHTTP2_DATA_FLAG_NO_END_STREAM)
VALUE(ours::ERR_DEFERRED, NGHTTP2_ERR_DEFERRED)
VALUE(ours::ERR_TEMPORAL_CALLBACK_FAILURE, NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE)
VALUE(ours::MAX_CONCURRENT_STREAMS, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
VALUE(ours::INITIAL_WINDOW_SIZE, NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE)
VALUE(ours::MAX_HEADER_LIST_SIZE, NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE)
VALUE(ours::NO_ERROR, NGHTTP2_NO_ERROR)
VALUE(ours::ENHANCE_YOUR_CALM, NGHTTP2_ENHANCE_YOUR_CALM)
VALUE(ours::NO_RFC7540_PRIORITIES, NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES)
