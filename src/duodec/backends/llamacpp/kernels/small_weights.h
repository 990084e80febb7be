// Weights of a draft in fewer bits than its file has: IQ4_NL, whose codes of four bits stand for 16 values that lie closer near 0.
#pragma once
#include <cmath>

#include "formats.h"

namespace duodec {

// Rounds a block of 32 weights. Returns its scale, of least squared error where large weights count more; of three ways to lay the
// values over the weights the best is taken.
inline float round_block(const float * x, uint8_t * codes) {
    static const struct Nearest {
        uint8_t code[256];  // by 128 more than a value
        uint8_t operator()(float v) const { return code[v > 0 ? v < 255 ? (int)v : 255 : 0]; }  // 0 for what is no number
        Nearest() {
            for (int v = 0; v < 256; v++)
                for (uint8_t c = code[v] = 0; c < 16; c++)
                    if (std::abs(NORMAL_CODES[c] - v) < std::abs(NORMAL_CODES[code[v]] - v)) code[v] = c;
        }
    } nearest;
    float largest = 0;
    for (int i = 0; i < BLOCK; i++)
        if (std::abs(x[i]) > std::abs(largest)) largest = x[i];
    float scale = 0, least = 0, best = 0;
    for (const float end : {-127.0f, -123.0f, -131.0f}) {  // what the largest weight becomes
        const float inverse = std::abs(largest) > 1e-20f ? end / largest : 0;
        float products = 0, squares = 0;
        for (int i = 0; i < BLOCK; i++) {
            const float value = (float)(NORMAL_CODES[nearest(inverse * x[i] + 128.5f)] - 128), weight = x[i] * x[i];
            products += weight * value * x[i];
            squares += weight * value * value;
        }
        if (squares > 0 && products * products > least * squares) {
            scale = products / squares;
            least = scale * products;
            best = inverse;
        }
    }
    for (int i = 0; i < BLOCK / 2; i++)
        codes[i] = (uint8_t)(nearest(best * x[i] + 128.5f) | nearest(best * x[i + BLOCK / 2] + 128.5f) << 4);
    return scale;
}

}  // namespace duodec
