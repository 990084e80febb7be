// Attention of rows over a cache of keys and values in 16 bits.
//
// A row sees some cells of the cache; their scores lie next to each other, whatever cells lie between them, and all sums run over
// them in that order, in float32. So a row's bits depend on its query and on what it sees, not on the number of rows, on who
// computes them, or on cells that belong to other texts. Rows of a draft see the same cells but for the last ones: of those that
// are alike, keys and values are read once for several rows, whose sums stay apart.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "formats.h"
#include "half.h"
#include "lanes.h"

namespace duodec {

constexpr int HEADS = 4;  // query heads that are computed at once, over the keys and values of one head
constexpr int TOKENS = 4;  // rows that are computed at once, at most
constexpr int CELLS_AHEAD = 32;  // between those that are computed and those that are fetched

inline int64_t padded(int64_t cells) { return (cells + Lanes::ROWS - 1) / Lanes::ROWS * Lanes::ROWS; }

// What one row of queries sees.
struct Sight {
    int64_t num_cells;      // that it sees
    const int32_t * cells;  // which ones
    const float * added;    // to their scores; minus infinity up to the padded number
};

// What a head makes of the products of its queries and keys.
struct Scoring {
    float scale;
    float cap;    // between minus and plus which `scale` times a product is bent; 0: it is not
    float slope;  // times which the mask is added: of ALiBi, otherwise 1
    float sink;   // the score of a cell that every row sees, whose value is zero; minus infinity: there is none
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

inline Lanes::Real hyperbolic_tangent(Lanes::Real x) {
    using L = Lanes;
    const L::Real one = L::splat(1.0f), e = exponential(L::mul(L::magnitude(x), L::splat(-2.0f)));
    return L::with_sign(L::ratio(L::less(one, e), L::sum(one, e)), x);
}

template <bool IS_BFLOAT> inline Lanes::Real short_numbers(const uint16_t * p) {
    if constexpr (IS_BFLOAT) return Lanes::from_bfloat(p);
    else return Lanes::from_half(p);
}

// --- what Q queries find in the same cells, of OF whose numbers are interleaved, vector by vector; G of a row

// Asks for the numbers of a cell that comes later: a processor does not look so far ahead by itself.
inline void fetch(const char * cell, int64_t num_bytes) {
    for (int64_t i = 0; i < num_bytes; i += LINE) __builtin_prefetch(cell + i);
}

// Scores of up to ROWS cells, the first of which is a row's cell `first`. `later` are as many cells that follow soon.
template <int Q, int OF, int G, bool IS_BFLOAT>
inline void score(const float * queries, const char * keys, int64_t stride, int64_t size, const int32_t * cells, const int32_t * later, int count,
                  const Scoring * scorings, const Sight * sights, int64_t first, float * scores, Lanes::Real * most) {
    using L = Lanes;
    constexpr int ROWS = L::ROWS;
    L::Real parts[Q][ROWS];
    for (int i = 0; i < count; i++) {
        const uint16_t * key = (const uint16_t *)(keys + cells[i] * stride);
        fetch(keys + later[i] * stride, 2 * size);
        const float * query = queries;
        L::Real sums[Q];
        for (int q = 0; q < Q; q++) sums[q] = L::zero();
        for (int64_t d = 0; d < size; d += ROWS, query += OF * ROWS) {
            const L::Real part = short_numbers<IS_BFLOAT>(key + d);
            for (int q = 0; q < Q; q++) sums[q] = L::add_product(sums[q], part, L::from_float(query + q * ROWS));
        }
        for (int q = 0; q < Q; q++) parts[q][i] = sums[q];
    }
    for (int i = count; i < ROWS; i++) for (int q = 0; q < Q; q++) parts[q][i] = L::zero();
    for (int q = 0; q < Q; q++) {
        const Scoring & scoring = scorings[q % G];
        const L::Real added = L::mul(L::from_float(sights[q / G].added + first), L::splat(scoring.slope));
        L::Real found = L::sums(parts[q]);
        if (scoring.cap != 0) found = L::add_product(added, hyperbolic_tangent(L::mul(found, L::splat(scoring.scale / scoring.cap))), L::splat(scoring.cap));
        else found = L::add_product(added, found, L::splat(scoring.scale));
        L::store(scores + first * OF + q * ROWS, found);
        most[q] = L::greater(most[q], found);
    }
}

// Adds N vectors of the values of up to ROWS cells, by their weights.
template <int Q, int OF, int N, bool IS_BFLOAT>
inline void add_values(Lanes::Real (&sums)[Q][N], const char * values, int64_t stride, const int32_t * cells, const int32_t * later, int count,
                       const float * weights) {
    using L = Lanes;
    for (int i = 0; i < count; i++) {
        const uint16_t * value = (const uint16_t *)(values + cells[i] * stride);
        fetch(values + later[i] * stride, 2 * N * L::ROWS);
        L::Real part[N];
        for (int v = 0; v < N; v++) part[v] = short_numbers<IS_BFLOAT>(value + v * L::ROWS);
        for (int q = 0; q < Q; q++) {
            const L::Real weight = L::splat(weights[q * L::ROWS + i]);
            for (int v = 0; v < N; v++) sums[q][v] = L::add_product(sums[q][v], part[v], weight);
        }
    }
}

// Vectors of values that are summed at once.
constexpr int deep(int queries) { return 4 * queries <= Lanes::SUMS ? 4 : 2 * queries <= Lanes::SUMS ? 2 : 1; }

// `out[r * G + g]` takes what query head g of row r finds, by `scorings[g]`. Strides are in bytes; sizes of heads are multiples of Lanes::ROWS. The
// first `alike` cells, a multiple of that, are the same for all rows; `work` has room for the queries and their padded cells.
template <int R, int G, bool KEYS_BFLOAT, bool VALUES_BFLOAT>
void attend(const float * const * queries, const char * keys, int64_t key_stride, int64_t key_size, const char * values, int64_t value_stride,
            int64_t value_size, const Scoring * scorings, const Sight * sights, int64_t alike, float * work, float * const * out) {
    using L = Lanes;
    constexpr int ROWS = L::ROWS, Q = R * G;
    const int64_t shared = R > 1 ? alike : 0;
    const auto count_from = [](int64_t first, const Sight & sight) { return (int)std::min<int64_t>(ROWS, sight.num_cells - first); };
    const auto later = [](int64_t first, const Sight & sight) { return sight.cells + (first + CELLS_AHEAD + ROWS <= sight.num_cells ? first + CELLS_AHEAD : first); };
    float * scores = work + Q * key_size;
    for (int64_t d = 0; d < key_size; d += ROWS) for (int q = 0; q < Q; q++) L::store(work + d * Q + q * ROWS, L::from_float(queries[q] + d));
    L::Real most[Q];
    for (int q = 0; q < Q; q++) most[q] = L::splat(-std::numeric_limits<float>::infinity());
    for (int64_t c = 0; c < shared; c += ROWS)
        score<Q, Q, G, KEYS_BFLOAT>(work, keys, key_stride, key_size, sights[0].cells + c, later(c, sights[0]), ROWS, scorings, sights, c, scores, most);
    for (int r = 0; r < R; r++)
        for (int64_t c = shared; c < sights[r].num_cells; c += ROWS)
            score<G, Q, G, KEYS_BFLOAT>(work + r * G * ROWS, keys, key_stride, key_size, sights[r].cells + c, later(c, sights[r]), count_from(c, sights[r]),
                                        scorings, sights + r, c, scores + r * G * ROWS, most + r * G);
    float shares[Q];  // of each cell's value: 1 / the sum of all weights
    for (int q = 0; q < Q; q++) {
        const int64_t num = sights[q / G].num_cells, length = padded(num);
        const float sink = scorings[q % G].sink, found_most = L::greatest(most[q]);
        const L::Real top = L::splat(found_most < sink ? sink : found_most);  // a NaN stays one
        L::Real total = L::zero();
        for (float * own = scores + q * ROWS, * end = own + length * Q; own < end; own += Q * ROWS) {
            const L::Real weight = exponential(L::less(L::from_float(own), top));
            L::store(own, weight);
            total = L::sum(total, weight);
        }
        float lanes[ROWS], sum = 0;
        L::store(lanes, total);
        for (float x : lanes) sum += x;
        if (sink > -std::numeric_limits<float>::infinity()) {
            L::store(lanes, exponential(L::less(L::splat(sink), top)));
            sum += lanes[0];
        }
        shares[q] = num ? 1.0f / sum : 0.0f;
    }
    for (int64_t d = 0; d < value_size;) {
        const auto add_up = [&](auto num_vectors) {
            constexpr int N = decltype(num_vectors)::value;
            const char * from = values + 2 * d;
            if constexpr (R > 1) {
                L::Real sums[Q][N];
                for (int q = 0; q < Q; q++) for (int v = 0; v < N; v++) sums[q][v] = L::zero();
                for (int64_t c = 0; c < shared; c += ROWS) add_values<Q, Q, N, VALUES_BFLOAT>(sums, from, value_stride, sights[0].cells + c, later(c, sights[0]), ROWS, scores + c * Q);
                for (int q = 0; q < Q; q++) for (int v = 0; v < N; v++) L::store(out[q] + d + v * ROWS, sums[q][v]);
            }
            for (int r = 0; r < R; r++) {
                L::Real sums[G][N];
                for (int g = 0; g < G; g++) for (int v = 0; v < N; v++) sums[g][v] = R > 1 ? L::from_float(out[r * G + g] + d + v * ROWS) : L::zero();
                for (int64_t c = shared; c < sights[r].num_cells; c += ROWS)
                    add_values<G, Q, N, VALUES_BFLOAT>(sums, from, value_stride, sights[r].cells + c, later(c, sights[r]), count_from(c, sights[r]), scores + c * Q + r * G * ROWS);
                for (int g = 0; g < G; g++) for (int v = 0; v < N; v++) L::store(out[r * G + g] + d + v * ROWS, L::mul(sums[g][v], L::splat(shares[r * G + g])));
            }
            d += N * ROWS;
        };
        constexpr int DEEP = deep(Q);
        if (value_size - d >= DEEP * ROWS) add_up(std::integral_constant<int, DEEP>());
        else add_up(std::integral_constant<int, 1>());
    }
}

using Attend = void (*)(const float * const *, const char *, int64_t, int64_t, const char *, int64_t, int64_t, const Scoring *, const Sight *, int64_t, float *, float * const *);

// The function for 1, 2 or 4 rows, 1 to HEADS query heads, and keys and values in bfloat16 or in half precision.
inline Attend attend_of(int rows, int heads, bool keys_bfloat, bool values_bfloat) {
#define DUODEC_ATTEND(R, G) {{attend<R, G, false, false>, attend<R, G, false, true>}, {attend<R, G, true, false>, attend<R, G, true, true>}}
#define DUODEC_ATTEND_ROWS(R) {DUODEC_ATTEND(R, 1), DUODEC_ATTEND(R, 2), DUODEC_ATTEND(R, 3), DUODEC_ATTEND(R, 4)}
    static const Attend functions[3][HEADS][2][2] = {DUODEC_ATTEND_ROWS(1), DUODEC_ATTEND_ROWS(2), DUODEC_ATTEND_ROWS(4)};
#undef DUODEC_ATTEND_ROWS
#undef DUODEC_ATTEND
    return functions[rows / 2][heads - 1][keys_bfloat][values_bfloat];
}

// --- an operation

struct Cache {  // keys or values
    const char * data;
    int64_t cell, head, stream;  // strides in bytes
    int64_t num_streams, size;   // of a head
    bool is_bfloat;
};

struct Attention {  // strides are in bytes
    int64_t num_tokens, num_streams, num_heads, num_cells, num_cached_heads;
    float scale;
    const char * queries;
    int64_t query_token, query_head, query_stream;
    Cache keys, values;
    const char * mask;  // half precision: what is added to the scores; none: a null pointer
    int64_t mask_token, mask_stream, num_masks;
    char * out;
    int64_t out_token, out_head, out_stream;
    float cap = 0;        // as of `Scoring`
    float most_bias = 0;  // of ALiBi, from which the heads' slopes follow; 0: it is not used
    const float * sinks = nullptr;  // a number a head; none: a null pointer

