// How quantised weights lie in a GGUF file, and how they are packed for few rows.
//
// A tile is 16 rows of weights. Its codes come in vectors of 64 bytes: four consecutive codes of each of the 16 rows; eight
// vectors make a block of 32 columns. Codes of four bits are stored two vectors to one. The bits above them, scales and minima
// follow each block. The blocks of a matrix, in the order in which they are multiplied, lie by turns in several streams, where a
// processor reads these faster than one (`streams.h`).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace duodec {

constexpr int TILE = 16;   // rows of weights
constexpr int BLOCK = 32;  // columns
constexpr int64_t LINE = 64;
constexpr int MOST_STREAMS = 4;
constexpr int64_t AHEAD = 5120;  // bytes that are fetched before they are multiplied, of all streams together
constexpr int64_t APART = 512;  // bytes: streams begin at odd multiples, or a cache would have one place for all of them

inline int num_streams = MOST_STREAMS;  // set before anything is packed

// Numbers of ggml's types, which name a format in a file.
enum Type {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20,
    IQ4_XS = 23, BF16 = 30, MXFP4 = 39,
};

enum class Width { FOUR, FIVE, SIX, EIGHT, HALF, BFLOAT, FLOAT };  // of a code
// A scale of 32 weights is: a half; a power of two; a half of 256 weights times 6 bits, 6 signed bits, or twice 8 signed bits
// (each for 16 weights).
enum class Scale { HALF, EXPONENT, SIX, SIGNED, TWO, NONE };
// A minimum of 32 weights is: none; a half that is added; a half of 256 weights times 6 bits, that is taken off.
enum class Minimum { NONE, HALF, SIX };
enum class Table { NONE, NORMAL, FP4 };  // what a code of four bits stands for

// Plus 128, and plus 12.
constexpr uint8_t NORMAL_CODES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t FP4_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <int TYPE, Width W, Scale S, Minimum M, int O, Table T, int N, int B> struct Of {
    static constexpr int type = TYPE;
    static constexpr Width width = W;
    static constexpr Scale scale = S;
    static constexpr Minimum minimum = M;
    static constexpr int offset = O;  // is taken off each code; BIASED where codes take all eight bits
    static constexpr Table table = T;
    static constexpr int columns = N;    // of a block in the file
    static constexpr int num_bytes = B;  // of a block in the file
    static constexpr bool is_float = W == Width::HALF || W == Width::BFLOAT || W == Width::FLOAT;
    static constexpr bool is_biased = W == Width::EIGHT || T == Table::NORMAL;
    static constexpr int largest = is_biased ? 255 : T == Table::FP4 ? 24 : W == Width::FOUR ? 15 : W == Width::FIVE ? 31 : 63;  // code
    static constexpr bool is_halved = S == Scale::TWO;  // two scales a block of 32
    static constexpr bool has_super = S == Scale::SIX || S == Scale::SIGNED || S == Scale::TWO;
    static constexpr int steps = has_super ? 8 : 1;  // blocks that share a half
};

constexpr int BIAS = 128;
using OfQ4_0 = Of<Q4_0, Width::FOUR, Scale::HALF, Minimum::NONE, 8, Table::NONE, 32, 18>;
using OfQ4_1 = Of<Q4_1, Width::FOUR, Scale::HALF, Minimum::HALF, 0, Table::NONE, 32, 20>;
using OfQ5_0 = Of<Q5_0, Width::FIVE, Scale::HALF, Minimum::NONE, 16, Table::NONE, 32, 22>;
using OfQ5_1 = Of<Q5_1, Width::FIVE, Scale::HALF, Minimum::HALF, 0, Table::NONE, 32, 24>;
using OfQ8_0 = Of<Q8_0, Width::EIGHT, Scale::HALF, Minimum::NONE, BIAS, Table::NONE, 32, 34>;
using OfQ4_K = Of<Q4_K, Width::FOUR, Scale::SIX, Minimum::SIX, 0, Table::NONE, 256, 144>;
using OfQ5_K = Of<Q5_K, Width::FIVE, Scale::SIX, Minimum::SIX, 0, Table::NONE, 256, 176>;
using OfQ6_K = Of<Q6_K, Width::SIX, Scale::TWO, Minimum::NONE, 32, Table::NONE, 256, 210>;
using OfIQ4_NL = Of<IQ4_NL, Width::FOUR, Scale::HALF, Minimum::NONE, BIAS, Table::NORMAL, 32, 18>;
using OfIQ4_XS = Of<IQ4_XS, Width::FOUR, Scale::SIGNED, Minimum::NONE, BIAS, Table::NORMAL, 256, 136>;
using OfMXFP4 = Of<MXFP4, Width::FOUR, Scale::EXPONENT, Minimum::NONE, 12, Table::FP4, 32, 17>;
using OfF16 = Of<F16, Width::HALF, Scale::NONE, Minimum::NONE, 0, Table::NONE, 1, 2>;
using OfBF16 = Of<BF16, Width::BFLOAT, Scale::NONE, Minimum::NONE, 0, Table::NONE, 1, 2>;
using OfF32 = Of<F32, Width::FLOAT, Scale::NONE, Minimum::NONE, 0, Table::NONE, 1, 4>;

