// Eight rows of weights side by side: NEON with dot products.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace duodec::neon {

struct Lanes {
    static constexpr const char * NAME = "NEON dot products";
    static constexpr int ROWS = 8;
    static constexpr int MOST = 4;  // rows of activations that are multiplied at once
    static constexpr int MOST_FLOATS = 4;  // with weights that are floats
    static constexpr int MOST_GRIDS = 4;   // with weights that are looked up
    static constexpr bool HOLDS_CODES = true;  // registers do, of a block
    static constexpr bool IS_SLOW_WITH_BYTES = false;  // codes of eight bits take twice the time of four
    static constexpr int TOGETHER = 2;  // of these, whose dot products are computed by turns: none waits for its last
    static constexpr int BIASED = 0;
    struct Int { int32x4_t a, b; };
    struct Real { float32x4_t a, b; };
    struct Codes { uint8x16_t a, b; };

    static Codes load(const uint8_t * p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
    static Codes low(Codes c) { const uint8x16_t m = vdupq_n_u8(15); return {vandq_u8(c.a, m), vandq_u8(c.b, m)}; }
    static Codes high(Codes c) { return {vshrq_n_u8(c.a, 4), vshrq_n_u8(c.b, 4)}; }
    template <int RIGHT> static uint8x16_t moved(uint8x16_t h) {
        if constexpr (RIGHT < 0) return vshlq_n_u8(h, -RIGHT);
        else if constexpr (RIGHT > 0) return vshrq_n_u8(h, RIGHT);
        else return h;
    }
    template <int RIGHT, int MASK> static Codes bits(Codes h) {
        const uint8x16_t m = vdupq_n_u8(MASK);
        return {vandq_u8(moved<RIGHT>(h.a), m), vandq_u8(moved<RIGHT>(h.b), m)};
    }
    template <int RIGHT, int MASK> static Codes with(Codes c, Codes h) {
        const Codes b = bits<RIGHT, MASK>(h);
        return {vorrq_u8(c.a, b.a), vorrq_u8(c.b, b.b)};
    }
    static Codes lookup(Codes c, const uint8_t * table) { const uint8x16_t t = vld1q_u8(table); return {vqtbl1q_u8(t, c.a), vqtbl1q_u8(t, c.b)}; }
    template <int FROM, int MASK> static void join(const uint8_t * low, const uint8_t * above, uint16_t * to) {
        uint8x8_t high = vld1_u8(above);
        if constexpr (FROM > 0) high = vshr_n_u8(high, FROM);
        high = vand_u8(high, vdup_n_u8(MASK));
        vst1q_u16(to, vorrq_u16(vmovl_u8(vld1_u8(low)), vshlq_n_u16(vmovl_u8(high), 8)));
    }
    template <class Index> static void entries(const uint64_t * table, const Index & index, Codes & even, Codes & odd) {
        const auto two = [&](int r) { return vreinterpretq_u32_u64(vcombine_u64(vld1_u64(table + index[r]), vld1_u64(table + index[r + 1]))); };
        const uint32x4_t a = two(0), b = two(2), c = two(4), d = two(6);
        even = {vreinterpretq_u8_u32(vuzp1q_u32(a, b)), vreinterpretq_u8_u32(vuzp1q_u32(c, d))};
        odd = {vreinterpretq_u8_u32(vuzp2q_u32(a, b)), vreinterpretq_u8_u32(vuzp2q_u32(c, d))};
    }
    template <class Index> static Codes entries(const uint32_t * table, const Index & index) {
        uint32_t each[ROWS];
        for (int r = 0; r < ROWS; r++) each[r] = table[index[r]];
        return {vreinterpretq_u8_u32(vld1q_u32(each)), vreinterpretq_u8_u32(vld1q_u32(each + 4))};
    }
    template <int BIT> static uint8x16_t signed_by(uint8x16_t c, uint8x16_t signs, uint8x16_t middle) {
        const uint8x16_t is_minus = vtstq_u8(signs, vdupq_n_u8(1 << BIT));
        return vbslq_u8(is_minus, vsubq_u8(middle, c), vaddq_u8(middle, c));
    }
    template <int BIT> static Codes signed_by(Codes c, Codes signs, int offset) {
        const uint8x16_t middle = vdupq_n_u8(offset);
        return {signed_by<BIT>(c.a, signs.a, middle), signed_by<BIT>(c.b, signs.b, middle)};
    }
    static Int set(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
    template <int LARGEST> struct Dots {
        Int sum;
        void begin(int32_t start) { sum = set(start); }
        void add(int v, Codes c, const int8_t * a) {
            const uint8x16_t bias = vdupq_n_u8(LARGEST == 255 ? 0x80 : 0);
            const int8x16_t x = vreinterpretq_s8_u8(veorq_u8(c.a, bias)), y = vreinterpretq_s8_u8(veorq_u8(c.b, bias)), words = vld1q_s8(a + v / 4 * 16);
            switch (v % 4) {  // unrolled: known
                case 0: sum = {vdotq_laneq_s32(sum.a, x, words, 0), vdotq_laneq_s32(sum.b, y, words, 0)}; return;
                case 1: sum = {vdotq_laneq_s32(sum.a, x, words, 1), vdotq_laneq_s32(sum.b, y, words, 1)}; return;
                case 2: sum = {vdotq_laneq_s32(sum.a, x, words, 2), vdotq_laneq_s32(sum.b, y, words, 2)}; return;
                default: sum = {vdotq_laneq_s32(sum.a, x, words, 3), vdotq_laneq_s32(sum.b, y, words, 3)};
            }
        }
        Int end() const { return sum; }
    };
    static Real real(Int x) { return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b)}; }
    static Real zero() { return splat(0.0f); }
    static Real splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static Real mul(Real x, Real y) { return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)}; }
    static Real add_product(Real sum, Real x, Real y) { return {vfmaq_f32(sum.a, x.a, y.a), vfmaq_f32(sum.b, x.b, y.b)}; }
    static Real take_product(Real sum, Real x, Real y) { return {vfmsq_f32(sum.a, x.a, y.a), vfmsq_f32(sum.b, x.b, y.b)}; }
    static Real sum(Real x, Real y) { return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)}; }
    static Real from_half(const uint16_t * p) {
        return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))), vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4)))};
    }
    static Real from_bfloat(const uint16_t * p) {
        return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)), vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4), 16))};
    }
    static Real from_float(const float * p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
    static Real widened(uint8x8_t p) {
        const uint16x8_t x = vmovl_u8(p);
        return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(x)))};
    }
    static Real from_low(const uint8_t * p) { return widened(vand_u8(vld1_u8(p), vdup_n_u8(15))); }
    static Real from_high(const uint8_t * p) { return widened(vshr_n_u8(vld1_u8(p), 4)); }
    static Real from_unsigned(const uint8_t * p) { return widened(vld1_u8(p)); }
    static Real from_signed(const int8_t * p) {
        const int16x8_t x = vmovl_s8(vld1_s8(p));
        return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(x)))};
    }
    static Real from_exponent(const uint8_t * p) {
        const uint16x8_t x = vmovl_u8(vld1_u8(p));
        return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(x)), 23)), vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_high_u16(x)), 23))};
    }
    static Real from_eight_bits(const uint8_t * p) {
        const uint16x8_t halves = vshlq_n_u16(vmovl_u8(vld1_u8(p)), 7);
        const float32x4_t factor = vdupq_n_f32(128);
        return {vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves))), factor),
                vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(halves))), factor)};
    }
    static void store(float * p, Real x) { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); }

    // --- for attention
    static constexpr int SUMS = 16;  // vectors of them, beside what is added
    static Real less(Real x, Real y) { return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)}; }
    static Real greater(Real x, Real y) { return {vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)}; }
    static float greatest(Real x) { return vmaxvq_f32(vmaxq_f32(x.a, x.b)); }
    static Real ratio(Real x, Real y) { return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)}; }
    static Real magnitude(Real x) { return {vabsq_f32(x.a), vabsq_f32(x.b)}; }
    static float32x4_t signed_as(float32x4_t x, float32x4_t of) { return vbslq_f32(vdupq_n_u32(0x80000000), of, x); }
    static Real with_sign(Real x, Real of) { return {signed_as(x.a, of.a), signed_as(x.b, of.b)}; }
    static Real rounded(Real x) { return {vrndnq_f32(x.a), vrndnq_f32(x.b)}; }
    static float32x4_t power(float32x4_t x) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(x), vdupq_n_s32(127)), 23)); }
    static Real power_of_two(Real x) { return {power(x.a), power(x.b)}; }
    // of what is not at most `least`: a NaN stays
    static float32x4_t where(float32x4_t x, float32x4_t least, float32x4_t then) { return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(then), vcleq_f32(x, least))); }
    static Real where_greater(Real x, Real least, Real then) { return {where(x.a, least.a, then.a), where(x.b, least.b, then.b)}; }
    static Real sums(const Real v[8]) {
        float32x4_t t[8];
        for (int i = 0; i < 8; i++) t[i] = vaddq_f32(v[i].a, v[i].b);
        return {vpaddq_f32(vpaddq_f32(t[0], t[1]), vpaddq_f32(t[2], t[3])), vpaddq_f32(vpaddq_f32(t[4], t[5]), vpaddq_f32(t[6], t[7]))};
    }
};

}  // namespace duodec::neon
