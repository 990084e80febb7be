// Rows of weights side by side in plain C++: what every other instruction set must equal, bit for bit.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace duodec::plain {

// One operation of `Lanes` is one operation on each of its rows.
struct Lanes {
    static constexpr const char * NAME = "plain C++";
    static constexpr int ROWS = 8;      // of weights, side by side
    static constexpr int MOST = 2;  // rows of activations that are multiplied at once: few, which compile sooner
    static constexpr int MOST_FLOATS = 2;  // with weights that are floats
    static constexpr int MOST_GRIDS = 2;   // with weights that are looked up
    static constexpr bool HOLDS_CODES = true;  // registers do, of a block
    static constexpr bool IS_SLOW_WITH_BYTES = false;  // codes of eight bits take twice the time of four
    static constexpr int TOGETHER = 1;  // of these, whose dot products are computed by turns: none waits for its last
    static constexpr int BIASED = 128;  // what a biased code has too much when it is multiplied
    struct Int { int32_t v[ROWS]; };
    struct Real { float v[ROWS]; };
    struct Codes { uint8_t v[4 * ROWS]; };  // four consecutive codes of each row

    static Codes load(const uint8_t * p) { Codes c; memcpy(c.v, p, sizeof c.v); return c; }
    static Codes low(Codes c) { for (auto & v : c.v) v &= 15; return c; }
    static Codes high(Codes c) { for (auto & v : c.v) v >>= 4; return c; }
    // `h` moved to the right by so many bits (to the left, where they are less than none), of which those of MASK stay.
    template <int RIGHT, int MASK> static Codes bits(Codes h) {
        for (auto & v : h.v) v = (RIGHT < 0 ? v << (RIGHT < 0 ? -RIGHT : 0) : v >> (RIGHT < 0 ? 0 : RIGHT)) & MASK;
        return h;
    }
    // The same, added to `c`, which has none of these bits.
    template <int RIGHT, int MASK> static Codes with(Codes c, Codes h) {
        const Codes b = bits<RIGHT, MASK>(h);
        for (int i = 0; i < 4 * ROWS; i++) c.v[i] |= b.v[i];
        return c;
    }
    static Codes lookup(Codes c, const uint8_t * table) { for (auto & v : c.v) v = table[v]; return c; }
    // Bytes, and above each so many bits of another one.
    template <int FROM, int MASK> static void join(const uint8_t * low, const uint8_t * above, uint16_t * to) {
        for (int r = 0; r < ROWS; r++) to[r] = low[r] | (above[r] >> FROM & MASK) << 8;
    }
    // Entries of a table by their indices: the first four codes of each row and the next four; or four codes of each row.
    template <class Index> static void entries(const uint64_t * table, const Index & index, Codes & even, Codes & odd) {
        for (int r = 0; r < ROWS; r++) {
            memcpy(even.v + 4 * r, table + index[r], 4);
            memcpy(odd.v + 4 * r, (const uint8_t *)(table + index[r]) + 4, 4);
        }
    }
    template <class Index> static Codes entries(const uint32_t * table, const Index & index) {
        Codes c;
        for (int r = 0; r < ROWS; r++) memcpy(c.v + 4 * r, table + index[r], 4);
        return c;
    }
    // `offset` plus each code, or minus it where bit BIT of `signs` is set.
    template <int BIT> static Codes signed_by(Codes c, Codes signs, int offset) {
        for (int i = 0; i < 4 * ROWS; i++) c.v[i] = signs.v[i] >> BIT & 1 ? offset - c.v[i] : offset + c.v[i];
        return c;
    }
    static Int set(int32_t x) { Int r; for (auto & v : r.v) v = x; return r; }
    // A sum of products: of codes, none above LARGEST (255: they are biased), and a row of activations.
    template <int LARGEST> struct Dots {
        Int sum;
        void begin(int32_t start) { sum = set(start); }
        // Vector `v` of the codes that are multiplied, each in its turn, with `a`, which begins where the first one does.
        void add(int v, Codes c, const int8_t * a) {
            for (int r = 0; r < ROWS; r++) for (int k = 0; k < 4; k++) sum.v[r] += c.v[4 * r + k] * a[4 * v + k];
        }
        Int end() const { return sum; }
    };
    static Real real(Int a) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = (float)a.v[r]; return x; }
    static Real zero() { return splat(0.0f); }
    static Real splat(float x) { Real y; for (auto & v : y.v) v = x; return y; }
    static Real mul(Real a, Real b) { for (int r = 0; r < ROWS; r++) a.v[r] *= b.v[r]; return a; }
    static Real add_product(Real sum, Real a, Real b) { for (int r = 0; r < ROWS; r++) sum.v[r] = std::fma(a.v[r], b.v[r], sum.v[r]); return sum; }
    static Real take_product(Real sum, Real a, Real b) { for (int r = 0; r < ROWS; r++) sum.v[r] = std::fma(-a.v[r], b.v[r], sum.v[r]); return sum; }
    static Real sum(Real a, Real b) { for (int r = 0; r < ROWS; r++) a.v[r] += b.v[r]; return a; }
    static Real from_half(const uint16_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = half_to_float(p[r]); return x; }
    static Real from_bfloat(const uint16_t * p) {
        Real x;
        for (int r = 0; r < ROWS; r++) { const uint32_t bits = (uint32_t)p[r] << 16; memcpy(&x.v[r], &bits, 4); }
        return x;
    }
    static Real from_float(const float * p) { Real x; memcpy(x.v, p, sizeof x.v); return x; }
    static Real from_unsigned(const uint8_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = (float)p[r]; return x; }
    // Of bytes: their low four bits, or the high ones.
    static Real from_low(const uint8_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = (float)(p[r] & 15); return x; }
    static Real from_high(const uint8_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = (float)(p[r] >> 4); return x; }
    static Real from_signed(const int8_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = (float)p[r]; return x; }
    static Real from_exponent(const uint8_t * p) {
        Real x;
        for (int r = 0; r < ROWS; r++) { const uint32_t bits = (uint32_t)p[r] << 23; memcpy(&x.v[r], &bits, 4); }
        return x;
    }
    // Of numbers of four bits of exponent and three of fraction, half of them: 2^(exponent - 8) times one and a fraction.
    static Real from_eight_bits(const uint8_t * p) { Real x; for (int r = 0; r < ROWS; r++) x.v[r] = 128 * half_to_float((uint16_t)(p[r] << 7)); return x; }
    static void store(float * p, Real x) { memcpy(p, x.v, sizeof x.v); }

    // --- for attention
    static constexpr int SUMS = 16;  // vectors of them, beside what is added
    static Real less(Real a, Real b) { for (int r = 0; r < ROWS; r++) a.v[r] -= b.v[r]; return a; }
    static Real greater(Real a, Real b) { for (int r = 0; r < ROWS; r++) a.v[r] = a.v[r] > b.v[r] ? a.v[r] : b.v[r]; return a; }
    static float greatest(Real a) { float most = a.v[0]; for (float x : a.v) most = x > most ? x : most; return most; }
    static Real ratio(Real a, Real b) { for (int r = 0; r < ROWS; r++) a.v[r] /= b.v[r]; return a; }
    static Real magnitude(Real a) { for (auto & x : a.v) x = std::fabs(x); return a; }
    // `a`, which has no sign, with that of another number.
    static Real with_sign(Real a, Real of) { for (int r = 0; r < ROWS; r++) a.v[r] = std::copysign(a.v[r], of.v[r]); return a; }
    static Real rounded(Real a) { for (auto & x : a.v) x = std::nearbyint(x); return a; }
    static Real power_of_two(Real a) {  // of a whole number from -126 to 127
        for (auto & x : a.v) { const uint32_t bits = x != x ? 0x7fc00000 : (uint32_t)((int)x + 127) << 23; memcpy(&x, &bits, 4); }
        return a;
    }
    // Zero in the place of what belongs to numbers that are at most `least`.
    static Real where_greater(Real a, Real least, Real then) { for (int r = 0; r < ROWS; r++) if (a.v[r] <= least.v[r]) then.v[r] = 0; return then; }
    static Real sums(const Real v[ROWS]) {  // of each of so many vectors
        Real total = zero();
        for (int i = 0; i < ROWS; i++) for (float x : v[i].v) total.v[i] += x;
        return total;
    }
};

}  // namespace duodec::plain
