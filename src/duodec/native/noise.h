// Gumbel noise, the bits of core/sampling/noise.py: a 64-bit key and a token make 32 random bits, and these
// a float by a fixed sequence of additions and multiplications, which no option may contract.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

inline uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// Of the target's draw at a position: the stream of that is 0.
inline uint64_t key_of(uint64_t seed, uint64_t choice, uint64_t position) {
    uint64_t state = 0;
    for (uint64_t value : {seed, choice, position, uint64_t(0)})
        state = mixed((state ^ value) + 0x9e3779b97f4a7c15u);
    return state;
}

inline uint32_t mixed(uint32_t z, uint32_t half) {
    z ^= half;
    z ^= z >> 16;
    z *= 0x7feb352du;
    z ^= z >> 15;
    z *= 0x846ca68bu;
    return z ^ z >> 16;
}

inline uint32_t bits_of(uint32_t token, uint64_t key) {
    return mixed(mixed(token * 0x9e3779b1u, uint32_t(key)), uint32_t(key >> 32));
}

inline float uniform(uint32_t bits) { return (float(bits) + 0.5f) * 0x1p-32f; }

struct Parts {
    float e, f;  // of (1 + f) * 2**e
};

inline Parts split(float x) {
    constexpr int32_t SQRT_HALF = 0x3f3504f3;
    int32_t pattern;
    std::memcpy(&pattern, &x, sizeof x);
    pattern -= SQRT_HALF;
    const float e = float(pattern >> 23);
    pattern = (pattern & 0x007fffff) + SQRT_HALF;
    std::memcpy(&x, &pattern, sizeof x);
    return {e, x - 1.0f};
}

inline float log_of(float e, float f) {
    constexpr float COEFFICIENTS[] = {7.0376836292e-2f, -1.1514610310e-1f, 1.1676998740e-1f,
                                      -1.2420140846e-1f, 1.4249322787e-1f, -1.6668057665e-1f,
                                      2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    const float square = f * f;
    float y = COEFFICIENTS[0];
    for (int i = 1; i < 9; ++i) {
        y *= f;
        y += COEFFICIENTS[i];
    }
    y *= f;
    y *= square;
    y += e * -2.12194440e-4f;
    y -= square * 0.5f;
    y += f;
    y += e * 0.693359375f;
    return y;
}

inline float gumbel(uint32_t bits) {
    const Parts parts = split(uniform(bits));
    const float f = parts.e == 0 ? -uniform(~bits) : parts.f;  // fine near 1
    const Parts inner = split(-log_of(parts.e, f));
    return -log_of(inner.e, inner.f);
}
