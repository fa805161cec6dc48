// Zeroed memory for large arrays, suitable for huge pages; parts can be returned while the rest is in use.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <utility>

namespace kvatlas {

inline constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

class Pages {
public:
    Pages() = default;
    explicit Pages(size_t n_bytes) : size_(n_bytes) {
        // Small arrays come from the heap: thousands of holders would otherwise use up the process's mappings.
        data_ = is_mapped() ? map(n_bytes) : std::calloc(1, n_bytes);
        if (data_ == nullptr) throw std::bad_alloc();
    }
    Pages(Pages&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    Pages& operator=(Pages&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Pages() {
        if (is_mapped()) {
            munmap(data_, size_);
        } else {
            std::free(data_);
        }
    }

    void* data() const { return data_; }
    size_t size() const { return size_; }

    // Returns memory of whole huge pages in [begin, end) to the system; its content is lost.
    void release(size_t begin, size_t end) const {
        begin = (begin + kHugePage - 1) / kHugePage * kHugePage;
        end = end / kHugePage * kHugePage;
        if (is_mapped() && begin < end) madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
    }

    // Populates the pages of [begin, end), so that first writes do not wait for zeroing.
    void populate([[maybe_unused]] size_t begin, [[maybe_unused]] size_t end) const {
#ifdef MADV_POPULATE_WRITE
        begin = begin / kPage * kPage;
        end = end < size_ ? end : size_;
        if (is_mapped() && begin < end) madvise(static_cast<char*>(data_) + begin, end - begin, MADV_POPULATE_WRITE);
#endif
    }

    // Lets the system replace the pages by huge ones in the background. Called only once the array is filled, since a first
    // write that waits for a whole huge page takes milliseconds on a virtual machine.
    void settle() const {
        if (size_ >= kHugePage) madvise(data_, size_, MADV_HUGEPAGE);
    }

private:
    static constexpr size_t kMapFrom = kHugePage / 32;

    bool is_mapped() const { return size_ >= kMapFrom; }

    static void* map(size_t n_bytes) {
        if (n_bytes < kHugePage) return map_anywhere(n_bytes);
        // Maps one huge page more than needed and returns the ends, for alignment.
        auto* whole = static_cast<char*>(map_anywhere(n_bytes + kHugePage));
        if (whole == nullptr) return nullptr;
        const size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(whole) % kHugePage) % kHugePage;
        const size_t used = (n_bytes + kPage - 1) / kPage * kPage;
        if (before != 0) munmap(whole, before);
        if (used < n_bytes + kHugePage - before) munmap(whole + before + used, n_bytes + kHugePage - before - used);
        return whole + before;
    }

    static void* map_anywhere(size_t n_bytes) {
        void* found = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return found == MAP_FAILED ? nullptr : found;
    }

    void* data_ = nullptr;
    size_t size_ = 0;
};

// Hashes keys for tables. Engines choose their hashes, so both secrets are random: with a known factor, or a salt of which
// some bits can be guessed, keys could be chosen that collide. No result depends on them.
class Mixer {
public:
    Mixer() : salt_(random()), factor_(random() | 1) {}
    uint64_t operator()(uint64_t key) const {
        const auto product = static_cast<unsigned __int128>(key ^ salt_) * factor_;
        return static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
    }

private:
    static uint64_t random() {
        thread_local std::random_device device;  // opening one costs more than a new table
        return uint64_t{device()} << 32 | device();
    }

    uint64_t salt_, factor_;
};

// Maps a hash onto [0, n) in the order of the hashes.
inline size_t scale(uint64_t hash, size_t n) {
    return static_cast<size_t>((static_cast<unsigned __int128>(hash) * n) >> 64);
}

}  // namespace kvatlas
