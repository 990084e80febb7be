// The largest of each block of a row of logits: the one pass over all of it.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

// The loops over whole rows, for each width of vectors. Which one runs changes no bit: sums are of
// lanes of their own, and no product and sum is fused.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define FOR_EACH_WIDTH __attribute__((target_clones("default", "avx2")))
#else
#define FOR_EACH_WIDTH
#endif

namespace {

constexpr int64_t BLOCK = 64, LANES = 8;
constexpr float NONE = -std::numeric_limits<float>::infinity();

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef float Half __attribute__((vector_size(LANES / 2 * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));

// Of each whole block. Returns whether a number is NaN.
FOR_EACH_WIDTH bool find_maxima(const float *row, int64_t num_blocks, float *maxima) {
    Integers odd = {};
    for (int64_t block = 0; block < num_blocks; ++block) {
        Floats most = Floats{} + NONE, x;
        for (int j = 0; j < BLOCK; j += LANES, row += LANES) {
            std::memcpy(&x, row, sizeof x);
            odd |= x != x;
            most = x > most ? x : most;
        }
        Half low, high;
        std::memcpy(&low, &most, sizeof low);
        std::memcpy(&high, reinterpret_cast<char *>(&most) + sizeof low, sizeof high);
        low = low > high ? low : high;
        maxima[block] = std::max(std::max(low[0], low[1]), std::max(low[2], low[3]));
    }
    int32_t any = 0;
    for (int i = 0; i < LANES; ++i) any |= odd[i];
    return any;
}

// Kept between rows, so that none allocates.
struct Maxima {
    std::vector<float> of_block;  // whole ones
    float most;                   // of the row
    bool has_nan;

    void find(const float *row, int64_t num) {
        of_block.resize(num / BLOCK);
        has_nan = find_maxima(row, num / BLOCK, of_block.data());
        most = NONE;
        for (int64_t i = num / BLOCK * BLOCK; i < num; ++i) {
            has_nan |= row[i] != row[i];
            most = std::max(most, row[i]);
        }
        for (float one : of_block) most = std::max(most, one);
    }

    // The k-th largest of them: no more than the k-th largest of the row.
    float largest(int64_t k) {
        if (k < 1 || k > int64_t(of_block.size())) return NONE;
        sorted.resize(k);
        std::partial_sort_copy(of_block.begin(), of_block.end(), sorted.begin(), sorted.end(),
                               std::greater<float>());
        return sorted[k - 1];
    }

  private:
    std::vector<float> sorted;
};

}  // namespace
