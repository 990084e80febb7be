// Reads blocks of quantised weights as a GGUF file has them, and packs them in tiles.
#pragma once
#include <cstring>

#include "formats.h"
#include "grids.h"

namespace duodec {

// A block of 32 weights as a file has it: codes, and the small numbers that belong to them.
struct FileBlock {
    uint8_t codes[BLOCK];
    uint8_t scale[2];  // bytes: six bits, signed bits, an exponent; of a scale and a minimum four bits each
    uint8_t minimum;
    uint16_t half, half_minimum;
    uint16_t index[8];  // of entries of a table, in place of codes
    uint32_t signs;     // a bit a weight
};

inline uint16_t half_at(const uint8_t * p) { uint16_t h; memcpy(&h, p, 2); return h; }
inline uint32_t word_at(const uint8_t * p) { uint32_t w; memcpy(&w, p, 4); return w; }

// The 32 weights that begin at column 32 * `j` of a block in the file, which are entries of a table.
template <class F> inline FileBlock read_indices(const uint8_t * p, int j) {
    FileBlock b{};
    b.half = half_at(p);
    if constexpr (F::type == IQ2_XXS || F::type == IQ3_XXS) {
        constexpr bool is_two = F::type == IQ2_XXS;
        const uint8_t * index = p + 2 + 8 * j;
        const uint32_t rest = word_at(is_two ? index + 4 : p + 66 + 4 * j);
        for (int i = 0; i < (is_two ? 4 : 8); i++) b.index[i] = index[i];
        for (int g = 0; g < 4; g++) b.signs |= (uint32_t)with_parity(rest >> 7 * g) << 8 * g;
        b.scale[0] = 2 * (rest >> 28) + 1;
    } else if constexpr (F::type == IQ2_XS) {
        for (int g = 0; g < 4; g++) {
            const uint16_t both = half_at(p + 2 + 8 * j + 2 * g);
            b.index[g] = both & 511;
            b.signs |= (uint32_t)with_parity(both >> 9) << 8 * g;
        }
        b.scale[0] = p[66 + j];
    } else if constexpr (F::type == IQ2_S) {
        for (int g = 0; g < 4; g++) b.index[g] = p[2 + 4 * j + g] | (p[66 + j] >> 2 * g & 3) << 8;
        b.signs = word_at(p + 34 + 4 * j);
        b.scale[0] = p[74 + j];
    } else if constexpr (F::type == IQ3_S) {
        for (int i = 0; i < 8; i++) b.index[i] = p[2 + 8 * j + i] | (p[66 + j] >> i & 1) << 8;
        b.signs = word_at(p + 74 + 4 * j);
        b.scale[0] = 2 * (p[106 + j / 2] >> 4 * (j % 2) & 15) + 1;
    } else if constexpr (F::type == IQ1_S) {
        const uint16_t rest = half_at(p + 34 + 2 * j);
        for (int g = 0; g < 4; g++) b.index[g] = p[2 + 4 * j + g] | (rest >> 3 * g & 7) << 8 | (rest >> 15) << 11;
        b.scale[0] = 2 * (rest >> 12 & 7) + 1;
    } else {  // IQ1_M: four bits of the half are in each 16 of scales
        b.half = 0;
        for (int i = 0; i < 4; i++) b.half |= (half_at(p + 48 + 2 * i) >> 12) << 4 * i;
        for (int g = 0; g < 4; g++) b.index[g] = p[4 * j + g] | (p[32 + 2 * j + g / 2] >> 4 * (g % 2) & 15) << 8;
        const int both = half_at(p + 48 + j / 2 * 2) >> 6 * (j % 2) & 63;
        b.scale[0] = (both & 7) | both >> 3 << 4;
    }
    return b;
}

// The 32 weights that begin at column 32 * `j` of a block in the file.
template <class F> inline FileBlock read_block(const uint8_t * p, int j) {
    if constexpr (F::is_grid) return read_indices<F>(p, j);
    FileBlock b{};
    constexpr int num_halves = F::scale == Scale::EXPONENT || F::scale == Scale::EIGHT_BITS ? 0 : F::minimum == Minimum::NONE ? 1 : 2;
    constexpr bool has_halves_last = F::type == Q2_K || F::type == Q3_K || F::type == Q6_K || F::type == TQ1_0 || F::type == TQ2_0;
    const uint8_t * halves = has_halves_last ? p + F::num_bytes - 2 * num_halves : p;
    if constexpr (num_halves > 0) b.half = half_at(halves);
    if constexpr (num_halves > 1) b.half_minimum = half_at(halves + 2);
    if constexpr (F::type == Q8_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[2 + k] ^ 0x80;  // plus 128
    } else if constexpr (F::type == Q2_K) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[16 + 32 * (j / 4) + k] >> 2 * (j % 4) & 3;
        memcpy(b.scale, p + 2 * j, 2);
    } else if constexpr (F::type == Q3_K) {
        for (int k = 0; k < 32; k++) b.codes[k] = (p[32 + 32 * (j / 4) + k] >> 2 * (j % 4) & 3) | (p[k] >> j & 1) << 2;
        for (int h = 0; h < 2; h++) {
            const int i = 2 * j + h, low = p[96 + i % 8] >> 4 * (i / 8) & 15, high = p[104 + i % 4] >> 2 * (i / 4) & 3;
            b.scale[h] = (uint8_t)((low | high << 4) - 32);
        }
    } else if constexpr (F::type == TQ1_0) {  // digits to the base of three: five in a byte, or four in each of the last four
        for (int k = 0; k < 32; k++) {
            const int i = 32 * j + k, r = i - 160;
            const uint8_t byte = i < 160 ? p[i % 32] : i < 240 ? p[32 + r % 16] : p[48 + i % 4];
            const int digit = i < 160 ? i / 32 : i < 240 ? r / 16 : (i - 240) / 4;
            constexpr uint8_t POWERS[] = {1, 3, 9, 27, 81};
            b.codes[k] = (uint8_t)(byte * POWERS[digit]) * 3 >> 8;
        }
    } else if constexpr (F::type == TQ2_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[32 * (j / 4) + k] >> 2 * (j % 4) & 3;
    } else if constexpr (F::type == Q1_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[2 + 4 * j + k / 8] >> k % 8 & 1;
    } else if constexpr (F::type == Q2_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[2 + 8 * j + k / 4] >> 2 * (k % 4) & 3;
    } else if constexpr (F::type == NVFP4) {
        for (int h = 0; h < 2; h++) {
            const uint8_t * codes = p + 4 + 8 * (2 * j + h), scale = p[2 * j + h];
            for (int k = 0; k < 8; k++) { b.codes[16 * h + k] = codes[k] & 15; b.codes[16 * h + 8 + k] = codes[k] >> 4; }
            b.scale[h] = scale == 127 ? 0 : scale & 127;  // as ggml reads it
        }
    } else if constexpr (F::type == Q4_K || F::type == Q5_K) {
        const uint8_t * s = p + 4, * codes = p + (F::type == Q4_K ? 16 : 48) + 32 * (j / 2), * above = p + 16;
        b.scale[0] = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        b.minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
        for (int k = 0; k < 32; k++) b.codes[k] = j % 2 ? codes[k] >> 4 : codes[k] & 15;
        if constexpr (F::type == Q5_K) for (int k = 0; k < 32; k++) b.codes[k] |= (above[k] >> j & 1) << 4;
    } else if constexpr (F::type == Q6_K) {
        const uint8_t * low = p + 64 * (j / 4) + 32 * (j % 2), * above = p + 128 + 32 * (j / 4);
        for (int k = 0; k < 32; k++) b.codes[k] = (j % 4 < 2 ? low[k] & 15 : low[k] >> 4) | (above[k] >> 2 * (j % 4) & 3) << 4;
        b.scale[0] = p[192 + 2 * j];
        b.scale[1] = p[193 + 2 * j];
    } else if constexpr (F::type == IQ4_XS) {
        const int bits = (p[4 + j / 2] >> 4 * (j % 2) & 15) | (half_at(p + 2) >> 2 * j & 3) << 4;
        b.scale[0] = (uint8_t)(bits - 32);
        for (int k = 0; k < 16; k++) { b.codes[k] = p[8 + 16 * j + k] & 15; b.codes[16 + k] = p[8 + 16 * j + k] >> 4; }
    } else {  // a block of 32, its first 16 codes in the low halves of bytes
        const uint8_t * codes = p + F::num_bytes - 16;
        for (int k = 0; k < 16; k++) { b.codes[k] = codes[k] & 15; b.codes[16 + k] = codes[k] >> 4; }
        if constexpr (F::width == Width::FIVE) {
            uint32_t above;
            memcpy(&above, codes - 4, 4);
            for (int k = 0; k < 32; k++) b.codes[k] |= (above >> k & 1) << 4;
        }
        if constexpr (F::type == MXFP4) b.scale[0] = std::max<uint8_t>(p[0], 1) - 1;  // 2^(e - 128), halved by no table
    }
    return b;
}