    Scoring scoring(int64_t head) const {
        float slope = 1;
        if (most_bias > 0) {
            int64_t power = 1;  // the largest power of two that is at most the number of heads
            while (2 * power <= num_heads) power *= 2;
            slope = head < power ? std::pow(2.0f, -most_bias * (float)(head + 1) / (float)power)
                                 : std::pow(2.0f, -most_bias / 2 * (float)(2 * (head - power) + 1) / (float)power);
        }
        return {scale, cap, slope, sinks ? sinks[head] : -std::numeric_limits<float>::infinity()};
    }
    int64_t padded_cells() const { return padded(num_cells) + Lanes::ROWS; }
    int64_t rows() const { return std::min<int64_t>(TOKENS, num_tokens); }  // that are looked at together
    // Of memory that a thread needs.
    int64_t num_bytes() const { return 4 * rows() * (padded_cells() * (2 + HEADS) + HEADS * keys.size); }
};

// What up to TOKENS successive rows see, each found out when it is asked for.
class Sights {
  public:
    Sights(const Attention & attention, char * work) : a(attention), cells((int32_t *)work), added((float *)(cells + a.rows() * a.padded_cells())) {}

    float * rest() const { return added + a.rows() * a.padded_cells(); }

    void move(int64_t to_stream, int64_t to_token) {
        if (stream == to_stream && first == to_token) return;
        stream = to_stream, first = to_token;
        std::fill_n(is_known, TOKENS, false);
        std::fill_n(like_last, TOKENS, -1);
    }

