// Attention of single rows over a cache of keys and values in 16 bits.
//
// A row sees some cells of the cache; their scores lie next to each other, whatever cells lie between them, and all sums run over
// them in that order, in float32. So a row's bits depend on its query and on what it sees, not on the number of rows, on who
// computes them, or on cells that belong to other texts.
#pragma once
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "lanes.h"

namespace duodec {

constexpr int HEADS = 4;  // query heads that are computed at once, over the keys and values of one head

inline int64_t padded(int64_t cells) { return (cells + Lanes::ROWS - 1) / Lanes::ROWS * Lanes::ROWS; }

// What one row of queries sees.
struct Sight {
    int64_t num_cells;      // that it sees
    const int32_t * cells;  // which ones
    const float * added;    // to their scores; minus infinity up to the padded number
};

// exp(x) of numbers that are at most 0, to within 2 units in the last place; 0 below -87.
inline Lanes::Real exponential(Lanes::Real x) {
    using L = Lanes;
    const L::Real least = L::splat(-87.0f), bounded = L::greater(least, x);  // a NaN stays one
    const L::Real n = L::rounded(L::mul(bounded, L::splat(1.44269504f)));
    const L::Real r = L::take_product(L::take_product(bounded, n, L::splat(0.693145752f)), n, L::splat(1.42860677e-6f));
    L::Real y = L::splat(1.3888889e-3f);
    for (float factor : {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f}) y = L::add_product(L::splat(factor), y, r);
    return L::where_greater(x, least, L::mul(y, L::power_of_two(n)));
}

template <bool IS_BFLOAT> inline Lanes::Real short_numbers(const uint16_t * p) {
    if constexpr (IS_BFLOAT) return Lanes::from_bfloat(p);
    else return Lanes::from_half(p);
}

// `out[g]` takes what query head g of G finds. Strides are in bytes; sizes of heads are multiples of Lanes::ROWS; `scores` has
// room for G times the padded number of cells.
template <int G, bool KEYS_BFLOAT, bool VALUES_BFLOAT>
void attend(const float * const * queries, const char * keys, int64_t key_stride, int64_t key_size, const char * values, int64_t value_stride,
            int64_t value_size, float scale, const Sight & sight, float * scores, float * const * out) {
    using L = Lanes;
    constexpr int ROWS = L::ROWS, DEEP = 4;  // vectors of values that are summed at once
    const int64_t num = sight.num_cells, length = padded(num);
    float most[G];
    for (int g = 0; g < G; g++) most[g] = -std::numeric_limits<float>::infinity();
    L::Real parts[G][ROWS];
    for (int64_t first = 0; first < num; first += ROWS) {
        const int count = (int)(num - first < ROWS ? num - first : ROWS);
        for (int i = 0; i < count; i++) {
            const uint16_t * key = (const uint16_t *)(keys + sight.cells[first + i] * key_stride);
            L::Real sums[G];
            for (int g = 0; g < G; g++) sums[g] = L::zero();
            for (int64_t d = 0; d < key_size; d += ROWS) {
                const L::Real part = short_numbers<KEYS_BFLOAT>(key + d);
                for (int g = 0; g < G; g++) sums[g] = L::add_product(sums[g], part, L::from_float(queries[g] + d));
            }
            for (int g = 0; g < G; g++) parts[g][i] = sums[g];
        }
        for (int i = count; i < ROWS; i++) for (int g = 0; g < G; g++) parts[g][i] = L::zero();
        for (int g = 0; g < G; g++) {
            const L::Real found = L::add_product(L::from_float(sight.added + first), L::sums(parts[g]), L::splat(scale));
            L::store(scores + g * length + first, found);
            const float here = L::greatest(found);
            most[g] = here > most[g] ? here : most[g];
        }
    }
    float shares[G];  // of each cell's value: 1 / the sum of all weights
    for (int g = 0; g < G; g++) {
        L::Real total = L::zero();
        for (int64_t c = 0; c < length; c += ROWS) {
            const L::Real weight = exponential(L::less(L::from_float(scores + g * length + c), L::splat(most[g])));
            L::store(scores + g * length + c, weight);
            total = L::sum(total, weight);
        }
        float lanes[ROWS], sum = 0;
        L::store(lanes, total);
        for (float x : lanes) sum += x;
        shares[g] = num ? 1.0f / sum : 0.0f;
    }
    for (int64_t d = 0; d < value_size;) {
        const auto add_up = [&](auto deep) {
            constexpr int N = decltype(deep)::value;
            L::Real sums[G][N];
            for (int g = 0; g < G; g++) for (int v = 0; v < N; v++) sums[g][v] = L::zero();
            for (int64_t c = 0; c < num; c++) {
                const uint16_t * value = (const uint16_t *)(values + sight.cells[c] * value_stride) + d;
                L::Real part[N];
                for (int v = 0; v < N; v++) part[v] = short_numbers<VALUES_BFLOAT>(value + v * ROWS);
                for (int g = 0; g < G; g++) {
                    const L::Real weight = L::splat(scores[g * length + c]);
                    for (int v = 0; v < N; v++) sums[g][v] = L::add_product(sums[g][v], part[v], weight);
                }
            }
            for (int g = 0; g < G; g++) for (int v = 0; v < N; v++) L::store(out[g] + d + v * ROWS, L::mul(sums[g][v], L::splat(shares[g])));
            d += N * ROWS;
        };
        if (value_size - d >= DEEP * ROWS) add_up(std::integral_constant<int, DEEP>());
        else add_up(std::integral_constant<int, 1>());
    }
}

using Attend = void (*)(const float * const *, const char *, int64_t, int64_t, const char *, int64_t, int64_t, float, const Sight &, float *, float * const *);

// The function for 1 to HEADS query heads, and keys and values in bfloat16 or in half precision.
inline Attend attend_of(int heads, bool keys_bfloat, bool values_bfloat) {
#define DUODEC_ATTEND(G) {{attend<G, false, false>, attend<G, false, true>}, {attend<G, true, false>, attend<G, true, true>}}
    static const Attend functions[HEADS][2][2] = {DUODEC_ATTEND(1), DUODEC_ATTEND(2), DUODEC_ATTEND(3), DUODEC_ATTEND(4)};
#undef DUODEC_ATTEND
    return functions[heads - 1][keys_bfloat][values_bfloat];
}

}  // namespace duodec
