// Draw from a row: the two best of score and noise, whose bits are those of core/sampling/noise.py.
//
// Most tokens cannot be among them whatever their noise is, and of the others most have too little
// of it, which their integers show without a logarithm. So a block is looked at as a whole, and the
// noise of a few tokens is computed.

#include "noise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

namespace {

constexpr int64_t BLOCK = 256;
constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr float MOST = 22.8740f;               // of noise
constexpr float RARE = 5.0f, RAREST = 10.0f;   // one token in 149 has more noise, one in 22,000
constexpr float ROUNDING = 1.0f / (1 << 21);   // of a bound, and of the sums it is compared with

uint32_t least_bits(double noise) {  // of a token that has so much
    return uint32_t(std::exp(-std::exp(-(noise - 0.01))) * 4294967296.0);
}

struct Best {
    int64_t tokens[2];
    float sums[2] = {NEVER, NEVER};

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

// Whether any may reach the bound with the most noise that there is.
FOR_EACH_CPU bool any_near(const float *scores, float bound) {
    int32_t any = 0;
    for (int64_t i = 0; i < BLOCK; ++i) any |= -int32_t(bound - scores[i] <= MOST);
    return any;
}

// Which may reach the bound with their own noise, and whether any may.
FOR_EACH_CPU bool may_reach(const float *scores, const uint32_t *tokens, uint64_t key, float bound,
                            uint32_t rare, uint32_t rarest, uint32_t *able) {
    uint32_t any = 0;
    for (int64_t i = 0; i < BLOCK; ++i) {
        const float needed = bound - scores[i];
        const uint32_t least = needed < RARE ? 0 : needed < RAREST ? rare : rarest;
        able[i] = uint32_t(bits_of(tokens[i], key) >= least) & uint32_t(needed <= MOST);
        any |= able[i];
    }
    return any;
}

}  // namespace

extern "C" {

// Of `num` scores, two or more, the best two with their noise. `tokens` ascend; `first` is the place
// of the greatest score.
void duodec_draw(const float *scores, const int64_t *tokens, int64_t num, int64_t first,
                 uint64_t key, int64_t *best_tokens, float *best_sums) {
    static const uint32_t rare = least_bits(RARE), rarest = least_bits(RAREST);
    Best best{{tokens[0], tokens[1]}};
    float own[BLOCK];
    uint32_t named[BLOCK], able[BLOCK];
    const auto look_at = [&](int64_t begin) {
        const int64_t size = std::min(BLOCK, num - begin);
        std::copy_n(scores + begin, size, own);
        std::fill(own + size, own + BLOCK, NEVER);
        const float bound = best.bound();
        if (!any_near(own, bound)) return;
        for (int64_t i = 0; i < size; ++i) named[i] = uint32_t(tokens[begin + i]);
        if (!may_reach(own, named, key, bound, rare, rarest, able)) return;
        for (int64_t i = 0; i < size; ++i)
            if (able[i]) best.add(tokens[begin + i], own[i] + gumbel(bits_of(named[i], key)));
    };
    first -= first % BLOCK;
    look_at(first);  // then what others have to reach is high
    for (int64_t begin = 0; begin < num; begin += BLOCK)
        if (begin != first) look_at(begin);
    std::copy_n(best.tokens, 2, best_tokens);
    std::copy_n(best.sums, 2, best_sums);
}

// The noise of a few tokens.
void duodec_gumbel(const int32_t *tokens, int64_t num, uint64_t key, float *noise) {
    for (int64_t i = 0; i < num; ++i) noise[i] = gumbel(bits_of(uint32_t(tokens[i]), key));
}
}
