// One tile of weights times a few rows of activations.
//
// A sum runs over blocks of 32 columns in their order, and nothing else decides how it is rounded: not the number of rows, not
// who computes them. Codes are unpacked once for all rows.
#pragma once
#include <algorithm>
#include <utility>

#include "activations.h"
#include "formats.h"
#include "grids.h"
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

// The indices at place I of so many rows of weights, the first of which is `row`. They are read eight bytes at once: tables keep a
// processor's loads busy.
template <class F, int I> struct Indices {
    static constexpr int high = F::index_bits - 8, bit = I * high, size = high ? 16 : 8;
    uint64_t words[Lanes::ROWS * size / 64];

    DUODEC_INLINE Indices(const uint8_t * block, int row) {
        const uint8_t * low = block + TILE * I + row, * above = block + Layout<F>::above + TILE * (bit / 8) + row;
        if constexpr (high == 0) {
            memcpy(words, low, sizeof words);
        } else {
            uint16_t joined[Lanes::ROWS];
            Lanes::join<bit % 8, (1 << high) - 1>(low, above, joined);
            memcpy(words, joined, sizeof words);
        }
    }
    DUODEC_INLINE uint64_t operator[](int r) const { return words[r * size / 64] >> r * size % 64 & ((1 << size) - 1); }
};

// Looks up vectors 2 * V and 2 * V + 1 of a block of entries of a table, from row `row` of the tile on.
template <class F, int V> DUODEC_INLINE void look_up(const uint8_t * block, int row, Lanes::Codes & even, Lanes::Codes & odd) {
    using L = Lanes;
    if constexpr (F::width == Width::EIGHTS) {
        L::entries(GRID<F::type>.entries, Indices<F, V>(block, row), even, odd);
    } else {
        even = L::entries(GRID<F::type>.entries, Indices<F, 2 * V>(block, row));
        odd = L::entries(GRID<F::type>.entries, Indices<F, 2 * V + 1>(block, row));
    }
    if constexpr (F::has_signs) {
        const L::Codes signs = L::load(block + Layout<F>::signs + 4 * row);
        even = L::signed_by<2 * V>(even, signs, F::offset);
        odd = L::signed_by<2 * V + 1>(odd, signs, F::offset);
    }
}

