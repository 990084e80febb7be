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

#if defined(__GNUC__)
#define DUODEC_INLINE inline __attribute__((always_inline))  // sums stay in registers from block to block
#else
#define DUODEC_INLINE inline
#endif

namespace duodec {

// Fetches weights before they are multiplied: what a core's own prefetching misses. Into the second cache, which can wait for more
// lines at once than the first.
inline void prefetch(const uint8_t * weights, int64_t ahead, int num_bytes) {
    for (int i = 0; i < num_bytes; i += LINE) __builtin_prefetch(weights + ahead + i, 0, 2);
}

// Unpacks vectors 2 * V and 2 * V + 1 of the codes of a block.
template <class F, int V> DUODEC_INLINE void unpack(const uint8_t * codes, const uint8_t * above, Lanes::Codes & even, Lanes::Codes & odd) {
    using L = Lanes;
    if constexpr (F::width == Width::EIGHT) {
        even = L::load(codes + LINE * 2 * V);
        odd = L::load(codes + LINE * (2 * V + 1));
    } else {
        const L::Codes two = L::load(codes + LINE * V);
        even = L::low(two);
        odd = L::high(two);
        if constexpr (F::table != Table::NONE) {
            const uint8_t * table = F::table == Table::NORMAL ? NORMAL_CODES : FP4_CODES;
            even = L::lookup(even, table);
            odd = L::lookup(odd, table);
        }
        if constexpr (F::width == Width::FIVE) {
            const L::Codes h = L::load(above);
            even = L::with<2 * V, 16>(even, h);
            odd = L::with<2 * V + 1, 16>(odd, h);
        }
        if constexpr (F::width == Width::SIX) {
            const L::Codes h = L::load(above + LINE * (V / 2));
            even = L::with<V % 2 * 4, 48>(even, h);
            odd = L::with<V % 2 * 4 + 2, 48>(odd, h);
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
            prefetch(block.at, block.ahead, Layout<F>::block_bytes);
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

// What the integers of a block are multiplied with, for as many rows of weights as lanes.
struct Factors {
    Lanes::Real scale[2], minimum;
};

template <class F> DUODEC_INLINE Factors factors(const uint8_t * block, int row, Lanes::Real half, Lanes::Real half_minimum) {
    using L = Lanes;
    const uint8_t * scales = block + Layout<F>::scales, * minima = block + Layout<F>::minima;
    Factors f;
    if constexpr (F::scale == Scale::HALF) f.scale[0] = L::from_half((const uint16_t *)scales + row);
    else if constexpr (F::scale == Scale::EXPONENT) f.scale[0] = L::from_exponent(scales + row);
    else if constexpr (F::scale == Scale::SIX) f.scale[0] = L::mul(half, L::from_unsigned(scales + row));
    else f.scale[0] = L::mul(half, L::from_signed((const int8_t *)scales + row));
    if constexpr (F::is_halved) f.scale[1] = L::mul(half, L::from_signed((const int8_t *)scales + 16 + row));
    if constexpr (F::minimum == Minimum::HALF) f.minimum = L::from_half((const uint16_t *)minima + row);
    if constexpr (F::minimum == Minimum::SIX) f.minimum = L::mul(half_minimum, L::from_unsigned(minima + row));
    return f;
}

// Adds to a row's sum what the integers of a block come to, or of half of one.
template <class F> DUODEC_INLINE void add_block(Lanes::Real & sum, Lanes::Int dots, const Factors & f, int h, const Activations & a) {
    using L = Lanes;
    sum = L::add_product(sum, L::real(dots), L::mul(f.scale[h], L::splat(a.scale)));
    if constexpr (F::minimum == Minimum::HALF) sum = L::add_product(sum, f.minimum, L::splat(a.sum));
    if constexpr (F::minimum == Minimum::SIX) sum = L::take_product(sum, f.minimum, L::splat(a.sum));
}

template <class F> inline int32_t start_of(const Activations & a, int h) { return F::minimum == Minimum::NONE ? a.start[h] : 0; }

// A block times M rows of activations, a few rows after the other: where registers hold its codes.
template <class F, int M, class L = Lanes>
DUODEC_INLINE void multiply_by_rows(const uint8_t * block, int row, Lanes::Real half, Lanes::Real half_minimum, const Activations * a, Lanes::Real (&sums)[M]) {
    using Dots = typename L::template Dots<F::largest>;
    constexpr int HALVES = F::is_halved ? 2 : 1, VECTORS = 8 / HALVES;
    Lanes::Codes x[8];
    const uint8_t * codes = block + 4 * row, * above = codes + Layout<F>::above;
    unpack<F, 0>(codes, above, x[0], x[1]);
    unpack<F, 1>(codes, above, x[2], x[3]);
    unpack<F, 2>(codes, above, x[4], x[5]);
    unpack<F, 3>(codes, above, x[6], x[7]);
    const Factors f = factors<F>(block, row, half, half_minimum);
    DUODEC_UNROLL for (int m = 0; m < M; m += L::TOGETHER) {
        const int end = m + L::TOGETHER < M ? m + L::TOGETHER : M;  // unrolled: known
        Dots dots[HALVES][L::TOGETHER];
        DUODEC_UNROLL for (int i = m; i < end; i++) {
            DUODEC_UNROLL for (int h = 0; h < HALVES; h++) dots[h][i - m].begin(start_of<F>(a[i], h));
        }
        DUODEC_UNROLL for (int v = 0; v < VECTORS; v++) {
            DUODEC_UNROLL for (int i = m; i < end; i++) {
                DUODEC_UNROLL for (int h = 0; h < HALVES; h++) dots[h][i - m].add(v, x[VECTORS * h + v], a[i].codes + 16 * h);
            }
        }
        DUODEC_UNROLL for (int i = m; i < end; i++) {
            DUODEC_UNROLL for (int h = 0; h < HALVES; h++) add_block<F>(sums[i], dots[h][i - m].end(), f, h, a[i]);
        }
    }
}

// Adds the products of two vectors of codes, first vector 2 * V, to the integers of all parts of a tile and all rows of activations.
template <class F, int V, int PARTS, int M, class Dots, class L = Lanes> DUODEC_INLINE void add_two(const uint8_t * block, const Activations * a, Dots (&dots)[PARTS][M]) {
    constexpr int first = F::is_halved ? V % 2 * 2 : V * 2;  // of these that were added
    Lanes::Codes even[PARTS], odd[PARTS];
    DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
        const uint8_t * codes = block + 4 * p * L::ROWS;
        unpack<F, V>(codes, codes + Layout<F>::above, even[p], odd[p]);
    }
    DUODEC_UNROLL for (int m = 0; m < M; m++) {
        const auto word = L::word(a[m].codes, 2 * V);
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) dots[p][m].add(first, even[p], word);
    }
    DUODEC_UNROLL for (int m = 0; m < M; m++) {
        const auto word = L::word(a[m].codes, 2 * V + 1);
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) dots[p][m].add(first + 1, odd[p], word);
    }
}

// The same vector by vector of codes, all rows at once: where registers hold no more than the integers. A word of activations is
// loaded once for all parts of a tile.
template <class F, int PARTS, int M, class L = Lanes>
DUODEC_INLINE void multiply_by_vectors(const uint8_t * block, const Lanes::Real (&half)[PARTS], const Lanes::Real (&half_minimum)[PARTS], const Activations * a, Lanes::Real (&sums)[PARTS][M]) {
    DUODEC_UNROLL for (int h = 0; h < (F::is_halved ? 2 : 1); h++) {
        typename L::template Dots<F::largest> dots[PARTS][M];
        DUODEC_UNROLL for (int m = 0; m < M; m++) {
            DUODEC_UNROLL for (int p = 0; p < PARTS; p++) dots[p][m].begin(start_of<F>(a[m], h));
        }
        if (h == 0) {
            add_two<F, 0>(block, a, dots);
            add_two<F, 1>(block, a, dots);
        }
        if (h == 1 || !F::is_halved) {
            add_two<F, 2>(block, a, dots);
            add_two<F, 3>(block, a, dots);
        }
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
            const Factors f = factors<F>(block, p * L::ROWS, half[p], half_minimum[p]);
            DUODEC_UNROLL for (int m = 0; m < M; m++) add_block<F>(sums[p][m], dots[p][m].end(), f, h, a[m]);
        }
    }
}

// `out[m]` takes the products with row m of a group of M, as above: of weights that are codes.
template <class F, int M> void multiply_codes(const uint8_t * matrix, const Layout<F> & layout, int64_t tile, const uint8_t * group, float * const * out) {
    using L = Lanes;
    using At = Layout<F>;
    constexpr int PARTS = L::HOLDS_CODES ? 1 : TILE / L::ROWS;  // of a tile, at once
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
                prefetch(shared, AHEAD / MOST_STREAMS, At::half_bytes);
                DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
                    const uint8_t * halves = shared + 2 * (first + p * L::ROWS);
                    half[p] = L::from_half((const uint16_t *)halves);
                    if constexpr (F::minimum == Minimum::SIX) half_minimum[p] = L::from_half((const uint16_t *)(halves + 32));
                }
                shared += At::half_bytes;
            }
            for (int j = 0; j < F::steps; j++) {
                prefetch(block.at, block.ahead, At::block_bytes);
                if constexpr (L::HOLDS_CODES) multiply_by_rows<F>(block.at, first, half[0], half_minimum[0], a, sums[0]);
                else multiply_by_vectors<F>(block.at, half, half_minimum, a, sums);
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
