// Eight rows of weights side by side: AVX2 with FMA, and with the integer dot products of AVX-VNNI where there are some.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace duodec::avx2 {

#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#define DUODEC_HAS_VNNI 1
#else
#define DUODEC_HAS_VNNI 0
#endif

struct Lanes {
    static constexpr const char * NAME = DUODEC_HAS_VNNI ? "AVX-VNNI" : "AVX2";
    static constexpr int ROWS = 8;
    static constexpr int MOST = 6;  // rows of activations that are multiplied at once
    static constexpr int MOST_FLOATS = 6;  // with weights that are floats: two sums a row fill the 16 registers
    static constexpr int MOST_GRIDS = 8;   // with weights that are looked up, which takes longer than to multiply them
    static constexpr bool HOLDS_CODES = false;  // registers do not: twice six rows of integers fill them
    static constexpr bool IS_SLOW_WITH_BYTES = !DUODEC_HAS_VNNI;  // codes of eight bits take twice the time of four
    static constexpr int BIASED = DUODEC_HAS_VNNI ? 128 : 0;
    using Int = __m256i;
    using Real = __m256;
    using Codes = __m256i;

    static Codes load(const uint8_t * p) { return _mm256_loadu_si256((const __m256i *)p); }
    static Codes low(Codes c) { return _mm256_and_si256(c, _mm256_set1_epi8(15)); }
    static Codes high(Codes c) { return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15)); }
    template <int RIGHT> static Codes moved(Codes h) {
        if constexpr (RIGHT < 0) return _mm256_slli_epi16(h, -RIGHT);
        else if constexpr (RIGHT > 0) return _mm256_srli_epi16(h, RIGHT);
        else return h;
    }
    template <int RIGHT, int MASK> static Codes bits(Codes h) { return _mm256_and_si256(moved<RIGHT>(h), _mm256_set1_epi8(MASK)); }
    template <int RIGHT, int MASK> static Codes with(Codes c, Codes h) { return _mm256_or_si256(c, bits<RIGHT, MASK>(h)); }
    static Codes lookup(Codes c, const uint8_t * table) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), c); }
    template <int FROM, int MASK> static void join(const uint8_t * low, const uint8_t * above, uint16_t * to) {
        const __m128i high = _mm_and_si128(_mm_srli_epi16(_mm_loadl_epi64((const __m128i *)above), FROM), _mm_set1_epi8(MASK));
        _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)low), high));
    }
    template <int FIRST, class Index> static __m256 two_and_two(const uint64_t * table, const Index & index) {  // of these rows, and the fifth ones from there
        const auto two = [&](int r) {
            return _mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(table + index[r]))), (const __m64 *)(table + index[r + 1]));
        };
        return _mm256_insertf128_ps(_mm256_castps128_ps256(two(FIRST)), two(FIRST + 4), 1);
    }
    template <class Index> static void entries(const uint64_t * table, const Index & index, Codes & even, Codes & odd) {
        const __m256 a = two_and_two<0>(table, index), b = two_and_two<2>(table, index);
        even = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        odd = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
    }
    template <class Index> static Codes entries(const uint32_t * table, const Index & index) {
        return _mm256_setr_epi32(table[index[0]], table[index[1]], table[index[2]], table[index[3]], table[index[4]], table[index[5]], table[index[6]], table[index[7]]);
    }
    template <int BIT> static Codes signed_by(Codes c, Codes signs, int offset) {
        const __m256i sign = _mm256_or_si256(moved<BIT - 7>(signs), _mm256_set1_epi8(1));  // no zero
        return _mm256_add_epi8(_mm256_sign_epi8(c, sign), _mm256_set1_epi8((char)offset));
    }
    static Int set(int32_t x) { return _mm256_set1_epi32(x); }
    // Keeps a compiler from moving additions behind products for which there is no register left.
    static void keep(__m256i & x) {
#if defined(__GNUC__)
        asm volatile("" : "+x"(x));
#endif
    }
#if DUODEC_HAS_VNNI
    template <int LARGEST> struct Dots {
        Int sum;
        void begin(int32_t start) { sum = set(start); }
        void add(int, Codes c, __m256i word) {
#if defined(__AVXVNNI__)
            sum = _mm256_dpbusd_avx_epi32(sum, c, word);
#else
            sum = _mm256_dpbusd_epi32(sum, c, word);
#endif
            keep(sum);
        }
        Int end() const { return sum; }
    };
