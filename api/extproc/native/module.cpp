// kvatlas.api.extproc._native: reads the messages that gateways send most, and makes passages. _native.pyi describes its
// interface.
//
// Everything unusual is left to the protobuf library: unknown, repeated or malformed fields, dynamic metadata, attributes.

#include <cstdint>
#include <string>
#include <string_view>

#include "passages.h"
#include "python.h"

namespace {

using namespace kvatlas::python;

// Thrown at what the library has to read.
struct Unusual {};

// Fields of ProcessingRequest, HttpHeaders, HttpBody, HeaderMap, HeaderValue and ProtocolConfiguration, with their wire types.
constexpr uint8_t VARINT = 0, LENGTH_DELIMITED = 2;
constexpr uint8_t bytes_field(int number) { return static_cast<uint8_t>(number << 3 | LENGTH_DELIMITED); }
constexpr uint8_t number_field(int number) { return static_cast<uint8_t>(number << 3 | VARINT); }

constexpr uint8_t REQUEST_HEADERS = bytes_field(2), RESPONSE_HEADERS = bytes_field(3);
constexpr uint8_t REQUEST_BODY = bytes_field(4), RESPONSE_BODY = bytes_field(5);
constexpr uint8_t METADATA_CONTEXT = bytes_field(8), PROTOCOL_CONFIG = bytes_field(11);
constexpr uint8_t HEADERS = bytes_field(1), HEADERS_END = number_field(3);
constexpr uint8_t BODY = bytes_field(1), BODY_END = number_field(2);
constexpr uint8_t HEADER = bytes_field(1);
constexpr uint8_t KEY = bytes_field(1), VALUE = bytes_field(2), RAW_VALUE = bytes_field(3);
constexpr uint8_t REQUEST_BODY_MODE = number_field(1), RESPONSE_BODY_MODE = number_field(2), SENDS_AT_ONCE = number_field(3);

// The fields of one message, each of which may come once unless `repeats`.
class Fields {
public:
    explicit Fields(std::string_view message, bool repeats = false) : rest_(message), repeats_(repeats) {}

    bool next() {
        if (rest_.empty()) return false;
        tag_ = take();
        const uint32_t bit = 1u << (tag_ >> 3);
        if ((seen_ & bit) != 0 && !repeats_) throw Unusual();
        seen_ |= bit;
        return true;
    }
    uint8_t tag() const { return tag_; }

    std::string_view bytes() {
        uint64_t n = 0;
        for (int shift = 0;; shift += 7) {
            if (shift > 28) throw Unusual();
            const uint8_t byte = take();
            n |= uint64_t{byte & 0x7Fu} << shift;
            if (byte < 0x80) break;
        }
        if (n > rest_.size()) throw Unusual();
        const std::string_view found = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return found;
    }
    uint8_t small_number() {
        const uint8_t byte = take();
        if (byte >= 0x80) throw Unusual();
        return byte;
    }

private:
    uint8_t take() {
        if (rest_.empty()) throw Unusual();
        const auto byte = static_cast<uint8_t>(rest_.front());
        rest_.remove_prefix(1);
        return byte;
    }

    std::string_view rest_;
    const bool repeats_;
    uint8_t tag_ = 0;
    uint32_t seen_ = 0;
};

PyObject* text_of(std::string_view utf8, const char* errors) {
    return PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), errors);
}

PyObject* name_of(std::string_view key, std::string& scratch) {
    bool is_lower = true;
    for (const char each : key) {
        if (static_cast<uint8_t>(each) >= 0x80) throw Unusual();
        is_lower = is_lower && (each < 'A' || each > 'Z');
    }
    if (!is_lower) {
        scratch = key;
        for (char& each : scratch) each = each >= 'A' && each <= 'Z' ? static_cast<char>(each | 0x20) : each;
        key = scratch;
    }
    return text_of(key, nullptr);
}

void add_header(PyObject* headers, std::string_view header, std::string& scratch) {
    std::string_view key, value, raw_value;
    for (Fields fields(header); fields.next();) {
        switch (fields.tag()) {
            case KEY: key = fields.bytes(); break;
            case VALUE: value = fields.bytes(); break;
            case RAW_VALUE: raw_value = fields.bytes(); break;
            default: throw Unusual();
        }
    }
    PyObject* const plain = text_of(value, nullptr);
    if (plain == nullptr) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) == 0) throw Raised();
        PyErr_Clear();
        throw Unusual();
    }
    Reference text(plain);
    const Reference name(name_of(key, scratch));
    if (raw_value.empty()) {
        if (PyDict_SetItem(headers, name.get(), text.get()) < 0) throw Raised();
    } else {
        const Reference raw(text_of(raw_value, "replace"));
        if (PyDict_SetItem(headers, name.get(), raw.get()) < 0) throw Raised();
    }
}

