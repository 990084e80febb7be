// Multiplies as llama.cpp's backend does, for the tests: reads cases from stdin, writes their products to stdout.
//
// A case is six int64 (ggml's type, rows of weights, columns, rows of activations, number of splits, tiles at once), the splits
// as int64 (where the rows of activations are divided into operations, 0 and the end included), the weights' bytes as a file has
// them, and the activations as float32. By turns weights lie in four streams and in one. Its answer is float32, a row for each row of activations; a line of text where it
// cannot be computed. Without cases on stdin, the name of the instruction set is printed.
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "weights.h"

using namespace duodec;

struct Freed {
    void operator()(uint8_t * p) const { ::operator delete(p, std::align_val_t(LINE)); }
};
using Bytes = std::unique_ptr<uint8_t[], Freed>;

// Exactly as many bytes as are needed, so that a sanitizer sees the first one beyond; none is zero before it is written.
static Bytes aligned(size_t num_bytes) {
    Bytes bytes((uint8_t *)::operator new(num_bytes, std::align_val_t(LINE)));
    memset(bytes.get(), 0xff, num_bytes);
    return bytes;
}

template <class T> static bool read(std::vector<T> & to) { return to.empty() || fread(to.data(), sizeof(T), to.size(), stdin) == to.size(); }

static int fail(const char * words) {
    fprintf(stderr, "kernels_probe: %s\n", words);
    return 2;
}

int main() {
    std::vector<int64_t> head(6);
    int64_t num_cases = 0;
    for (; read(head); num_cases++) {
        num_streams = num_cases % 2 ? 1 : MOST_STREAMS;
        const int64_t rows = head[1], columns = head[2], num_rows = head[3], at_once = head[5];
        const Kernel * kernel = kernel_of((int)head[0]);
        if (!kernel) return fail("not a type that is packed");
        if (columns % kernel->columns) return fail("columns are no multiple of a block");
        const int64_t file_row = columns / kernel->columns * kernel->block_bytes;
        std::vector<int64_t> splits(head[4]);
        std::vector<uint8_t> file(rows * file_row);
        std::vector<float> x(num_rows * columns), products(num_rows * rows, -1.0f);
        if (!read(splits) || !read(file) || !read(x)) return fail("the case ends early");

        const int64_t tiles = num_tiles(rows), row_bytes = kernel->row_bytes(columns);
        const Bytes weights = aligned(kernel->matrix_bytes(rows, columns));
        for (int64_t t = 0; t < tiles; t++) kernel->pack_tile(weights.get(), rows, columns, t, file.data() + t * TILE * file_row, file_row);
        const Bytes activations = aligned(num_rows * row_bytes);
        for (size_t s = 0; s + 1 < splits.size(); s++) {
            const Groups groups(*kernel, splits[s], splits[s + 1]);
            for (int64_t g = 0; g < groups.num_groups; g++) {
                uint8_t * group = activations.get() + groups.first(g) * row_bytes;
                float * out[MOST_ROWS];
                for (int m = 0; m < groups.rows(g); m++) {
                    kernel->put_row(group, m, groups.rows(g), x.data() + (groups.first(g) + m) * columns, 0, columns);
                    out[m] = products.data() + (groups.first(g) + m) * rows;
                }
                for (int64_t begin = 0; begin < tiles; begin += at_once)
                    multiply_tiles(*kernel, weights.get(), rows, nullptr, columns, begin, std::min(tiles, begin + at_once), group, groups.rows(g), out);
            }
        }
        if (!products.empty()) fwrite(products.data(), sizeof(float), products.size(), stdout);
    }
    if (!num_cases) printf("%s\n", Lanes::NAME);
}
