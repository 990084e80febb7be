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
    static constexpr int MOST_GRIDS = 8;   // with weights that are looked up
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
    template <int RIGHT> static Codes moved(Codes h) {
        if constexpr (RIGHT < 0) return _mm512_slli_epi16(h, -RIGHT);
        else if constexpr (RIGHT > 0) return _mm512_srli_epi16(h, RIGHT);
        else return h;
    }
    template <int RIGHT, int MASK> static Codes bits(Codes h) { return _mm512_and_si512(moved<RIGHT>(h), _mm512_set1_epi8(MASK)); }
    template <int RIGHT, int MASK> static Codes with(Codes c, Codes h) {
        return _mm512_ternarylogic_epi32(c, moved<RIGHT>(h), _mm512_set1_epi8(MASK), 0xf8);  // c | (moved & mask)
    }
    static Codes lookup(Codes c, const uint8_t * table) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), c); }
    template <int FROM, int MASK> static void join(const uint8_t * low, const uint8_t * above, uint16_t * to) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *)low);
        const __m128i high = _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)above), FROM), _mm_set1_epi8(MASK));
        _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi8(bytes, high));
        _mm_storeu_si128((__m128i *)(to + 8), _mm_unpackhi_epi8(bytes, high));
    }
    template <int FIRST, class Index> static __m512 four_twos(const uint64_t * table, const Index & index) {  // of these rows, and each fifth from there
        const auto two = [&](int r) {
            return _mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(table + index[r]))), (const __m64 *)(table + index[r + 1]));
        };
        const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(two(FIRST)), two(FIRST + 4), 1);
        const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(two(FIRST + 8)), two(FIRST + 12), 1);
        return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_castps_pd(low)), _mm256_castps_pd(high), 1));
    }
    template <class Index> static void entries(const uint64_t * table, const Index & index, Codes & even, Codes & odd) {
        const __m512 a = four_twos<0>(table, index), b = four_twos<2>(table, index);
        even = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
        odd = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
    }
    template <class Index> static Codes entries(const uint32_t * table, const Index & index) {
        const auto at = [&](int r) { return (int)table[index[r]]; };
        return _mm512_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15));
    }
    template <int BIT> static Codes signed_by(Codes c, Codes signs, int offset) {
        const __m512i middle = _mm512_set1_epi8((char)offset);
        return _mm512_mask_sub_epi8(_mm512_add_epi8(middle, c), _mm512_movepi8_mask(moved<BIT - 7>(signs)), middle, c);
    }
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
    static Real from_low(const uint8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_and_si128(_mm_loadu_si128((const __m128i *)p), _mm_set1_epi8(15)))); }
    static Real from_high(const uint8_t * p) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 4)); }
    static Real from_signed(const int8_t * p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
    static Real from_exponent(const uint8_t * p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), 23)); }
    static Real from_eight_bits(const uint8_t * p) {
        const __m256i halves = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
        return _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(128));
    }
    static void store(float * p, Real x) { _mm512_storeu_ps(p, x); }

    // --- for attention
    static constexpr int SUMS = 24;  // vectors of them, beside what is added
    static Real less(Real a, Real b) { return _mm512_sub_ps(a, b); }
    static Real greater(Real a, Real b) { return _mm512_max_ps(a, b); }
    static float greatest(Real a) { return _mm512_reduce_max_ps(a); }
    static Real ratio(Real a, Real b) { return _mm512_div_ps(a, b); }
    static Real magnitude(Real a) { return _mm512_abs_ps(a); }
    static Real with_sign(Real a, Real of) {
        const __m512i sign = _mm512_and_si512(_mm512_castps_si512(of), _mm512_set1_epi32(INT32_MIN));
        return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), sign));
    }
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
