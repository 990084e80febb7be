// The gated delta rule of recurrent layers (Qwen3-Next, Qwen3.5): each head has a matrix, which every token lets decay, corrects at
// its key, and reads at its query.
//
// Lines of the matrix do not depend on each other. Some of them stay in the innermost cache while all tokens pass, and where a state
// is kept for a rollback they are written there in passing. A token is computed by the same sums whatever tokens come with it.
#pragma once
#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace duodec {

// Rows by token, head and stream; strides in bytes. Heads, and streams, may share them.
struct RowsByHead {
    const char * data;
    int64_t token, head, stream;
    int64_t num_heads, num_streams;

    const float * at(int64_t t, int64_t h, int64_t s, int64_t of_streams) const {
        return (const float *)(data + t * token + h % num_heads * head + s / (of_streams / num_streams) * stream);
    }
};

struct DeltaRule {
    int64_t num_tokens, num_streams, num_heads;
    int64_t size;  // of a row of a head, and of each side of its matrix
    RowsByHead queries, keys, values;
    RowsByHead decays, rates;  // a number a token: the logarithm of what is left of the matrix, and how far it is corrected
    const float * states;      // (streams, heads, size, size)
    int64_t state_stream;      // numbers between two streams
    float * out;               // (streams, tokens, heads, size)
    float * kept;              // (states, streams, heads, size, size), after the last token first
    int64_t num_kept;

    int64_t num_bytes() const { return (int64_t)sizeof(float) * Lanes::ROWS * size; }  // that a thread works in
};

// Computes ROWS lines of one matrix, from line `first` on.
inline void pass_tokens(const DeltaRule & d, int64_t stream, int64_t head, int64_t first, float * work) {
    using L = Lanes;
    constexpr int ROWS = L::ROWS;
    const int64_t size = d.size, matrix = size * size, at = first * size;
    const L::Real scale = L::splat(1.0f / std::sqrt((float)size));
    const float * from = d.states + stream * d.state_stream + head * matrix + at;
    for (int64_t t = 0; t < d.num_tokens; t++) {
        const float * q = d.queries.at(t, head, stream, d.num_streams), * k = d.keys.at(t, head, stream, d.num_streams);
        const float * v = d.values.at(t, head, stream, d.num_streams);
        const L::Real decay = L::splat(std::exp(*d.decays.at(t, head, stream, d.num_streams)));
        const L::Real rate = L::splat(*d.rates.at(t, head, stream, d.num_streams));
        const int64_t age = d.num_tokens - 1 - t;
        float * to = age < d.num_kept ? d.kept + ((age * d.num_streams + stream) * d.num_heads + head) * matrix + at : work;

        L::Real parts[ROWS];
        for (L::Real & part : parts) part = L::zero();
        for (int64_t i = 0; i < size; i += ROWS) {
            const L::Real key = L::mul(decay, L::from_float(k + i));
            for (int r = 0; r < ROWS; r++) parts[r] = L::add_product(parts[r], L::from_float(from + r * size + i), key);
        }
        float corrections[ROWS];
        L::store(corrections, L::mul(L::less(L::from_float(v + first), L::sums(parts)), rate));

        for (L::Real & part : parts) part = L::zero();
        for (int64_t i = 0; i < size; i += ROWS) {
            const L::Real key = L::from_float(k + i), query = L::from_float(q + i);
            for (int r = 0; r < ROWS; r++) {
                const L::Real line = L::add_product(L::mul(decay, L::from_float(from + r * size + i)), L::splat(corrections[r]), key);
                L::store(to + r * size + i, line);
                parts[r] = L::add_product(parts[r], line, query);
            }
        }
        L::store(d.out + ((stream * d.num_tokens + t) * d.num_heads + head) * size + first, L::mul(L::sums(parts), scale));
        from = to;
    }
}

// Computes this thread's part of all lines; `work` has `num_bytes`.
inline void compute_delta_rule(const DeltaRule & d, int64_t thread, int64_t num_threads, void * work) {
    const int64_t groups = d.size / Lanes::ROWS, num = d.num_streams * d.num_heads * groups;
    for (int64_t i = num * thread / num_threads; i < num * (thread + 1) / num_threads; i++) {
        const int64_t matrix = i / groups;
        pass_tokens(d, matrix / d.num_heads, matrix % d.num_heads, i % groups * Lanes::ROWS, (float *)work);
    }
}

}  // namespace duodec
