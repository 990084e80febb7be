// Draw from a row: the two best of score and noise, whose bits are those of core/sampling/noise.py.
//
// A token that is far from the best needs so much noise that few of all 2**32 integers make it.
// Since a key maps tokens to integers one to one, these few are mapped back: which tokens are they?
// Of the others, blocks of tokens are looked at: most have too little noise, which their integers
// show without a logarithm.

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "maxima.h"
#include "noise.h"

namespace {

constexpr float MOST = 22.8740f;               // of noise
constexpr float RARE = 5.0f, RAREST = 10.0f;   // one token in 149 has more noise, one in 22,000
constexpr int64_t NUM_FIRST = 8;               // blocks, those with the largest logits
constexpr float ROUNDING = 1.0f / (1 << 21);   // of a bound, and of the sums it is compared with

uint32_t least_bits(double noise) {  // of a token that has so much
    return uint32_t(std::exp(-std::exp(-(noise - 0.01))) * 4294967296.0);
}

struct Best {
    int64_t tokens[2];
    float sums[2] = {NONE, NONE};

    static bool is_before(float a, int64_t token, float b, int64_t other) {
        return a > b || (a == b && token < other);
    }

    void add(int64_t token, float sum) {
        if (!is_before(sum, token, sums[1], tokens[1])) return;
        const int place = is_before(sum, token, sums[0], tokens[0]) ? 0 : 1;
        if (place == 0) sums[1] = sums[0], tokens[1] = tokens[0];
        sums[place] = sum, tokens[place] = token;
    }

    // What a token must reach, and a little less.
    float bound() const { return sums[1] - std::fabs(sums[1]) * ROUNDING; }
};

// The integers that give more noise than so much, by their number.
uint64_t num_with(double noise) { return (uint64_t(1) << 32) - least_bits(noise); }

uint32_t unmixed(uint32_t z, uint32_t half) {
    z ^= z >> 16;
    z *= 0x43021123u;
    z ^= z >> 15 ^ z >> 30;
    z *= 0x1d69e2a5u;
    return z ^ z >> 16 ^ half;
}

// The token of which `bits_of` makes these bits.
uint32_t token_of(uint32_t bits, uint64_t key) {
    return unmixed(unmixed(bits, uint32_t(key >> 32)), uint32_t(key)) * 0x0e8b2f51u;
}

// The tokens of a block of integers, and whether any is below `num`.
FOR_EACH_WIDTH bool find_tokens(uint32_t bits, uint64_t key, uint32_t num, uint32_t *tokens) {
    uint32_t any = 0;
    for (uint32_t i = 0; i < BLOCK; ++i) {
        tokens[i] = token_of(bits + i, key);
        any |= tokens[i] < num;
    }
    return any;
}

// Which of a block may reach the bound with their own noise, and whether any may.
FOR_EACH_WIDTH bool may_reach(const float *scores, const uint32_t *tokens, uint64_t key,
                              float bound, uint32_t rare, uint32_t rarest, uint32_t *able) {
    uint32_t any = 0;
    for (int64_t i = 0; i < BLOCK; ++i) {
        const float needed = bound - scores[i];
        const uint32_t least = needed < RARE ? 0 : needed < RAREST ? rare : rarest;
        able[i] = uint32_t(bits_of(tokens[i], key) >= least) & uint32_t(needed <= MOST);
        any |= able[i];
    }
    return any;
}

// How many blocks have a score, a logit times `factor`, of so much.
FOR_EACH_WIDTH int32_t count_near(const float *maxima, int64_t num, float factor, float least) {
    int32_t count = 0;
    for (int64_t i = 0; i < num; ++i) count += maxima[i] * factor >= least;
    return count;
}

// The noise up to which it is cheapest to look at tokens block by block.
float cheapest_far(const std::vector<float> &maxima, float bound, float factor) {
    const int64_t num = int64_t(maxima.size());
    float cheapest = MOST;
    double least = double(num);
    for (float far : {16.0f, 14.0f, 13.0f, 12.0f, 11.0f, 10.0f}) {
        const double num_mapped = double(num_with(far)) / BLOCK;
        if (num_mapped > least) break;
        const double cost = count_near(maxima.data(), num, factor, bound - far) + num_mapped;
        if (cost < least) least = cost, cheapest = far;
    }
    return cheapest;
}

}  // namespace

extern "C" {

// Of `num` logits, two or more, the best two of logit times `factor` plus noise, and these sums.
// `tokens` ascend; a null pointer: they are 0, 1, ... Returns 0 where a logit is NaN.
int64_t duodec_draw(const float *logits, const int64_t *tokens, int64_t num, float factor,
                    uint64_t key, int64_t *best_tokens, float *best_sums) {
    static const uint32_t rare = least_bits(RARE), rarest = least_bits(RAREST);
    thread_local Maxima maxima;
    maxima.find(logits, num);
    auto &of_block = maxima.of_block;
    const int64_t num_whole = int64_t(of_block.size());
    const auto token_at = [&](int64_t i) { return tokens ? tokens[i] : i; };
    Best best{{token_at(0), token_at(1)}};
    float bound = NONE, far = MOST;  // needed beyond the first bound: these tokens are mapped back
    const auto look_at = [&](int64_t begin) {
        const int64_t size = std::min(BLOCK, num - begin);
        float scores[BLOCK];
        uint32_t named[BLOCK], able[BLOCK];
        for (int64_t i = 0; i < BLOCK; ++i) named[i] = uint32_t(begin + i);
        if (tokens) std::copy_n(tokens + begin, size, named);
        for (int64_t i = 0; i < size; ++i) scores[i] = logits[begin + i] * factor;
        std::fill(scores + size, scores + BLOCK, NONE);
        if (!may_reach(scores, named, key, best.bound(), rare, rarest, able)) return;
        for (int64_t i = 0; i < size; ++i)
            if (able[i] && bound - scores[i] <= far)
                best.add(token_at(begin + i), scores[i] + gumbel(bits_of(named[i], key)));
    };
    const float large = maxima.largest(std::min(NUM_FIRST, num_whole));
    for (int64_t block = 0; block < num_whole; ++block)
        if (of_block[block] >= large) {
            look_at(block * BLOCK);
            of_block[block] = NONE;  // all of it was looked at
        }
    bound = best.bound();  // what others have to reach is high now
    if (!tokens && bound > NONE) far = cheapest_far(of_block, bound, factor);
    for (int64_t block = 0; block < num_whole; ++block)
        if (bound - of_block[block] * factor <= far) look_at(block * BLOCK);
    if (num_whole * BLOCK < num) look_at(num_whole * BLOCK);
    if (far < MOST) {
        uint32_t named[BLOCK];
        for (uint64_t bits = least_bits(far) / BLOCK * BLOCK; bits >> 32 == 0; bits += BLOCK) {
            if (!find_tokens(uint32_t(bits), key, uint32_t(num), named)) continue;
            for (int64_t i = 0; i < BLOCK; ++i) {
                const int64_t token = named[i], block = token / BLOCK;
                if (token >= num || (block < num_whole && of_block[block] == NONE)) continue;
                const float score = logits[token] * factor;
                if (bound - score > far) best.add(token, score + gumbel(uint32_t(bits + i)));
            }
        }
    }
    std::copy_n(best.tokens, 2, best_tokens);
    std::copy_n(best.sums, 2, best_sums);
    return !maxima.has_nan;
}
}