// Unpacks vectors 2 * V and 2 * V + 1 of the codes of a block, from row `row` of the tile on.
template <class F, int V> DUODEC_INLINE void unpack(const uint8_t * block, int row, Lanes::Codes & even, Lanes::Codes & odd) {
    using L = Lanes;
    const uint8_t * codes = block + 4 * row, * above = codes + Layout<F>::above;
    if constexpr (F::is_grid) {
        look_up<F, V>(block, row, even, odd);
    } else if constexpr (F::width == Width::EIGHT) {
        even = L::load(codes + LINE * 2 * V);
        odd = L::load(codes + LINE * (2 * V + 1));
    } else if constexpr (F::width == Width::ONE) {  // zero and two, less one
        const L::Codes eight = L::load(codes);
        even = L::bits<2 * V - 1, 2>(eight);
        odd = L::bits<2 * V, 2>(eight);
    } else if constexpr (Layout<F>::is_two) {
        const L::Codes four = L::load(codes + LINE * (V / 2));
        even = L::bits<V % 2 * 4, 3>(four);
        odd = L::bits<V % 2 * 4 + 2, 3>(four);
        if constexpr (F::width == Width::THREE) {
            const L::Codes h = L::load(above);
            even = L::with<2 * V - 2, 4>(even, h);
            odd = L::with<2 * V - 1, 4>(odd, h);
        }
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
            even = L::with<2 * V - 4, 16>(even, h);
            odd = L::with<2 * V - 3, 16>(odd, h);
        }
        if constexpr (F::width == Width::SIX) {
            const L::Codes h = L::load(above + LINE * (V / 2));
            even = L::with<V % 2 * 4 - 4, 48>(even, h);
            odd = L::with<V % 2 * 4 - 2, 48>(odd, h);
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
    Lanes::Real scale[2], minimum[2];  // the second of both: where each 16 weights have their own
};

template <class F> DUODEC_INLINE Factors factors(const uint8_t * block, int row, Lanes::Real half, Lanes::Real half_minimum) {
    using L = Lanes;
    const uint8_t * scales = block + Layout<F>::scales, * minima = block + Layout<F>::minima;
    Factors f;
    if constexpr (F::scale == Scale::HALF) f.scale[0] = L::from_half((const uint16_t *)scales + row);
    else if constexpr (F::scale == Scale::EXPONENT) f.scale[0] = L::from_exponent(scales + row);
    else if constexpr (F::scale == Scale::BYTE) f.scale[0] = L::mul(half, L::from_unsigned(scales + row));
    else if constexpr (F::scale == Scale::SIGNED) f.scale[0] = L::mul(half, L::from_signed((const int8_t *)scales + row));
    else if constexpr (F::scale == Scale::SHARED) f.scale[0] = half;
    else if constexpr (F::scale == Scale::NIBBLES) {
        f.scale[0] = L::mul(half, L::add_product(L::splat(1), L::splat(2), L::from_low(scales + row)));
        f.scale[1] = L::mul(half, L::add_product(L::splat(1), L::splat(2), L::from_high(scales + row)));
    } else
        for (int h = 0; h < 2; h++) {
            const uint8_t * own = scales + 16 * h + row;
            if constexpr (F::scale == Scale::EIGHT_BITS) f.scale[h] = L::from_eight_bits(own);
            else f.scale[h] = L::mul(half, F::scale == Scale::TWO ? L::from_signed((const int8_t *)own) : L::from_low(own));
            if constexpr (F::minimum == Minimum::HIGHS) f.minimum[h] = L::mul(half_minimum, L::from_high(own));
        }
    if constexpr (F::minimum == Minimum::HALF) f.minimum[0] = L::from_half((const uint16_t *)minima + row);
    if constexpr (F::minimum == Minimum::BYTE) f.minimum[0] = L::mul(half_minimum, L::from_unsigned(minima + row));
    return f;
}

// Adds to a row's sum what the integers of a block come to, or of half of one.
template <class F> DUODEC_INLINE void add_block(Lanes::Real & sum, Lanes::Int dots, const Factors & f, int h, const Activations & a) {
    using L = Lanes;
    sum = L::add_product(sum, L::real(dots), L::mul(f.scale[h], L::splat(a.scale)));
    if constexpr (F::minimum == Minimum::HALF) sum = L::add_product(sum, f.minimum[0], L::splat(a.sum));
    if constexpr (F::minimum == Minimum::BYTE) sum = L::take_product(sum, f.minimum[0], L::splat(a.sum));
    if constexpr (F::minimum == Minimum::HIGHS) sum = L::take_product(sum, f.minimum[h], L::splat(a.sums[h]));
}

template <class F> inline int32_t start_of(const Activations & a, int h) { return F::minimum == Minimum::NONE ? a.start[h] : 0; }

// A block times M rows of activations, a few rows after the other: where registers hold its codes.
template <class F, int M, class L = Lanes>
DUODEC_INLINE void multiply_by_rows(const uint8_t * block, int row, Lanes::Real half, Lanes::Real half_minimum, const Activations * a, Lanes::Real (&sums)[M]) {
    using Dots = typename L::template Dots<F::largest>;
    constexpr int HALVES = F::is_halved ? 2 : 1, VECTORS = 8 / HALVES;
    Lanes::Codes x[8];
    unpack<F, 0>(block, row, x[0], x[1]);
    unpack<F, 1>(block, row, x[2], x[3]);
    unpack<F, 2>(block, row, x[4], x[5]);
    unpack<F, 3>(block, row, x[6], x[7]);
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
template <class F, int V, int PARTS, int M, class Dots, class L = Lanes> DUODEC_INLINE void add_two(const uint8_t * block, int row, const Activations * a, Dots (&dots)[PARTS][M]) {
    constexpr int first = F::is_halved ? V % 2 * 2 : V * 2;  // of these that were added
    Lanes::Codes even[PARTS], odd[PARTS];
    DUODEC_UNROLL for (int p = 0; p < PARTS; p++) unpack<F, V>(block, row + p * L::ROWS, even[p], odd[p]);
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
DUODEC_INLINE void multiply_by_vectors(const uint8_t * block, int row, const Lanes::Real (&half)[PARTS], const Lanes::Real (&half_minimum)[PARTS], const Activations * a, Lanes::Real (&sums)[PARTS][M]) {
    DUODEC_UNROLL for (int h = 0; h < (F::is_halved ? 2 : 1); h++) {
        typename L::template Dots<F::largest> dots[PARTS][M];
        DUODEC_UNROLL for (int m = 0; m < M; m++) {
            DUODEC_UNROLL for (int p = 0; p < PARTS; p++) dots[p][m].begin(start_of<F>(a[m], h));
        }
        if (h == 0) {
            add_two<F, 0>(block, row, a, dots);
            add_two<F, 1>(block, row, a, dots);
        }
        if (h == 1 || !F::is_halved) {
            add_two<F, 2>(block, row, a, dots);
            add_two<F, 3>(block, row, a, dots);
        }
        DUODEC_UNROLL for (int p = 0; p < PARTS; p++) {
            const Factors f = factors<F>(block, row + p * L::ROWS, half[p], half_minimum[p]);
            DUODEC_UNROLL for (int m = 0; m < M; m++) add_block<F>(sums[p][m], dots[p][m].end(), f, h, a[m]);
        }
    }
}

// `out[m]` takes the products with row m of a group of M, as above: of weights that are codes.
template <class F, int M> void multiply_codes(const uint8_t * matrix, const Layout<F> & layout, int64_t tile, const uint8_t * group, float * const * out) {
    using L = Lanes;
    using At = Layout<F>;
    constexpr bool is_wide = F::is_grid && M > L::MOST_GRIDS / 2;
    constexpr int PARTS = L::HOLDS_CODES || is_wide ? 1 : TILE / L::ROWS;  // of a tile, at once
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
                    if constexpr (F::unit != 1) half[p] = L::mul(half[p], L::splat(F::unit));
                    if constexpr (F::has_super_minimum) half_minimum[p] = L::from_half((const uint16_t *)(halves + 32));
                }
                shared += At::half_bytes;
            }
            for (int j = 0; j < F::steps; j++) {
                prefetch(block.at, block.ahead, At::block_bytes);
                if constexpr (L::HOLDS_CODES) multiply_by_rows<F>(block.at, first, half[0], half_minimum[0], a, sums[0]);
                else multiply_by_vectors<F>(block.at, first, half, half_minimum, a, sums);
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

// Rows of activations that are multiplied at once; for no format more than MOST_ROWS.
template <class F> constexpr int most_rows() { return F::is_float ? Lanes::MOST_FLOATS : F::is_grid ? Lanes::MOST_GRIDS : Lanes::MOST; }
constexpr int MOST_ROWS = std::max({Lanes::MOST, Lanes::MOST_FLOATS, Lanes::MOST_GRIDS});

// The function for groups of `rows`, 1 to most_rows.
template <class F> Multiply multiply_of(int rows) { return multiplies<F>(std::make_integer_sequence<int, most_rows<F>()>())[rows - 1]; }

}  // namespace duodec