#else
    static __m256i added_pairs(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
    // Products are added in 16 bits, two of each vector, for as many vectors as cannot overflow, and then in 32.
    template <int LARGEST> struct Dots {
        static constexpr int RUN = 32767 / (2 * 127 * LARGEST);
        Int sum;
        __m256i pairs;
        void begin(int32_t start) { sum = set(start); }
        void add(int v, Codes c, __m256i word) {
            const __m256i products = _mm256_maddubs_epi16(c, word);
            if constexpr (RUN == 1) {
                sum = _mm256_add_epi32(sum, added_pairs(products));
                keep(sum);
                return;
            }
            if (v % RUN) pairs = _mm256_add_epi16(pairs, products);
            else {
                if (v) sum = end();
                pairs = products;
            }
            keep(pairs);
        }
        Int end() const { return RUN == 1 ? sum : _mm256_add_epi32(sum, added_pairs(pairs)); }
    };
#endif
    static __m256i word(const int8_t * a, int v) {  // four codes of activations, for each row of weights
        int32_t bytes;
        memcpy(&bytes, a + 4 * v, 4);
        return set(bytes);
    }
    static Real real(Int a) { return _mm256_cvtepi32_ps(a); }
    static Real zero() { return _mm256_setzero_ps(); }
    static Real splat(float x) { return _mm256_set1_ps(x); }
    static Real mul(Real a, Real b) { return _mm256_mul_ps(a, b); }
    static Real add_product(Real sum, Real a, Real b) { return _mm256_fmadd_ps(a, b, sum); }
    static Real take_product(Real sum, Real a, Real b) { return _mm256_fnmadd_ps(a, b, sum); }
    static Real sum(Real a, Real b) { return _mm256_add_ps(a, b); }
    static Real from_half(const uint16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
    static Real from_bfloat(const uint16_t * p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16)); }
    static Real from_float(const float * p) { return _mm256_loadu_ps(p); }
    static Real from_unsigned(const uint8_t * p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
    static Real from_low(const uint8_t * p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_and_si128(_mm_loadl_epi64((const __m128i *)p), _mm_set1_epi8(15)))); }
    static Real from_high(const uint8_t * p) { return _mm256_cvtepi32_ps(_mm256_srli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 4)); }
    static Real from_signed(const int8_t * p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
    static Real from_exponent(const uint8_t * p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), 23)); }
    static Real from_eight_bits(const uint8_t * p) {
        const __m128i halves = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
        return _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(128));
    }
    static void store(float * p, Real x) { _mm256_storeu_ps(p, x); }

    // --- for attention
    static constexpr int SUMS = 16;  // vectors of them, beside what is added
    static Real less(Real a, Real b) { return _mm256_sub_ps(a, b); }
    static Real greater(Real a, Real b) { return _mm256_max_ps(a, b); }
    static float greatest(Real a) {
        __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_max_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
    }
    static Real ratio(Real a, Real b) { return _mm256_div_ps(a, b); }
    static Real magnitude(Real a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
    static Real with_sign(Real a, Real of) { return _mm256_or_ps(a, _mm256_and_ps(_mm256_set1_ps(-0.0f), of)); }
    static Real rounded(Real a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Real power_of_two(Real a) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127)), 23)); }
    static Real where_greater(Real a, Real least, Real then) { return _mm256_and_ps(_mm256_cmp_ps(a, least, _CMP_NLE_UQ), then); }
    static Real sums(const Real v[8]) {
        const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
        const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
        return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
    }
};

#if !DUODEC_HAS_VNNI
// Eight bits and a sign: the bias comes off, and the sign of a weight moves to its activation. No two products can be added in 16 bits.
template <> struct Lanes::Dots<255> {
    Int sum;
    void begin(int32_t start) { sum = set(start); }
    void add(int, Codes c, __m256i word) {
        const __m256i w = _mm256_xor_si256(c, _mm256_set1_epi8((char)0x80));
        sum = _mm256_add_epi32(sum, added_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(word, w))));
        keep(sum);
    }
    Int end() const { return sum; }
};
#endif

}  // namespace duodec::avx2