// What Python gets of a message, in the order of the fields of `Message`.
struct Found {
    const char* kind = nullptr;
    bool ends = false;
    std::string_view body;
    std::optional<std::string_view> headers;
    std::optional<std::pair<uint8_t, uint8_t>> modes;

    void set_kind(const char* name) {
        if (kind != nullptr) throw Unusual();
        kind = name;
    }
};

bool as_bool(uint8_t number) {
    if (number > 1) throw Unusual();
    return number == 1;
}

void read_headers(std::string_view message, Found& found) {
    found.headers = std::string_view();
    for (Fields fields(message); fields.next();) {
        switch (fields.tag()) {
            case HEADERS: found.headers = fields.bytes(); break;
            case HEADERS_END: found.ends = as_bool(fields.small_number()); break;
            default: throw Unusual();
        }
    }
}

void read_body(std::string_view message, Found& found) {
    for (Fields fields(message); fields.next();) {
        switch (fields.tag()) {
            case BODY: found.body = fields.bytes(); break;
            case BODY_END: found.ends = as_bool(fields.small_number()); break;
            default: throw Unusual();
        }
    }
}

void read_modes(std::string_view message, Found& found) {
    auto& modes = found.modes.emplace(0, 0);
    for (Fields fields(message); fields.next();) {
        switch (fields.tag()) {
            case REQUEST_BODY_MODE: modes.first = fields.small_number(); break;
            case RESPONSE_BODY_MODE: modes.second = fields.small_number(); break;
            case SENDS_AT_ONCE: as_bool(fields.small_number()); break;
            default: throw Unusual();
        }
    }
}

Found read(std::string_view message) {
    Found found;
    for (Fields fields(message); fields.next();) {
        switch (fields.tag()) {
            case REQUEST_HEADERS: found.set_kind("request_headers"); read_headers(fields.bytes(), found); break;
            case RESPONSE_HEADERS: found.set_kind("response_headers"); read_headers(fields.bytes(), found); break;
            case REQUEST_BODY: found.set_kind("request_body"); read_body(fields.bytes(), found); break;
            case RESPONSE_BODY: found.set_kind("response_body"); read_body(fields.bytes(), found); break;
            case METADATA_CONTEXT: if (!fields.bytes().empty()) throw Unusual(); break;  // Envoy sends it empty, too
            case PROTOCOL_CONFIG: read_modes(fields.bytes(), found); break;
            default: throw Unusual();
        }
    }
    if (found.kind == nullptr) throw Unusual();
    return found;
}

// Returns the number of headers.
size_t add_headers(PyObject* headers, std::string_view message, size_t n_most) {
    size_t n = 0;
    std::string scratch;
    for (Fields fields(message, true); fields.next();) {
        if (fields.tag() != HEADER || ++n > n_most) throw Unusual();
        add_header(headers, fields.bytes(), scratch);
    }
    return n;
}

PyObject* tuple_of(const Found& found, PyObject* data, size_t n_most) {
    const Reference headers(PyDict_New());
    const size_t n_headers = found.headers ? add_headers(headers.get(), *found.headers, n_most) : 0;
    const Reference kind(PyUnicode_InternFromString(found.kind));
    const Reference body(PyBytes_FromStringAndSize(found.body.data(), static_cast<Py_ssize_t>(found.body.size())));
    const Reference modes(found.modes ? Py_BuildValue("(BB)", found.modes->first, found.modes->second) : Py_NewRef(Py_None));
    return Py_BuildValue("(OnOOOnOO)", kind.get(), PyBytes_Size(data), found.ends ? Py_True : Py_False, body.get(), headers.get(),
                         static_cast<Py_ssize_t>(n_headers), modes.get(), found.headers ? data : Py_None);
}

PyObject* read_message(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"data", "max_headers"});
        char* bytes = nullptr;
        Py_ssize_t n = 0;
        if (PyBytes_AsStringAndSize(args[0], &bytes, &n) < 0) throw Raised();
        const size_t n_most = as_count(args[1], 0, "max_headers");
        try {
            return tuple_of(read({bytes, static_cast<size_t>(n)}), args[0], n_most);
        } catch (const Unusual&) {
            Py_RETURN_NONE;
        }
    }, nullptr);
}

PyMethodDef module_methods[] = {
    method<read_message>("read_message"),
    method<kvatlas::extproc::response_passage>("response_passage"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kvatlas.api.extproc._native", nullptr, 0, module_methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
