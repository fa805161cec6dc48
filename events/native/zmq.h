// The functions of the ZMQ library that pyzmq has loaded, found by name: it is not there when this module is built.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvatlas::zmq {

struct Library {
    int (*init)(void*);
    int (*receive)(void*, void*, int);
    int (*close)(void*);
    void* (*data)(void*);
    size_t (*size)(const void*);
    int (*more)(const void*);
    int (*error)();

    // `path`: of a library that is loaded, and that depends on ZMQ.
    explicit Library(const char* path) {
        void* loaded = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        if (loaded == nullptr) throw std::runtime_error(std::string("not loaded: ") + path);
        find(loaded, "zmq_msg_init", init);
        find(loaded, "zmq_msg_recv", receive);
        find(loaded, "zmq_msg_close", close);
        find(loaded, "zmq_msg_data", data);
        find(loaded, "zmq_msg_size", size);
        find(loaded, "zmq_msg_more", more);
        find(loaded, "zmq_errno", error);
    }

private:
    template <class Function>
    static void find(void* loaded, const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(loaded, name));
        if (function == nullptr) throw std::runtime_error(std::string("no function ") + name);
    }
};

// One part of a message; reusable.
class Part {
public:
    explicit Part(const Library& library) : library_(&library) { library_->init(&message_); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { library_->close(&message_); }

    // Returns 0, or the number of the error, EAGAIN if there is none.
    int receive(void* socket) {
        constexpr int kNoWait = 1;  // ZMQ_DONTWAIT
        while (library_->receive(&message_, socket, kNoWait) < 0) {
            if (const int error = library_->error(); error != EINTR) return error;
        }
        return 0;
    }
    std::string_view bytes() { return {static_cast<const char*>(library_->data(&message_)), library_->size(&message_)}; }
    bool has_more() const { return library_->more(&message_) != 0; }
    void clear() {
        library_->close(&message_);
        library_->init(&message_);
    }

private:
    // `zmq_msg_t`: 64 bytes, part of ZMQ's interface since version 4
    struct alignas(void*) Message {
        std::array<unsigned char, 64> bytes;
    };

    const Library* library_;
    Message message_;
};

}  // namespace kvatlas::zmq
