// How quantised weights lie in a GGUF file, and how they are packed for few rows.
//
// A tile is 16 rows of weights. Its codes come in vectors of 64 bytes: four consecutive codes of each of the 16 rows; eight
// vectors make a block of 32 columns. Codes of four bits are stored two vectors to one, those of two bits four. The bits above them,
// scales and minima follow each block. Where a number in the file stands for four or eight weights (`grids.h`), these numbers and
// the signs are stored instead of codes. The blocks of a matrix, in the order in which they are multiplied, lie by turns in several streams, where a
// processor reads these faster than one (`streams.h`).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

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
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14,
    IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23, IQ1_M = 29, BF16 = 30,
    TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
};

// Of a code; FOURS and EIGHTS: a number in the file stands for so many weights.
enum class Width { ONE, TWO, THREE, FOUR, FIVE, SIX, EIGHT, FOURS, EIGHTS, HALF, BFLOAT, FLOAT };
// A scale of 32 weights is: a half; a power of two; a half of the file's block times a byte, times a signed one, or by itself. Each
// 16 weights have one where it is such a half times: twice a signed byte; twice the low four bits of one; twice the four bits plus one half
// in a byte; or where it is a number of four bits of exponent and three of fraction.
enum class Scale { HALF, EXPONENT, BYTE, SIGNED, SHARED, TWO, LOWS, NIBBLES, EIGHT_BITS, NONE };
// A minimum of 32 weights is: none; a half that is added; a half of the file's block, that is taken off, times a byte, or, for each 16
// weights, times the high four bits of their scale's byte.
enum class Minimum { NONE, HALF, BYTE, HIGHS };
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
    static constexpr bool is_grid = W == Width::FOURS || W == Width::EIGHTS;
    static constexpr int largest = is_grid ? 2 * O :  // code
        is_biased ? 255 : T == Table::FP4 ? 24 : W == Width::ONE ? 2 : W == Width::TWO ? 3 : W == Width::THREE ? 7 : W == Width::FOUR ? 15 : W == Width::FIVE ? 31 : 63;
    static constexpr bool has_two_bytes = S == Scale::TWO || S == Scale::LOWS || S == Scale::EIGHT_BITS;
    static constexpr bool is_halved = has_two_bytes || S == Scale::NIBBLES;  // two scales a block of 32
    static constexpr bool has_super = S == Scale::BYTE || S == Scale::SIGNED || S == Scale::SHARED || (is_halved && S != Scale::EIGHT_BITS);
    static constexpr bool has_super_minimum = M == Minimum::BYTE || M == Minimum::HIGHS;
    static constexpr int steps = has_super ? N / BLOCK : 1;  // blocks that share a half
    static constexpr float unit = 1;  // times which that half is taken
    static constexpr int index_bits = 0;
    static constexpr bool has_signs = false;
};

// Of weights that are entries of a table, by an index of so many bits (rounded up to what packs well).
template <int TYPE, Width W, Scale S, int LARGEST, int INDEX_BITS, int EIGHTHS, int B> struct OfGrid : Of<TYPE, W, S, Minimum::NONE, LARGEST, Table::NONE, 256, B> {
    static constexpr float unit = EIGHTHS / 8.0f;
    static constexpr int index_bits = INDEX_BITS;
    static constexpr bool has_signs = TYPE != IQ1_S && TYPE != IQ1_M;
};

