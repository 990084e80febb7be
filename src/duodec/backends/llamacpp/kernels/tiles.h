// One tile of weights times a few rows of activations.
//
// A sum runs over blocks of 32 columns in their order, and nothing else decides how it is rounded: not the number of rows, not
// who computes them. Codes are unpacked once for all rows.
#pragma once
#include <utility>

#include "activations.h"
#include "formats.h"
#include "lanes.h"

#if DUODEC_IS_FAST
#define DUODEC_UNROLL _Pragma("GCC unroll 16")
#else
#define DUODEC_UNROLL  // takes a compiler half a minute, for kernels that no model uses
#endif

namespace duodec {

constexpr int AHEAD = 1280;  // bytes of a stream

// Fetches weights before they are multiplied: what a core's own prefetching misses. Into the second cache, which can wait for more
// lines at once than the first.
inline void prefetch(const uint8_t * weights, int num_bytes) {
    for (int i = 0; i < num_bytes; i += LINE) __builtin_prefetch(weights + AHEAD + i, 0, 2);
}

template <class F> inline void unpack(const uint8_t * codes, const uint8_t * above, Lanes::Codes x[8]) {
    using L = Lanes;
    if constexpr (F::width == Width::EIGHT) {
        DUODEC_UNROLL for (int v = 0; v < 8; v++) x[v] = L::load(codes + LINE * v);
    } else {
        DUODEC_UNROLL for (int v = 0; v < 4; v++) {
            const L::Codes two = L::load(codes + LINE * v);
            x[2 * v] = L::low(two);
            x[2 * v + 1] = L::high(two);
        }
        if constexpr (F::table != Table::NONE) {
            const uint8_t * table = F::table == Table::NORMAL ? NORMAL_CODES : FP4_CODES;
            DUODEC_UNROLL for (int v = 0; v < 8; v++) x[v] = L::lookup(x[v], table);
        }
        if constexpr (F::width == Width::FIVE) {
            const L::Codes h = L::load(above);
            x[0] = L::with<0, 16>(x[0], h); x[1] = L::with<1, 16>(x[1], h);
            x[2] = L::with<2, 16>(x[2], h); x[3] = L::with<3, 16>(x[3], h);
            x[4] = L::with<4, 16>(x[4], h); x[5] = L::with<5, 16>(x[5], h);
            x[6] = L::with<6, 16>(x[6], h); x[7] = L::with<7, 16>(x[7], h);
        }
        if constexpr (F::width == Width::SIX) {
            DUODEC_UNROLL for (int i = 0; i < 2; i++) {
                const L::Codes h = L::load(above + LINE * i);
                x[4 * i] = L::with<0, 48>(x[4 * i], h);
                x[4 * i + 1] = L::with<2, 48>(x[4 * i + 1], h);
                x[4 * i + 2] = L::with<4, 48>(x[4 * i + 2], h);
                x[4 * i + 3] = L::with<6, 48>(x[4 * i + 3], h);
            }
        }
    }
}

// `out[m]` takes the products of the rows of a matrix's tile with row m of a group of M: of weights that are floats.
template <class F, int M>
void multiply_floats(const uint8_t * matrix, const Layout<F> & layout, int64_t columns, int64_t tile, const uint8_t * group, float * const * out) {
    using L = Lanes;
    const float * x = (const float *)group;
    const auto weights = [](const uint8_t * p) {
        if constexpr (F::width == Width::HALF) return L::from_half((const uint16_t *)p);
        else if constexpr (F::width == Width::BFLOAT) return L::from_bfloat((const uint16_t *)p);
        else return L::from_float((const float *)p);
    };
    constexpr int stride = TILE * F::num_bytes;  // of a column
    for (int first = 0; first < TILE; first += L::ROWS) {  // rows of weights
        L::Real sums[M], odd[M];
        DUODEC_UNROLL for (int m = 0; m < M; m++) sums[m] = odd[m] = L::zero();
        Walk<F> block(matrix, layout, tile);
        for (int64_t k = 0; k < columns; block.next()) {
            const uint8_t * w = block.at + first * F::num_bytes;
            const int64_t end = std::min<int64_t>(columns, k + Layout<F>::columns);
            prefetch(block.at, Layout<F>::block_bytes);
            for (; k + 1 < end; k += 2, w += 2 * stride) {
                const L::Real even_w = weights(w), odd_w = weights(w + stride);
                DUODEC_UNROLL for (int m = 0; m < M; m++) {
                    sums[m] = L::add_product(sums[m], even_w, L::splat(x[k * M + m]));
                    odd[m] = L::add_product(odd[m], odd_w, L::splat(x[(k + 1) * M + m]));
                }
            }
            if (k < end) {
                const L::Real last = weights(w);
                DUODEC_UNROLL for (int m = 0; m < M; m++) sums[m] = L::add_product(sums[m], last, L::splat(x[k * M + m]));
                k++;
            }
        }
        DUODEC_UNROLL for (int m = 0; m < M; m++) L::store(out[m] + first, L::sum(sums[m], odd[m]));
    }
}

// The same of weights that are codes. A few rows take all parts of a tile block by block, so that each line of memory is read
// once; more rows need the registers for their sums, and take one part of the tile after the other.
template <class F, int M> void multiply_codes(const uint8_t * matrix, const Layout<F> & layout, int64_t tile, const uint8_t * group, float * const * out) {
    using L = Lanes;
    using Dots = typename L::template Dots<F::largest>;
    constexpr int TOGETHER = L::TOGETHER;
    constexpr int PARTS = M <= L::FEW ? TILE / L::ROWS : 1;  // of a tile, at once
    using At = Layout<F>;
    for (int first = 0; first < TILE; first += PARTS * L::ROWS) {  // rows of weights
        L::Real sums[PARTS][M];
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
            DUODEC_UNROLL for (int m = 0; m < M; m++) sums[p][m] = L::zero();
        }
        const uint8_t * shared = matrix + layout.halves(tile, 0);
        Walk<F> block(matrix, layout, tile);
        const Activations * a = (const Activations *)group;
        for (int64_t b = 0; b < layout.num_blocks; b += F::steps) {
            L::Real half[PARTS], half_minimum[PARTS];
            if constexpr (F::has_super) {
                prefetch(shared, At::half_bytes);
                DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
                    const uint8_t * halves = shared + 2 * (first + p * L::ROWS);
                    half[p] = L::from_half((const uint16_t *)halves);
                    if constexpr (F::minimum == Minimum::SIX) half_minimum[p] = L::from_half((const uint16_t *)(halves + 32));
                }
                shared += At::half_bytes;
            }
            for (int j = 0; j < F::steps; j++) {
                const uint8_t * at = block.at;
                prefetch(at, At::block_bytes);
                DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
                    const int row = first + p * L::ROWS;
                    const uint8_t * scales = at + At::scales, * minima = at + At::minima;
                    L::Codes x[8];
                    unpack<F>(at + 4 * row, at + At::above + 4 * row, x);
                    L::Real scale[2], minimum;
                    if constexpr (F::scale == Scale::HALF) scale[0] = L::from_half((const uint16_t *)scales + row);
                    else if constexpr (F::scale == Scale::EXPONENT) scale[0] = L::from_exponent(scales + row);
                    else if constexpr (F::scale == Scale::SIX) scale[0] = L::mul(half[p], L::from_unsigned(scales + row));
                    else scale[0] = L::mul(half[p], L::from_signed((const int8_t *)scales + row));
                    if constexpr (F::is_halved) scale[1] = L::mul(half[p], L::from_signed((const int8_t *)scales + 16 + row));
                    if constexpr (F::minimum == Minimum::HALF) minimum = L::from_half((const uint16_t *)minima + row);
                    if constexpr (F::minimum == Minimum::SIX) minimum = L::mul(half_minimum[p], L::from_unsigned(minima + row));
                    DUODEC_UNROLL for (int m = 0; m < M; m += TOGETHER) {
                        const int end = m + TOGETHER < M ? m + TOGETHER : M;  // unrolled: known
                        if constexpr (F::is_halved) {
                            Dots left[TOGETHER], right[TOGETHER];
                            DUODEC_UNROLL for (int i = m; i < end; i++) { left[i - m].begin(a[i].start[0]); right[i - m].begin(a[i].start[1]); }
                            DUODEC_UNROLL for (int v = 0; v < 4; v++) {
                                DUODEC_UNROLL for (int i = m; i < end; i++) {
                                    left[i - m].add(v, x[v], a[i].codes);
                                    right[i - m].add(v, x[4 + v], a[i].codes + 16);
                                }
                            }
                            DUODEC_UNROLL for (int i = m; i < end; i++) {
                                const L::Real factor = L::splat(a[i].scale);
                                sums[p][i] = L::add_product(sums[p][i], L::real(left[i - m].end()), L::mul(scale[0], factor));
                                sums[p][i] = L::add_product(sums[p][i], L::real(right[i - m].end()), L::mul(scale[1], factor));
                            }
                        } else {
                            Dots dots[TOGETHER];
                            DUODEC_UNROLL for (int i = m; i < end; i++) dots[i - m].begin(F::minimum == Minimum::NONE ? a[i].start[0] : 0);
                            DUODEC_UNROLL for (int v = 0; v < 8; v++) {
                                DUODEC_UNROLL for (int i = m; i < end; i++) dots[i - m].add(v, x[v], a[i].codes);
                            }
                            DUODEC_UNROLL for (int i = m; i < end; i++) {
                                sums[p][i] = L::add_product(sums[p][i], L::real(dots[i - m].end()), L::mul(scale[0], L::splat(a[i].scale)));
                                if constexpr (F::minimum == Minimum::HALF) sums[p][i] = L::add_product(sums[p][i], minimum, L::splat(a[i].sum));
                                if constexpr (F::minimum == Minimum::SIX) sums[p][i] = L::take_product(sums[p][i], minimum, L::splat(a[i].sum));
                            }
                        }
                    }
                }
                block.next();
                a += M;
            }
        }
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
            DUODEC_UNROLL for (int m = 0; m < M; m++) L::store(out[m] + first + p * L::ROWS, sums[p][m]);
        }
    }
}

template <class F, int M>
void multiply(const uint8_t * matrix, int64_t rows, int64_t columns, int64_t tile, const uint8_t * group, float * const * out) {
    const Layout<F> layout(rows, columns);
    if constexpr (F::is_float) multiply_floats<F, M>(matrix, layout, columns, tile, group, out);
    else multiply_codes<F, M>(matrix, layout, tile, group, out);
}

using Multiply = void (*)(const uint8_t *, int64_t, int64_t, int64_t, const uint8_t *, float * const *);

template <class F, int... M> const Multiply * multiplies(std::integer_sequence<int, M...>) {
    static constexpr Multiply functions[] = {multiply<F, M + 1>...};
    return functions;
}

// Rows of activations that are multiplied at once; for no format more than Lanes::MOST.
template <class F> constexpr int most_rows() { return F::is_float ? Lanes::MOST_FLOATS : Lanes::MOST; }

// The function for groups of `rows`, 1 to most_rows.
template <class F> Multiply multiply_of(int rows) { return multiplies<F>(std::make_integer_sequence<int, most_rows<F>()>())[rows - 1]; }

}  // namespace duodec
