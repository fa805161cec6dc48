#include "key_functions.h"

#include <cstring>

#include "xxh3.h"

namespace kvatlas {

using namespace python;

PyObject* prefix_keys(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"tokens", "block_size", "seed", "parent"});
        const Buffer tokens = tokens_buffer(args[0]);
        const size_t block_size = as_count(args[1], 1, "block_size");
        const uint64_t seed = as_count(args[2], 0, "seed");
        const bool has_parent = args[3] != Py_None;
        uint64_t key = has_parent ? as_count(args[3], 0, "parent") : 0;
        const size_t n_blocks = tokens.n_bytes() / 4 / block_size, step = block_size * 4;
        Reference keys(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(n_blocks * sizeof key)));
        char* out = PyBytes_AsString(keys.get());
        const auto* in = static_cast<const char*>(tokens.data());
        {
            const WithoutGil released;
            for (size_t block = 0; block < n_blocks; ++block) {
                const uint64_t local = xxh3::hash(in + block * step, step, seed);
                key = block == 0 && !has_parent ? local : xxh3::chain(key, local, seed);
                std::memcpy(out + block * sizeof key, &key, sizeof key);
            }
        }
        return keys.release();
    }, nullptr);
}

PyObject* chain_keys(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"local_hashes", "seed"});
        const Buffer local = keys_buffer(args[0]);
        const uint64_t seed = as_count(args[1], 0, "seed");
        Reference keys(PyBytes_FromStringAndSize(static_cast<const char*>(local.data()), static_cast<Py_ssize_t>(local.n_bytes())));
        char* at = PyBytes_AsString(keys.get());
        const size_t n = local.n_bytes() / sizeof(uint64_t);
        {
            const WithoutGil released;
            uint64_t key = 0;
            for (size_t i = 0; i < n; ++i, at += sizeof key) {
                uint64_t hash = 0;
                std::memcpy(&hash, at, sizeof hash);
                key = i == 0 ? hash : xxh3::chain(key, hash, seed);
                std::memcpy(at, &key, sizeof key);
            }
        }
        return keys.release();
    }, nullptr);
}

PyObject* xxh3_64(PyObject*, Call call) {
    return guarded([&]() -> PyObject* {
        const auto args = call.arguments({"data", "seed"});
        const Buffer input(args[0], 1, "B", "input");
        return PyLong_FromUnsignedLongLong(xxh3::hash(input.data(), input.n_bytes(), as_count(args[1], 0, "seed")));
    }, nullptr);
}

}  // namespace kvatlas