constexpr int BIAS = 128;
using OfQ4_0 = Of<Q4_0, Width::FOUR, Scale::HALF, Minimum::NONE, 8, Table::NONE, 32, 18>;
using OfQ4_1 = Of<Q4_1, Width::FOUR, Scale::HALF, Minimum::HALF, 0, Table::NONE, 32, 20>;
using OfQ5_0 = Of<Q5_0, Width::FIVE, Scale::HALF, Minimum::NONE, 16, Table::NONE, 32, 22>;
using OfQ5_1 = Of<Q5_1, Width::FIVE, Scale::HALF, Minimum::HALF, 0, Table::NONE, 32, 24>;
using OfQ8_0 = Of<Q8_0, Width::EIGHT, Scale::HALF, Minimum::NONE, BIAS, Table::NONE, 32, 34>;
using OfQ2_K = Of<Q2_K, Width::TWO, Scale::LOWS, Minimum::HIGHS, 0, Table::NONE, 256, 84>;
using OfQ3_K = Of<Q3_K, Width::THREE, Scale::TWO, Minimum::NONE, 4, Table::NONE, 256, 110>;
using OfQ4_K = Of<Q4_K, Width::FOUR, Scale::BYTE, Minimum::BYTE, 0, Table::NONE, 256, 144>;
using OfQ5_K = Of<Q5_K, Width::FIVE, Scale::BYTE, Minimum::BYTE, 0, Table::NONE, 256, 176>;
using OfQ6_K = Of<Q6_K, Width::SIX, Scale::TWO, Minimum::NONE, 32, Table::NONE, 256, 210>;
using OfIQ1_S = OfGrid<IQ1_S, Width::EIGHTS, Scale::BYTE, 9, 12, 1, 50>;
using OfIQ1_M = OfGrid<IQ1_M, Width::EIGHTS, Scale::NIBBLES, 9, 12, 1, 56>;
using OfIQ2_XXS = OfGrid<IQ2_XXS, Width::EIGHTS, Scale::BYTE, 43, 8, 1, 66>;
using OfIQ2_XS = OfGrid<IQ2_XS, Width::EIGHTS, Scale::NIBBLES, 43, 10, 1, 74>;
using OfIQ2_S = OfGrid<IQ2_S, Width::EIGHTS, Scale::NIBBLES, 43, 10, 1, 82>;
using OfIQ3_XXS = OfGrid<IQ3_XXS, Width::FOURS, Scale::BYTE, 62, 8, 2, 98>;
using OfIQ3_S = OfGrid<IQ3_S, Width::FOURS, Scale::BYTE, 15, 9, 8, 110>;
using OfIQ4_NL = Of<IQ4_NL, Width::FOUR, Scale::HALF, Minimum::NONE, BIAS, Table::NORMAL, 32, 18>;
using OfIQ4_XS = Of<IQ4_XS, Width::FOUR, Scale::SIGNED, Minimum::NONE, BIAS, Table::NORMAL, 256, 136>;
using OfTQ1_0 = Of<TQ1_0, Width::TWO, Scale::SHARED, Minimum::NONE, 1, Table::NONE, 256, 54>;
using OfTQ2_0 = Of<TQ2_0, Width::TWO, Scale::SHARED, Minimum::NONE, 1, Table::NONE, 256, 66>;
using OfMXFP4 = Of<MXFP4, Width::FOUR, Scale::EXPONENT, Minimum::NONE, 12, Table::FP4, 32, 17>;
using OfNVFP4 = Of<NVFP4, Width::FOUR, Scale::EIGHT_BITS, Minimum::NONE, 12, Table::FP4, 64, 36>;
using OfQ1_0 = Of<Q1_0, Width::ONE, Scale::SHARED, Minimum::NONE, 1, Table::NONE, 128, 18>;
using OfQ2_0 = Of<Q2_0, Width::TWO, Scale::SHARED, Minimum::NONE, 1, Table::NONE, 64, 18>;
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
        case Q2_K: return use(OfQ2_K());
        case Q3_K: return use(OfQ3_K());
        case Q4_K: return use(OfQ4_K());
        case Q5_K: return use(OfQ5_K());
        case Q6_K: return use(OfQ6_K());
        case IQ1_S: return use(OfIQ1_S());
        case IQ1_M: return use(OfIQ1_M());
        case IQ2_XXS: return use(OfIQ2_XXS());
        case IQ2_XS: return use(OfIQ2_XS());
        case IQ2_S: return use(OfIQ2_S());
        case IQ3_XXS: return use(OfIQ3_XXS());
        case IQ3_S: return use(OfIQ3_S());
        case IQ4_NL: return use(OfIQ4_NL());
        case IQ4_XS: return use(OfIQ4_XS());
        case TQ1_0: return use(OfTQ1_0());
        case TQ2_0: return use(OfTQ2_0());
        case MXFP4: return use(OfMXFP4());
        case NVFP4: return use(OfNVFP4());
        case Q1_0: return use(OfQ1_0());
        case Q2_0: return use(OfQ2_0());
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
    static constexpr bool is_two = F::width == Width::TWO || F::width == Width::THREE;  // bits, and those above them
    static constexpr int codes = F::width == Width::ONE || F::width == Width::EIGHTS ? 64 : F::width == Width::EIGHT ? 512 : is_two || F::width == Width::FOURS ? 128 : 256;
    static constexpr int above = codes;  // in a block, which begins with its codes, or the low eight bits of its indices
    static constexpr int indices = F::width == Width::EIGHTS ? 4 : 8;  // of a row
    static constexpr int signs = above + (F::is_grid ? TILE * indices * (F::index_bits - 8) / 8 : 0);
    static constexpr int above_bytes = F::width == Width::THREE || F::width == Width::FIVE ? 64 : F::width == Width::SIX ? 128 : 0;
    static constexpr int scales = F::is_grid ? signs + (F::has_signs ? 64 : 0) : above + above_bytes;
    static constexpr int minima = scales + (F::scale == Scale::SHARED ? 0 : F::scale == Scale::HALF || F::has_two_bytes ? 32 : 16);
    static constexpr int codes_bytes = minima + (F::minimum == Minimum::HALF ? 32 : F::minimum == Minimum::BYTE ? 16 : 0);
    static constexpr int block_bytes = F::is_float ? columns * TILE * F::num_bytes : codes_bytes;
    static constexpr int half_bytes = !F::has_super ? 0 : F::has_super_minimum ? 64 : 32;

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

}  // namespace duodec
