// Rows of activations as the tiles want them.
//
// Weights of codes meet activations rounded to 8 bits, 32 numbers to a scale. Rows lie in groups: block by block, the rows of a
// group next to each other, so that one pointer walks them all.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "formats.h"
#include "lanes.h"

namespace duodec {

struct Activations {      // 32 numbers of one row
    int8_t codes[BLOCK];
    union {               // of all, or, where each 16 weights have a scale, of the first 16 and of the others:
        int32_t start[2]; // what a sum of products begins with: the codes' sum times minus the weights' offset
        float sums[2];    // the scale times the codes' sum, where each 16 weights have a minimum
    };
    float scale, sum;     // and the scale times the sum of all codes
};
static_assert(sizeof(Activations) == 48);

constexpr float LEAST = 1e-30f;  // blocks of smaller numbers are zero: 127 over them is no number

// Rounds 32 numbers, to nearest even. A block with an infinity or a NaN in it has NaN for a scale and zeros for codes.
template <class F> void round_block(Activations & to, const float * x) {
    uint32_t most_bits = 0;
    for (int k = 0; k < BLOCK; k++) {
        uint32_t bits;
        memcpy(&bits, x + k, 4);
        bits &= 0x7fffffff;
        most_bits = bits > most_bits ? bits : most_bits;
    }
    float most;
    memcpy(&most, &most_bits, 4);
    if (!(most_bits < 0x7f800000 && most >= LEAST)) {
        to = Activations{};
        if (most_bits >= 0x7f800000) to.scale = to.sum = std::nanf("");
        return;
    }
    const float inverse = 127.0f / most;
    int32_t sums[2] = {0, 0};
#if defined(__AVX512F__) && !defined(DUODEC_PLAIN) && !defined(DUODEC_AVX2)
    for (int h = 0; h < 2; h++) {
        const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(inverse)));
        _mm_storeu_si128((__m128i *)(to.codes + 16 * h), _mm512_cvtepi32_epi8(codes));
        sums[h] = _mm512_reduce_add_epi32(codes);
    }
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(DUODEC_PLAIN)  // as lanes.h
    __m256i eight[4];
    for (int i = 0; i < 4; i++) eight[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inverse)));
    const __m256i by_fours = _mm256_packs_epi16(_mm256_packs_epi32(eight[0], eight[1]), _mm256_packs_epi32(eight[2], eight[3]));
    const __m256i codes = _mm256_permutevar8x32_epi32(by_fours, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)to.codes, codes);
    __m256i added = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    added = _mm256_hadd_epi32(added, added);
    added = _mm256_hadd_epi32(added, added);
    sums[0] = _mm256_extract_epi32(added, 0);
    sums[1] = _mm256_extract_epi32(added, 4);
#else
    for (int k = 0; k < BLOCK; k++) {
        const int32_t code = (int32_t)std::nearbyint(x[k] * inverse);
        to.codes[k] = (int8_t)code;
        sums[k / 16] += code;
    }
#endif
    constexpr int offset = F::is_biased ? Lanes::BIASED : F::offset;
    to.scale = most / 127.0f;
    if constexpr (F::minimum == Minimum::HIGHS) {
        for (int h = 0; h < 2; h++) to.sums[h] = to.scale * (float)sums[h];
    } else {
        to.start[0] = -offset * (F::is_halved ? sums[0] : sums[0] + sums[1]);
        to.start[1] = F::is_halved ? -offset * sums[1] : 0;
    }
    to.sum = to.scale * (float)(sums[0] + sums[1]);
}

// Bytes that a row of activations takes.
template <class F> int64_t row_bytes(int64_t columns) {
    return F::is_float ? columns * (int64_t)sizeof(float) : columns / BLOCK * (int64_t)sizeof(Activations);
}

// Writes columns `begin` to `end`, multiples of a block or the last, of row `m` of a group of `rows`.
template <class F> void put_row(uint8_t * group, int m, int rows, const float * x, int64_t begin, int64_t end) {
    if constexpr (F::is_float) {
        float * to = (float *)group + m;
        for (int64_t k = begin; k < end; k++) to[k * rows] = x[k];
    } else {
        Activations * to = (Activations *)group + m;
        for (int64_t b = begin / BLOCK; b < end / BLOCK; b++) round_block<F>(to[b * rows], x + b * BLOCK);
    }
}

}  // namespace duodec
