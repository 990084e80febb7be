// A number in half precision, without any processor's help.
#pragma once
#include <cstdint>
#include <cstring>

namespace duodec {

inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
    uint32_t bits;
    if (exponent == 31) bits = sign | 0x7f800000 | fraction << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {  // zero or subnormal: the fraction times 2^-24, which is exact
        const float magnitude = (float)fraction * 5.9604644775390625e-8f;
        memcpy(&bits, &magnitude, 4);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

}  // namespace duodec
