// Attends as llama.cpp's backend does, for the tests: reads cases from stdin, writes what is found to stdout.
//
// A case is eleven int64 (rows, streams, query heads, heads of the cache, cells, sizes of a key and of a value, whether keys and
// values are in bfloat16, number of threads, whether there are sinks), two float32 (soft cap, greatest bias of ALiBi), a float32 a
// query head where there are sinks, then the queries as float32, (streams, rows, heads, size), keys and values in 16
// bits, (streams, cells, heads, size), and the mask in half precision, (streams, rows, cells), which is left out where it is zero. The
// scores are multiplied by 1 / the root of a key's size. The answer is float32, (streams, rows, heads, size of a value). Without cases on stdin, the name of
// the instruction set is printed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "attention.h"

using namespace duodec;

// Exactly as many bytes as are needed, so that a sanitizer sees the first one beyond; none is zero before it is written.
template <class T> static std::unique_ptr<T[]> exactly(int64_t num) {
    std::unique_ptr<T[]> made(new T[num]);
    memset((void *)made.get(), 0xff, num * sizeof(T));
    return made;
}

template <class T> static bool read(const std::unique_ptr<T[]> & to, int64_t num) { return fread(to.get(), sizeof(T), num, stdin) == (size_t)num; }

int main() {
    int64_t head[11], num_cases = 0;
    float bends[2];
    for (; fread(head, sizeof head, 1, stdin) == 1; num_cases++) {
        const auto [tokens, streams, heads, cached, cells, key_size, value_size, is_key_bfloat, is_value_bfloat, threads, has_sinks] = head;
        const int64_t num_queries = streams * tokens * heads, num_cached = streams * cells * cached;
        const auto queries = exactly<float>(num_queries * key_size), out = exactly<float>(num_queries * value_size);
        const auto keys = exactly<uint16_t>(num_cached * key_size), values = exactly<uint16_t>(num_cached * value_size), mask = exactly<uint16_t>(streams * tokens * cells);
        const auto sinks = exactly<float>(heads);
        if (fread(bends, sizeof bends, 1, stdin) != 1 || (has_sinks && !read(sinks, heads)) || !read(queries, num_queries * key_size) || !read(keys, num_cached * key_size) || !read(values, num_cached * value_size) ||
            !read(mask, streams * tokens * cells)) {
            fprintf(stderr, "attention_probe: the case ends early\n");
            return 2;
        }
        const auto cache = [&](const uint16_t * data, int64_t size, int64_t is_bfloat) {
            return Cache{(const char *)data, 2 * cached * size, 2 * size, 2 * cells * cached * size, streams, size, is_bfloat != 0};
        };
        Attention a = {tokens, streams, heads, cells, cached, 1 / std::sqrt((float)key_size)};
        a.queries = (const char *)queries.get(), a.query_head = 4 * key_size, a.query_token = heads * a.query_head, a.query_stream = tokens * a.query_token;
        a.keys = cache(keys.get(), key_size, is_key_bfloat), a.values = cache(values.get(), value_size, is_value_bfloat);
        a.cap = bends[0], a.most_bias = bends[1];
        if (has_sinks) a.sinks = sinks.get();
        const bool is_masked = std::any_of(mask.get(), mask.get() + streams * tokens * cells, [](uint16_t x) { return x != 0; });
        if (is_masked) a.mask = (const char *)mask.get(), a.mask_token = 2 * cells, a.mask_stream = tokens * a.mask_token, a.num_masks = streams;
        a.out = (char *)out.get(), a.out_head = 4 * value_size, a.out_token = heads * a.out_head, a.out_stream = tokens * a.out_token;
        for (int64_t thread = 0; thread < threads; thread++) {
            const auto work = exactly<char>(a.num_bytes());
            compute_attention(a, thread, threads, work.get());
        }
        fwrite(out.get(), sizeof(float), num_queries * value_size, stdout);
    }
    if (!num_cases) printf("%s\n", Lanes::NAME);
}
