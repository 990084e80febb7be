// Rank the tokens of a row of logits: the best of them, and how likely each is.
// `core/rows.py` and `core/sampling/sampler.py` say what is ranked; `tests/fakes/oracles.py` finds
// the same tokens.

#include <algorithm>
#include <cmath>
#include <vector>

#include "maxima.h"
#include "noise.h"

namespace {

constexpr float LEAST = -30.0f;  // what is further from the best counts for nothing

// exp(x) for x <= 0, as `core.rows.exp_mass`; by reference: no vector is passed between functions.
inline __attribute__((always_inline)) void add_exponential(const Floats &x, Floats &sum) {
    const Floats t = (x > LEAST ? x : LEAST + Floats{}) * 1.44269504f;
    const Integers n = __builtin_convertvector(t, Integers) - 1;  // f is 1 at most
    const Floats f = t - __builtin_convertvector(n, Floats);
    Floats y = f * 0.013555746f;
    y = (y + 0.052032368f) * f;
    y = (y + 0.24137977f) * f;
    y = (y + 0.69303212f) * f;
    y += 1.0f;
    sum += (Floats)((Integers)y + (n << 23));
}

// The sum of exp(x - most) over whole blocks, of which `maxima` holds the largest.
FOR_EACH_WIDTH double sum_of_exponentials(const float *row, int64_t num_blocks, float most,
                                          const float *maxima) {
    Floats sums = {}, low = {};  // what was added and did not fit
    for (int64_t block = 0; block < num_blocks; ++block, row += BLOCK) {
        if (maxima[block] - most < LEAST) continue;
        Floats lanes = {}, x;
        for (int j = 0; j < BLOCK; j += LANES) {
            std::memcpy(&x, row + j, sizeof x);
            x -= most;
            add_exponential(x, lanes);
        }
        lanes -= low;
        const Floats sum = sums + lanes;
        low = (sum - sums) - lanes;
        sums = sum;
    }
    double sum = 0.0;
    for (int i = 0; i < LANES; ++i) sum += sums[i];
    return sum;
}

struct Ranked {
    float score;
    int64_t token;

    bool operator<(const Ranked &other) const {  // best first, the lowest token among equals
        return score != other.score ? score > other.score : token < other.token;
    }
};

class Ranking {
  public:
    // The k best. Returns false for a row that has a NaN.
    bool find(const float *row, int64_t num, int64_t k) {
        maxima.find(row, num);
        if (maxima.has_nan) return false;
        const int64_t num_blocks = num / BLOCK, whole = num_blocks * BLOCK;

        const float bound = maxima.largest(k);
        best.clear();
        const auto keep = [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
                if (row[i] >= bound) best.push_back({row[i], i});
        };
        for (int64_t block = 0; block < num_blocks; ++block)
            if (maxima.of_block[block] >= bound) keep(block * BLOCK, (block + 1) * BLOCK);
        keep(whole, num);
        const int64_t count = std::min<int64_t>(k, best.size());
        if (count < int64_t(best.size()))
            std::nth_element(best.begin(), best.begin() + count, best.end());
        best.resize(count);
        std::sort(best.begin(), best.end());
        return true;
    }

    // The same. Returns false also for a row whose largest is not finite.
    bool rank(const float *row, int64_t num, int64_t k) {
        return find(row, num, k) && std::isfinite(maxima.most);
    }

    double normaliser(const float *row, int64_t num) const {
        const float most = maxima.most;
        double sum = sum_of_exponentials(row, num / BLOCK, most, maxima.of_block.data());
        for (int64_t i = num / BLOCK * BLOCK; i < num; ++i) sum += std::exp(row[i] - most);
        return most + std::log(sum);
    }

    // Tokens and the softmax of the scores of the best of them, of which the first k are told.
    int64_t tell(int64_t k, int64_t *tokens, double *confidences) const {
        const auto weight = [&](const Ranked &one) {
            return std::exp(double(one.score) - double(best[0].score));
        };
        double sum = 0.0;
        for (const Ranked &one : best) sum += weight(one);
        const int64_t count = std::min<int64_t>(k, best.size());
        for (int64_t i = 0; i < count; ++i) {
            tokens[i] = best[i].token;
            confidences[i] = weight(best[i]) / sum;
        }
        return count;
    }

    std::vector<Ranked> best;

  private:
    Maxima maxima;
};

}  // namespace

extern "C" {

// The k largest, largest first, the lowest token first among equals. Returns how many; -1 for a row
// that has a NaN.
int64_t duodec_top(const float *row, int64_t num, int64_t k, int64_t *tokens) {
    thread_local Ranking ranking;
    if (!ranking.find(row, num, k)) return -1;
    int64_t count = 0;
    for (const Ranked &one : ranking.best) tokens[count++] = one.token;
    return count;
}

// The best two, as above, and their scores. Returns how many; -1 for a row that has a NaN.
int64_t duodec_best_two(const float *row, int64_t num, int64_t *tokens, float *scores) {
    thread_local Ranking ranking;
    if (!ranking.find(row, num, 2)) return -1;
    int64_t count = 0;
    for (const Ranked &one : ranking.best) {
        tokens[count] = one.token;
        scores[count++] = one.score;
    }
    return count;
}

// The k likeliest tokens, best first, with their probabilities. Returns how many; -1 for logits
// that are not finite.
int64_t duodec_likeliest(const float *row, int64_t num, int64_t k, int64_t *tokens,
                         double *confidences) {
    thread_local Ranking ranking;
    if (!ranking.rank(row, num, k)) return -1;
    const double normaliser = ranking.normaliser(row, num);
    int64_t count = 0;
    for (const Ranked &one : ranking.best) {
        tokens[count] = one.token;
        confidences[count++] = std::exp(one.score - normaliser);
    }
    return count;
}

// The k likeliest tokens, best first, with the softmax of their logits. Returns as above.
int64_t duodec_candidates(const float *row, int64_t num, int64_t k, int64_t *tokens,
                          double *confidences) {
    thread_local Ranking ranking;
    if (!ranking.rank(row, num, k)) return -1;
    return ranking.tell(k, tokens, confidences);
}

// The k best of `head` likeliest tokens by logit over temperature plus noise, and the softmax of
// these scores.
int64_t duodec_noisy(const float *row, int64_t num, int64_t k, int64_t head, float factor,
                     uint64_t key, int64_t *tokens, double *confidences) {
    thread_local Ranking ranking;
    if (!ranking.rank(row, num, head)) return -1;
    const bool is_contest = ranking.best.size() > 1;
    for (Ranked &one : ranking.best) {
        one.score *= factor;
        if (is_contest) one.score += gumbel(bits_of(uint32_t(one.token), key));
    }
    std::sort(ranking.best.begin(), ranking.best.end());
    return ranking.tell(k, tokens, confidences);
}
}