// Calls `use(Of<...>())` with the format of a type; `otherwise` for one that we do not pack.
template <class Use, class Result> Result with_format(int type, Use use, Result otherwise) {
    switch (type) {
        case Q4_0: return use(OfQ4_0());
        case Q4_1: return use(OfQ4_1());
        case Q5_0: return use(OfQ5_0());
        case Q5_1: return use(OfQ5_1());
        case Q8_0: return use(OfQ8_0());
        case Q4_K: return use(OfQ4_K());
        case Q5_K: return use(OfQ5_K());
        case Q6_K: return use(OfQ6_K());
        case IQ4_NL: return use(OfIQ4_NL());
        case IQ4_XS: return use(OfIQ4_XS());
        case MXFP4: return use(OfMXFP4());
        case F16: return use(OfF16());
        case BF16: return use(OfBF16());
        case F32: return use(OfF32());
        default: return otherwise;
    }
}

inline int64_t num_tiles(int64_t rows) { return (rows + TILE - 1) / TILE; }

// Where the weights of a packed matrix lie, in bytes: the blocks of its tiles, and after all of them the halves that some blocks
// share (scales, then minima). A block of floats has 8 columns, the first one's weights first.
template <class F> struct Layout {
    static constexpr int columns = F::is_float ? 8 : BLOCK;  // of a block
    static constexpr int above = F::width == Width::EIGHT ? 512 : 256;  // in a block of codes, which begins with them
    static constexpr int scales = above + (F::width == Width::FIVE ? 64 : F::width == Width::SIX ? 128 : 0);
    static constexpr int minima = scales + (F::scale == Scale::HALF || F::is_halved ? 32 : 16);
    static constexpr int codes_bytes = minima + (F::minimum == Minimum::HALF ? 32 : F::minimum == Minimum::SIX ? 16 : 0);
    static constexpr int block_bytes = F::is_float ? columns * TILE * F::num_bytes : codes_bytes;
    static constexpr int half_bytes = !F::has_super ? 0 : F::minimum == Minimum::SIX ? 64 : 32;

    int64_t num_blocks;  // of a tile
    int streams;
    int64_t tiles, stream_bytes;

    Layout(int64_t rows, int64_t num_columns)
        : num_blocks((num_columns + columns - 1) / columns), streams(num_streams), tiles(num_tiles(rows)),
          stream_bytes(((tiles * num_blocks + streams - 1) / streams * block_bytes + APART - 1) / APART * APART | APART) {}

    // Of block `b` of a tile.
    int64_t block(int64_t tile, int64_t b) const {
        const int64_t n = tile * num_blocks + b;
        return n % streams * stream_bytes + n / streams * block_bytes;
    }
    int64_t halves(int64_t tile, int64_t b) const { return streams * stream_bytes + (tile * num_blocks + b) / F::steps * half_bytes; }
    int64_t num_bytes() const { return (halves(tiles, 0) + LINE - 1) / LINE * LINE; }
};

// Goes from block to block.
template <class F> struct Walk {
    const uint8_t * at;
    int64_t stream_bytes, back_bytes;  // from stream to stream; from the last one to the first one's next block
    int64_t ahead;                     // what is fetched in a stream
    int stream, streams;

    Walk(const uint8_t * matrix, const Layout<F> & layout, int64_t tile)
        : at(matrix + layout.block(tile, 0)), stream_bytes(layout.stream_bytes), back_bytes(Layout<F>::block_bytes - layout.streams * stream_bytes),
          ahead(AHEAD / layout.streams), stream((int)(tile * layout.num_blocks % layout.streams)), streams(layout.streams) {}
    void next() {
        at += stream_bytes;
        if (++stream == streams) {
            stream = 0;
            at += back_bytes;
        }
    }
};

template <class F> int64_t matrix_bytes(int64_t rows, int64_t columns) { return Layout<F>(rows, columns).num_bytes(); }

// A block of 32 weights as a file has it: codes, and the small numbers that belong to them.
struct FileBlock {
    uint8_t codes[BLOCK];
    uint8_t scale[2];  // bytes: six bits, signed bits, an exponent
    uint8_t minimum;
    uint16_t half, half_minimum;
};

inline uint16_t half_at(const uint8_t * p) { uint16_t h; memcpy(&h, p, 2); return h; }

// The 32 weights that begin at column 32 * `j` of a block in the file.
template <class F> inline FileBlock read_block(const uint8_t * p, int j) {
    FileBlock b{};
    constexpr bool has_halves_first = F::type != Q6_K && F::type != MXFP4;
    if constexpr (has_halves_first) b.half = half_at(p);
    if constexpr (F::minimum != Minimum::NONE) b.half_minimum = half_at(p + 2);
    if constexpr (F::type == Q8_0) {
        for (int k = 0; k < 32; k++) b.codes[k] = p[2 + k] ^ 0x80;  // plus 128
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
        b.half = half_at(p + 208);
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
                for (int v = 0; v < 8; v++) memcpy(codes[v] + 4 * r, block.codes + 4 * v, 4);
                if constexpr (F::scale == Scale::HALF) memcpy(block_at + At::scales + 2 * r, &block.half, 2);
                else block_at[At::scales + r] = block.scale[0];
                if constexpr (F::is_halved) block_at[At::scales + 16 + r] = block.scale[1];
                if constexpr (F::minimum == Minimum::HALF) memcpy(block_at + At::minima + 2 * r, &block.half_minimum, 2);
                if constexpr (F::minimum == Minimum::SIX) block_at[At::minima + r] = block.minimum;
                if constexpr (F::has_super) memcpy(halves + 2 * r, &block.half, 2);
                if constexpr (F::minimum == Minimum::SIX) memcpy(halves + 32 + 2 * r, &block.half_minimum, 2);
            }
            if constexpr (F::width == Width::EIGHT) {
                memcpy(block_at, codes, 512);
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