    const Sight & operator[](int64_t row) {
        if (!is_known[row]) see(row);
        return sights[row];
    }

    const Sight * from(int64_t row) const { return sights + row; }

    // How many cells these rows see alike, the first ones of each; a multiple of ROWS.
    int64_t alike(int64_t row, int64_t num) {
        int64_t least = (*this)[row].num_cells / Lanes::ROWS * Lanes::ROWS;
        for (int64_t i = row + 1; i < row + num; i++) {
            if (like_last[i] < 0) like_last[i] = compare((*this)[i - 1], (*this)[i]);
            least = std::min(least, like_last[i]);
        }
        return least;
    }

  private:
    static int64_t compare(const Sight & one, const Sight & other) {
        const int64_t end = std::min(one.num_cells, other.num_cells) - Lanes::ROWS;
        int64_t c = 0;
        while (c <= end && !memcmp(one.cells + c, other.cells + c, 4 * Lanes::ROWS)) c += Lanes::ROWS;
        return c;
    }

    void see(int64_t row) {
        int32_t * own = cells + row * a.padded_cells();
        float * own_added = added + row * a.padded_cells();
        int64_t num = 0;
        if (a.mask) {
            const uint16_t * mask = (const uint16_t *)(a.mask + (first + row) * a.mask_token + stream % a.num_masks * a.mask_stream);
            for (int64_t c = 0; c < a.num_cells; c++) {
                if (mask[c] == 0xfc00) continue;  // minus infinity
                own[num] = (int32_t)c;
                own_added[num++] = mask[c] ? half_to_float(mask[c]) : 0.0f;
            }
        } else {
            for (; num < a.num_cells; num++) { own[num] = (int32_t)num; own_added[num] = 0; }
        }
        for (int64_t c = num; c < padded(num); c++) own_added[c] = -std::numeric_limits<float>::infinity();
        sights[row] = {num, own, own_added};
        is_known[row] = true;
    }