// Writes the indices and the signs of row `r` of a tile: the indices' low bits, a byte each; those above them, as many as a byte has room
// for; signs as bits of vectors, where `unpack` has the codes.
template <class F> void put_indices(uint8_t * block_at, int r, const FileBlock & block) {
    using At = Layout<F>;
    constexpr int high = F::index_bits - 8;
    for (int i = 0; i < At::indices; i++) {
        block_at[TILE * i + r] = block.index[i] & 255;
        if constexpr (high > 0) block_at[At::above + TILE * (i * high / 8) + r] |= (block.index[i] >> 8) << i * high % 8;
    }
    if constexpr (F::has_signs)
        for (int k = 0; k < 32; k++) block_at[At::signs + 4 * r + k % 4] |= (block.signs >> k & 1) << k / 4;
}

// Packs rows of weights of `row_bytes` each, as many as tile `tile` of the matrix has; rows that are missing are zero.
template <class F> void pack_tile(uint8_t * matrix, int64_t num_rows, int64_t columns, int64_t tile, const uint8_t * file, int64_t row_bytes) {
    const Layout<F> layout(num_rows, columns);
    const int rows = (int)std::min<int64_t>(TILE, num_rows - tile * TILE);
    for (int64_t b = 0; b < layout.num_blocks; b++) {
        uint8_t * block_at = matrix + layout.block(tile, b);
        memset(block_at, 0, layout.block_bytes);  // a row of zero scales is zero
        if constexpr (F::is_float) {
            const int64_t first = b * layout.columns, count = std::min<int64_t>(layout.columns, columns - first);
            for (int64_t k = 0; k < count; k++)
                for (int r = 0; r < rows; r++)
                    memcpy(block_at + (k * TILE + r) * F::num_bytes, file + r * row_bytes + (first + k) * F::num_bytes, F::num_bytes);
        } else {
            using At = Layout<F>;
            uint8_t * halves = matrix + layout.halves(tile, b);
            if (F::has_super && b % F::steps == 0) memset(halves, 0, At::half_bytes);
            uint8_t codes[8][LINE] = {};
            for (int r = 0; r < rows; r++) {
                constexpr int parts = F::columns / BLOCK;
                const FileBlock block = read_block<F>(file + r * row_bytes + b / parts * F::num_bytes, b % parts);
                if constexpr (F::is_grid) put_indices<F>(block_at, r, block);
                else for (int v = 0; v < 8; v++) memcpy(codes[v] + 4 * r, block.codes + 4 * v, 4);
                if constexpr (F::scale == Scale::HALF) memcpy(block_at + At::scales + 2 * r, &block.half, 2);
                else if constexpr (F::scale != Scale::SHARED) block_at[At::scales + r] = block.scale[0];
                if constexpr (F::has_two_bytes) block_at[At::scales + 16 + r] = block.scale[1];
                if constexpr (F::minimum == Minimum::HALF) memcpy(block_at + At::minima + 2 * r, &block.half_minimum, 2);
                if constexpr (F::minimum == Minimum::BYTE) block_at[At::minima + r] = block.minimum;
                if constexpr (F::has_super) memcpy(halves + 2 * r, &block.half, 2);
                if constexpr (F::has_super_minimum) memcpy(halves + 32 + 2 * r, &block.half_minimum, 2);
            }
            if constexpr (F::is_grid) {
                // stored row by row above
            } else if constexpr (F::width == Width::EIGHT) {
                memcpy(block_at, codes, 512);
            } else if constexpr (F::width == Width::ONE) {
                for (int v = 0; v < 8; v++) for (int i = 0; i < LINE; i++) block_at[i] |= codes[v][i] << v;
            } else if constexpr (At::is_two) {
                for (int v = 0; v < 8; v++) for (int i = 0; i < LINE; i++) block_at[LINE * (v / 4) + i] |= (codes[v][i] & 3) << 2 * (v % 4);
                if constexpr (F::width == Width::THREE)
                    for (int v = 0; v < 8; v++) for (int i = 0; i < LINE; i++) block_at[At::above + i] |= (codes[v][i] >> 2) << v;
            } else {
                for (int v = 0; v < 4; v++) for (int i = 0; i < LINE; i++) block_at[LINE * v + i] = (codes[2 * v][i] & 15) | codes[2 * v + 1][i] << 4;
                uint8_t * above = block_at + At::above;
                if constexpr (F::width == Width::FIVE)
                    for (int v = 0; v < 8; v++) for (int i = 0; i < LINE; i++) above[i] |= (codes[v][i] >> 4) << v;
                if constexpr (F::width == Width::SIX)
                    for (int v = 0; v < 8; v++) for (int i = 0; i < LINE; i++) above[LINE * (v / 4) + i] |= (codes[v][i] >> 4) << 2 * (v % 4);
            }
        }
    }
}

}  // namespace duodec
