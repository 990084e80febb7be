// Applies the delta rule as llama.cpp's backend does, for the tests: reads cases from stdin, writes what is found to stdout.
//
// A case is seven int64 (streams, tokens, heads, heads of queries and keys, size, states that are kept, number of threads), then as
// float32 queries and keys, (streams, tokens, their heads, size), values, (streams, tokens, heads, size), decays and rates, (streams,
// tokens, heads), and states, (streams, heads, size, size). The answer is float32: rows like the values, then the states that are
// kept, (states, streams, heads, size, size), of which those before the first token are 7. Without cases on stdin, the name of the
// instruction set is printed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "delta.h"

using namespace duodec;

// Exactly as many numbers as are needed, so that a sanitizer sees the first one beyond.
static std::unique_ptr<float[]> exactly(int64_t num) { return std::unique_ptr<float[]>(new float[num]); }

static std::unique_ptr<float[]> read(int64_t num) {
    auto to = exactly(num);
    if (fread(to.get(), sizeof(float), num, stdin) == (size_t)num) return to;
    fprintf(stderr, "delta_probe: the case ends early\n");
    exit(2);
}

int main() {
    int64_t head[7], num_cases = 0;
    for (; fread(head, sizeof head, 1, stdin) == 1; num_cases++) {
        const auto [streams, tokens, heads, shared, size, kept, threads] = head;
        const auto queries = read(streams * tokens * shared * size), keys = read(streams * tokens * shared * size);
        const auto values = read(streams * tokens * heads * size), decays = read(streams * tokens * heads), rates = read(streams * tokens * heads);
        const auto states = read(streams * heads * size * size);
        const int64_t num_rows = streams * tokens * heads * size, num_states = kept * streams * heads * size * size;
        const auto out = exactly(num_rows), after = exactly(num_states);
        std::fill_n(after.get(), num_states, 7.0f);
        const auto rows = [&](const std::unique_ptr<float[]> & data, int64_t num_heads, int64_t width) {
            const int64_t row = 4 * width;
            return RowsByHead{(const char *)data.get(), num_heads * row, row, tokens * num_heads * row, num_heads, streams};
        };
        DeltaRule d = {tokens, streams, heads, size};
        d.queries = rows(queries, shared, size), d.keys = rows(keys, shared, size), d.values = rows(values, heads, size);
        d.decays = rows(decays, heads, 1), d.rates = rows(rates, heads, 1);
        d.states = states.get(), d.state_stream = heads * size * size, d.out = out.get(), d.kept = after.get(), d.num_kept = kept;
        for (int64_t thread = 0; thread < threads; thread++) {
            const auto work = exactly(d.num_bytes() / 4);
            compute_delta_rule(d, thread, threads, work.get());
        }
        fwrite(out.get(), sizeof(float), num_rows, stdout);
        fwrite(after.get(), sizeof(float), num_states, stdout);
    }
    if (!num_cases) printf("%s\n", Lanes::NAME);
}