    const Attention & a;
    int32_t * cells;
    float * added;
    int64_t stream = -1, first = -1;
    bool is_known[TOKENS] = {};
    int64_t like_last[TOKENS] = {};  // cells that a row and the one before see alike
    Sight sights[TOKENS];
};

// A thread's share of an operation; `work` has num_bytes().
inline void compute_attention(const Attention & a, int64_t thread, int64_t num_threads, char * work) {
    // enough parts for all threads, and of each the heads that share keys and values
    const int64_t group = a.num_heads / a.num_cached_heads;
    int64_t together = std::min<int64_t>(HEADS, group);
    while (together > 1 && a.num_tokens * a.num_streams * (a.num_heads / together) < 2 * num_threads) together--;
    const int64_t parts_a_group = (group + together - 1) / together, parts = a.num_cached_heads * parts_a_group, of_stream = a.num_tokens * parts;
    Sights sights(a, work);
    const int64_t all = of_stream * a.num_streams, end = all * (thread + 1) / num_threads;
    for (int64_t i = all * thread / num_threads; i < end;) {  // streams, of each some rows, of them parts, of each a row
        const int64_t stream = i / of_stream, first = i % of_stream / (TOKENS * parts) * TOKENS, size = std::min<int64_t>(TOKENS, a.num_tokens - first);
        const int64_t place = i % of_stream - first * parts, part = place / size, row = place % size;
        const int64_t shared = part / parts_a_group, from = part % parts_a_group;
        const int64_t head = shared * group + from * group / parts_a_group, heads = shared * group + (from + 1) * group / parts_a_group - head;
        const int64_t left = std::min(size - row, end - i), rows = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        sights.move(stream, first);
        const int64_t alike = sights.alike(row, rows);
        const float * queries[TOKENS * HEADS];
        float * out[TOKENS * HEADS];
        Scoring scorings[HEADS];
        for (int64_t h = 0; h < heads; h++) scorings[h] = a.scoring(head + h);
        for (int64_t q = 0; q < rows * heads; q++) {
            const int64_t token = first + row + q / heads, h = head + q % heads;
            queries[q] = (const float *)(a.queries + token * a.query_token + h * a.query_head + stream * a.query_stream);
            out[q] = (float *)(a.out + token * a.out_token + h * a.out_head + stream * a.out_stream);
        }
        const auto of = [&](const Cache & cache) { return cache.data + shared * cache.head + stream / (a.num_streams / cache.num_streams) * cache.stream; };
        attend_of((int)rows, (int)heads, a.keys.is_bfloat, a.values.is_bfloat)(queries, of(a.keys), a.keys.cell, a.keys.size, of(a.values), a.values.cell,
                                                                         a.values.size, scorings, sights.from(row), alike, sights.rest(), out);
        i += rows;
    }
}

}  // namespace duodec
