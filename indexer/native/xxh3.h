// XXH3-64 with a seed, for inputs of any length, by the public specification of the algorithm.
//
// Block keys are computed with it (indexer/keys.py). The hot lengths are 16 bytes (chaining) and 64 bytes (16 tokens).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

static_assert(std::endian::native == std::endian::little, "keys are defined on little-endian words");

namespace kvatlas::xxh3 {

using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77, kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87, kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9, kPrime64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t kMix1 = 0x165667919E3779F9, kMix2 = 0x9FB21C651E98DF25;

constexpr size_t kSecretBytes = 192, kStripe = 64, kStripesPerBlock = 16;

inline constexpr uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

inline uint64_t word(const uint8_t* at) {
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline uint32_t half_word(const uint8_t* at) {
    uint32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

inline uint64_t fold(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t avalanche(uint64_t h) {
    h = (h ^ (h >> 37)) * kMix1;
    return h ^ (h >> 32);
}

inline uint64_t strong_avalanche(uint64_t h) {
    h = (h ^ (h >> 33)) * kPrime64_2;
    h = (h ^ (h >> 29)) * kPrime64_3;
    return h ^ (h >> 32);
}

inline uint64_t mix_16(const uint8_t* in, const uint8_t* secret, uint64_t seed) {
    return fold(word(in) ^ (word(secret) + seed), word(in + 8) ^ (word(secret + 8) - seed));
}

inline uint64_t up_to_3(const uint8_t* in, size_t n, uint64_t seed) {
    const uint32_t combined = uint32_t{in[0]} << 16 | uint32_t{in[n / 2]} << 24 | in[n - 1] | static_cast<uint32_t>(n) << 8;
    return strong_avalanche(combined ^ ((half_word(kSecret) ^ half_word(kSecret + 4)) + seed));
}

inline uint64_t up_to_8(const uint8_t* in, size_t n, uint64_t seed) {
    seed ^= uint64_t{__builtin_bswap32(static_cast<uint32_t>(seed))} << 32;
    const uint64_t input = half_word(in + n - 4) + (uint64_t{half_word(in)} << 32);
    uint64_t h = input ^ ((word(kSecret + 8) ^ word(kSecret + 16)) - seed);
    h = (h ^ std::rotl(h, 49) ^ std::rotl(h, 24)) * kMix2;
    h = (h ^ ((h >> 35) + n)) * kMix2;
    return h ^ (h >> 28);
}

inline uint64_t up_to_16(const uint8_t* in, size_t n, uint64_t seed) {
    const uint64_t low = word(in) ^ ((word(kSecret + 24) ^ word(kSecret + 32)) + seed);
    const uint64_t high = word(in + n - 8) ^ ((word(kSecret + 40) ^ word(kSecret + 48)) - seed);
    return avalanche(n + __builtin_bswap64(low) + high + fold(low, high));
}

inline uint64_t up_to_128(const uint8_t* in, size_t n, uint64_t seed) {
    uint64_t sum = n * kPrime64_1;
    for (size_t i = (n - 1) / 32 + 1; i-- > 0;) {
        sum += mix_16(in + 16 * i, kSecret + 32 * i, seed);
        sum += mix_16(in + n - 16 * (i + 1), kSecret + 32 * i + 16, seed);
    }
    return avalanche(sum);
}

inline uint64_t up_to_240(const uint8_t* in, size_t n, uint64_t seed) {
    uint64_t sum = n * kPrime64_1;
    for (size_t i = 0; i < 8; ++i) sum += mix_16(in + 16 * i, kSecret + 16 * i, seed);
    sum = avalanche(sum);
    for (size_t i = 8; i < n / 16; ++i) sum += mix_16(in + 16 * i, kSecret + 16 * (i - 8) + 3, seed);
    return avalanche(sum + mix_16(in + n - 16, kSecret + 119, seed));
}

inline void accumulate(uint64_t (&acc)[8], const uint8_t* in, const uint8_t* secret) {
    for (size_t i = 0; i < 8; ++i) {
        const uint64_t data = word(in + 8 * i), keyed = data ^ word(secret + 8 * i);
        acc[i ^ 1] += data;
        acc[i] += (keyed & 0xffffffff) * (keyed >> 32);
    }
}

inline uint64_t longer(const uint8_t* in, size_t n, uint64_t seed) {
    uint8_t secret[kSecretBytes];
    for (size_t i = 0; i < kSecretBytes; i += 16) {
        const uint64_t low = word(kSecret + i) + seed, high = word(kSecret + i + 8) - seed;
        std::memcpy(secret + i, &low, 8);
        std::memcpy(secret + i + 8, &high, 8);
    }
    uint64_t acc[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
    const size_t n_stripes = (n - 1) / kStripe;
    for (size_t stripe = 0; stripe < n_stripes; ++stripe) {
        accumulate(acc, in + stripe * kStripe, secret + stripe % kStripesPerBlock * 8);
        if (stripe % kStripesPerBlock == kStripesPerBlock - 1) {
            for (size_t i = 0; i < 8; ++i)
                acc[i] = (acc[i] ^ (acc[i] >> 47) ^ word(secret + kSecretBytes - kStripe + 8 * i)) * kPrime32_1;
        }
    }
    accumulate(acc, in + n - kStripe, secret + kSecretBytes - kStripe - 7);
    uint64_t sum = n * kPrime64_1;
    for (size_t i = 0; i < 8; i += 2) sum += fold(acc[i] ^ word(secret + 11 + 8 * i), acc[i + 1] ^ word(secret + 19 + 8 * i));
    return avalanche(sum);
}

inline uint64_t hash(const void* input, size_t n, uint64_t seed) {
    const auto* in = static_cast<const uint8_t*>(input);
    if (n == 0) return strong_avalanche(seed ^ word(kSecret + 56) ^ word(kSecret + 64));
    if (n <= 3) return up_to_3(in, n, seed);
    if (n <= 8) return up_to_8(in, n, seed);
    if (n <= 16) return up_to_16(in, n, seed);
    if (n <= 128) return up_to_128(in, n, seed);
    if (n <= 240) return up_to_240(in, n, seed);
    return longer(in, n, seed);
}

// The rolling form: key = XXH3-64(parent || local; seed).
inline uint64_t chain(uint64_t parent, uint64_t local, uint64_t seed) {
    const uint64_t pair[2] = {parent, local};
    return up_to_16(reinterpret_cast<const uint8_t*>(pair), sizeof pair, seed);
}

}  // namespace kvatlas::xxh3
