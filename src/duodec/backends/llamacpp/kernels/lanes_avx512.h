// Sixteen rows of weights side by side: AVX-512 with VNNI.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace duodec::avx512 {

struct Lanes {
    static constexpr const char * NAME = "AVX-512 VNNI";
    static constexpr int ROWS = 16;
    static constexpr int MOST = 16;  // rows of activations that are multiplied at once
    static constexpr int MOST_FLOATS = 16;  // with weights that are floats
    static constexpr bool HOLDS_CODES = true;  // registers do, of a block
    static constexpr bool IS_SLOW_WITH_BYTES = false;  // codes of eight bits take twice the time of four
    static constexpr int TOGETHER = 4;  // of these, whose dot products are computed by turns: none waits for its last
    static constexpr int BIASED = 128;
    using Int = __m512i;
    using Real = __m512;
    using Codes = __m512i;

    static Codes load(const uint8_t * p) { return _mm512_loadu_si512(p); }
    static Codes low(Codes c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
    static Codes high(Codes c) { return _mm512_and_si512(_mm512_srli_epi16(c, 4), _mm512_set1_epi8(15)); }
    template <int FROM, int MASK> static Codes with(Codes c, Codes h) {
        const __m512i moved = FROM < 4 ? _mm512_slli_epi16(h, FROM < 4 ? 4 - FROM : 0) : FROM > 4 ? _mm512_srli_epi16(h, FROM > 4 ? FROM - 4 : 0) : h;
        return _mm512_ternarylogic_epi32(c, moved, _mm512_set1_epi8(MASK), 0xf8);  // c | (moved & mask)
    }
    static Codes lookup(Codes c, const uint8_t * table) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), c); }
    static Int set(int32_t x) { return _mm512_set1_epi32(x); }
    template <int LARGEST> struct Dots {
        Int sum;
        void begin(int32_t start) { sum = set(start); }
        void add(int v, Codes c, const int8_t * a) {
            int32_t word;
            memcpy(&word, a + 4 * v, 4);
            sum = _mm512_dpbusd_epi32(sum, c, set(word));
        }
        Int end() const { return sum; }
    };
    static Real real(Int a) { return _mm512_cvtepi32_ps(a); }
    static Real zero() { return _mm512_setzero_ps(); }
    static Real splat(float x) { return _mm512_set1_ps(x); }
    static Real mul(Real a, Real b) { return _mm512_mul_ps(a, b); }
    static Real add_product(Real sum, Real a, Real b) { return _mm512_fmadd_ps(a, b, sum); }
    static Real take_product(Real sum, Real a, Real b) { return _mm512_fnmadd_ps(a, b, sum); }
    static Real sum(Real a, Real b) { return _mm512_add_ps(a, b); }
    static Real from_half(const uint16_t * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
    static Real from_bfloat(const uint16_t * p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16)); }
    static Real from_float(const float * p) { return _mm512_loadu_ps(p); }
    static Real from_unsigned(const uint8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
    static Real from_signed(const int8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
    static Real from_exponent(const uint8_t * p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23)); }
    static void store(float * p, Real x) { _mm512_storeu_ps(p, x); }

    // --- for attention
    static constexpr int SUMS = 24;  // vectors of them, beside what is added
    static Real less(Real a, Real b) { return _mm512_sub_ps(a, b); }
    static Real greater(Real a, Real b) { return _mm512_max_ps(a, b); }
    static float greatest(Real a) { return _mm512_reduce_max_ps(a); }
    static Real rounded(Real a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // 2 to the power of a whole number from -126 to 127.
    static Real power_of_two(Real a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127)), 23)); }
    static Real where_greater(Real a, Real least, Real then) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, least, _CMP_NLE_UQ), then); }
    // The sum of each of 16 vectors.
    static Real sums(const Real v[16]) {
        __m512 t[8], u[4];
        for (int i = 0; i < 8; i++) t[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
        for (int i = 0; i < 4; i++) {
            const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
            u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
        }
        const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x44), _mm512_shuffle_f32x4(u[0], u[1], 0xee));
        const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x44), _mm512_shuffle_f32x4(u[2], u[3], 0xee));
        return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
    }
};

}  // namespace duodec::avx512
