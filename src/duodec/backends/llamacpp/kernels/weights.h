// Packed weights by ggml's type: how large, how packed, how multiplied.
#pragma once
#include "packing.h"
#include "tiles.h"

namespace duodec {

// What is done with one format; a function pointer each, so that the format is chosen once an operation.
struct Kernel {
    int columns;      // of a block in the file: rows of weights are a multiple
    int block_bytes;  // of a block in the file
    int most_rows;    // of activations in a group
    int64_t (*matrix_bytes)(int64_t rows, int64_t columns);
    int64_t (*row_bytes)(int64_t columns);  // of activations
    void (*pack_tile)(uint8_t * matrix, int64_t rows, int64_t columns, int64_t tile, const uint8_t * file, int64_t row_bytes);
    void (*put_row)(uint8_t * group, int m, int rows, const float * x, int64_t begin, int64_t end);
    Multiply (*multiply_of)(int rows);
};

// None: a type that is not packed.
inline const Kernel * kernel_of(int type) {
    return with_format(
        type,
        [](auto format) -> const Kernel * {
            using F = decltype(format);
            static const Kernel kernel = {
                F::columns, F::num_bytes, most_rows<F>(), duodec::matrix_bytes<F>, duodec::row_bytes<F>, duodec::pack_tile<F>, duodec::put_row<F>, duodec::multiply_of<F>,
            };
            return &kernel;
        },
        (const Kernel *)nullptr);
}

// Rows begin to end in groups of nearly equal size, none larger than the kernel multiplies at once.
struct Groups {
    int64_t begin, num_rows, num_groups;

    Groups(const Kernel & kernel, int64_t begin, int64_t end)
        : begin(begin), num_rows(end - begin), num_groups((num_rows + kernel.most_rows - 1) / kernel.most_rows) {}
    int64_t first(int64_t g) const { return begin + g * num_rows / num_groups; }
    int rows(int64_t g) const { return (int)(first(g + 1) - first(g)); }
};

// Multiplies tiles `begin` to `end` of weights of `rows` rows with one group; `out[m]` is row m of the products, whole. The
// product of row r goes to place `places[r]` of it; to place r without places.
inline void multiply_tiles(const Kernel & kernel, const uint8_t * weights, int64_t rows, const int32_t * places, int64_t columns,
                           int64_t begin, int64_t end, const uint8_t * group, int group_rows, float * const * out) {
    const Multiply multiply = kernel.multiply_of(group_rows);
    float * at[MOST_ROWS];
    for (int64_t t = begin; t < end; t++) {
        if (!places && (t + 1) * TILE <= rows) {
            for (int m = 0; m < group_rows; m++) at[m] = out[m] + t * TILE;
            multiply(weights, rows, columns, t, group, at);
            continue;
        }
        float whole[MOST_ROWS][TILE];  // the last tile, whose last rows are none, or rows that belong elsewhere
        for (int m = 0; m < group_rows; m++) at[m] = whole[m];
        multiply(weights, rows, columns, t, group, at);
        const int64_t count = rows - t * TILE < TILE ? rows - t * TILE : TILE;
        for (int m = 0; m < group_rows; m++)
            for (int64_t i = 0; i < count; i++) out[m][places ? places[t * TILE + i] : t * TILE + i] = whole[m][i];
    }
}

}  // namespace duodec
