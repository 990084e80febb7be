// Weights of a draft in fewer bits than its file has: IQ4_NL, whose codes of four bits stand for 16 values that lie closer near 0,
// or Q4_0, whose values have equal steps, where a processor multiplies it in half the time.
#pragma once
#include <cmath>
#include <type_traits>

#include "formats.h"
#include "lanes.h"

namespace duodec {

using Small = std::conditional_t<Lanes::IS_SLOW_WITH_BYTES, OfQ4_0, OfIQ4_NL>;

// What a code stands for, before its scale.
constexpr int value_of(int code) { return Small::table == Table::NORMAL ? NORMAL_CODES[code] - 128 : code - Small::offset; }

// The sum of a lane's numbers.
inline float total(Lanes::Real a) {
    float each[Lanes::ROWS];
    Lanes::store(each, a);
    for (int half = Lanes::ROWS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) each[i] += each[half + i];
    return each[0];
}

// The value that is nearest to each number, or its code.
template <bool IS_CODE> Lanes::Real nearest(Lanes::Real x) {
    using L = Lanes;
    L::Real found[3] = {L::splat(IS_CODE ? 0 : value_of(0)), L::zero(), L::zero()};  // sums that do not wait for each other
#pragma GCC unroll 15
    for (int c = 0; c < 15; c++) {  // numbers beyond the middle of two values take the step to the second
        const int here = value_of(c), next = value_of(c + 1);
        const L::Real step = L::where_greater(x, L::splat((here + next) / 2.0f), L::splat(IS_CODE ? 1 : next - here));
        found[c % 3] = L::sum(found[c % 3], step);
    }
    return L::sum(L::sum(found[0], found[1]), found[2]);
}

// Rounds a block of 32 weights. Returns its scale, of least squared error where large weights count more; of three ways to lay the
// values over the weights the best is taken.
inline float round_block(const float * x, uint8_t * codes) {
    using L = Lanes;
    float most = 0, least = 0;
    for (int i = 0; i < BLOCK; i += L::ROWS) {
        const L::Real a = L::from_float(x + i);
        most = std::max(most, L::greatest(a));
        least = std::min(least, -L::greatest(L::less(L::zero(), a)));
    }
    const float largest = most > -least ? most : least;
    float scale = 0, gain = 0, best = 0;
    for (const float share : {127.0f, 123.0f, 131.0f}) {  // of the first value: what the largest weight becomes
        const float end = value_of(0) * share / 127, inverse = std::abs(largest) > 1e-20f ? end / largest : 0;
        L::Real products = L::zero(), squares = L::zero();
        for (int i = 0; i < BLOCK; i += L::ROWS) {
            const L::Real a = L::from_float(x + i), value = nearest<false>(L::mul(a, L::splat(inverse)));
            const L::Real weighted = L::mul(L::mul(a, a), value);
            products = L::add_product(products, weighted, a);
            squares = L::add_product(squares, weighted, value);
        }
        const float product = total(products), square = total(squares);
        if (square > 0 && product * product > gain * square) {
            scale = product / square;
            gain = scale * product;
            best = inverse;
        }
    }
    float found[BLOCK];
    for (int i = 0; i < BLOCK; i += L::ROWS) L::store(found + i, nearest<true>(L::mul(L::from_float(x + i), L::splat(best))));
    for (int i = 0; i < BLOCK / 2; i++) codes[i] = (uint8_t)((int)found[i] | (int)found[i + BLOCK / 2] << 4);
    return scale;
}

}  // namespace duodec
