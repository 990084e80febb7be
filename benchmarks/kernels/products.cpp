// How far products are from those of the same weights in float64: our kernels' beside llama.cpp's, format by format.
//
//     g++ -O3 -march=native -ffp-contract=off -I src/duodec/backends/llamacpp/kernels -I LLAMA_CPP/ggml/include \
//         benchmarks/kernels/products.cpp -L LIBRARIES -lggml-cpu -lggml-base -Wl,-rpath,LIBRARIES -o products
//
// A line a format: root mean square of the errors as a share of the products' own, ours and llama.cpp's. 256 rows of activations, one
// value in a hundred 20 times as large, by 128 rows of 1,536 weights.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "weights.h"

using namespace duodec;

constexpr int64_t COLUMNS = 1536, ROWS = 128, NUM_X = 256;

int main() {
    std::mt19937 dice(1);
    std::normal_distribution<float> normal;
    std::vector<float> drawn(ROWS * COLUMNS), x(NUM_X * COLUMNS), importance(COLUMNS, 1), read(ROWS * COLUMNS);
    for (float & w : drawn) w = normal(dice);
    for (float & value : x) value = normal(dice) * (dice() % 100 ? 1 : 20);
    ggml_cpu_init();
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const ggml_type type = (ggml_type)t;
        const Kernel * kernel = kernel_of(t);
        if (!kernel || type == GGML_TYPE_F32) continue;
        const int64_t file_row = (int64_t)ggml_row_size(type, COLUMNS);
        std::vector<uint8_t> file(ROWS * file_row), packed(kernel->matrix_bytes(ROWS, COLUMNS) + LINE), group(kernel->row_bytes(COLUMNS));
        ggml_quantize_chunk(type, drawn.data(), file.data(), 0, ROWS, COLUMNS, importance.data());
        ggml_get_type_traits(type)->to_float(file.data(), read.data(), ROWS * COLUMNS);
        uint8_t * weights = (uint8_t *)(((uintptr_t)packed.data() + LINE - 1) / LINE * LINE);
        for (int64_t i = 0; i < num_tiles(ROWS); i++) kernel->pack_tile(weights, ROWS, COLUMNS, i, file.data() + i * TILE * file_row, file_row);
        const ggml_type_traits_cpu * theirs = ggml_get_type_traits_cpu(type);
        std::vector<uint8_t> rounded(ggml_row_size(theirs->vec_dot_type, COLUMNS));
        std::vector<float> products(ROWS);
        double own = 0, other = 0, squares = 0;
        for (int64_t i = 0; i < NUM_X; i++) {
            const float * row = x.data() + i * COLUMNS;
            kernel->put_row(group.data(), 0, 1, row, 0, COLUMNS);
            float * out[] = {products.data()};
            multiply_tiles(*kernel, weights, ROWS, nullptr, COLUMNS, 0, num_tiles(ROWS), group.data(), 1, out);
            if (theirs->vec_dot_type == GGML_TYPE_F32) memcpy(rounded.data(), row, rounded.size());
            else ggml_get_type_traits_cpu(theirs->vec_dot_type)->from_float(row, rounded.data(), COLUMNS);
            for (int64_t r = 0; r < ROWS; r++) {
                float product;
                theirs->vec_dot((int)COLUMNS, &product, 0, file.data() + r * file_row, 0, rounded.data(), 0, 1);
                double exact = 0;
                for (int64_t k = 0; k < COLUMNS; k++) exact += (double)read[r * COLUMNS + k] * row[k];
                own += (products[r] - exact) * (products[r] - exact);
                other += (product - exact) * (product - exact);
                squares += exact * exact;
            }
        }
        printf("%-8s %.3g %.3g\n", ggml_type_name(type), std::sqrt(own / squares), std::sqrt(other / squares));
    }
}
