// In how many streams weights lie: as this processor reads them faster, which is measured once.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "memory.h"
#include "weights.h"

namespace duodec {

// Removes memory from all caches. False where this cannot be done.
inline bool flush(uint8_t * begin, size_t size) {
#if defined(__x86_64__)
    for (size_t i = 0; i < size; i += LINE) {
#if defined(__CLFLUSHOPT__)
        _mm_clflushopt(begin + i);
#else
        _mm_clflush(begin + i);
#endif
    }
    _mm_mfence();
    return true;
#else
    (void)begin, (void)size;
    return false;
#endif
}

// A Zen 5 reads one stream in two thirds of the time of four; a Xeon multiplied eight rows faster with four than with one
// (docs/measurements.md). Takes some 10 ms; the environment's DUODEC_STREAMS, 1 or 4, decides without.
inline int fastest_num_streams() {
    constexpr int64_t rows = 8192, columns = 2048;  // 9 MB
    constexpr int turns = 5;
    constexpr double clearly = 1.1;
    if (const char * given = getenv("DUODEC_STREAMS")) return atoi(given) == 1 ? 1 : MOST_STREAMS;
    const int before = num_streams;
    const Kernel & kernel = *kernel_of(Q4_0);
    const size_t size = kernel.matrix_bytes(rows, columns) + LINE;
    const std::unique_ptr<uint8_t[]> memory(new uint8_t[size + LINE]);
    uint8_t * weights = (uint8_t *)(((uintptr_t)memory.get() + LINE - 1) / LINE * LINE);
    use_huge_pages(weights, size);
    memset(weights, 0, size);
    std::vector<float> x(columns), products(rows);
    std::vector<uint8_t> group(kernel.row_bytes(columns) + LINE);
    kernel.put_row(group.data(), 0, 1, x.data(), 0, columns);
    float * out[] = {products.data()};
    double least_s[2] = {1e9, 1e9};
    for (int turn = 0; turn < 2 * turns && flush(weights, size); turn++) {
        num_streams = turn % 2 ? 1 : MOST_STREAMS;
        const auto begin = std::chrono::steady_clock::now();
        multiply_tiles(kernel, weights, rows, nullptr, columns, 0, num_tiles(rows), group.data(), 1, out);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        least_s[turn % 2] = std::min(least_s[turn % 2], seconds.count());
    }
    num_streams = before;
    return clearly * least_s[1] < least_s[0] ? 1 : MOST_STREAMS;
}

}  // namespace duodec
