// Rounds blocks of 32 weights, for the tests: reads float32 from stdin, writes the format's number in ggml as an int32, and of each
// block its scale in float32 and 16 bytes of codes.
#include <cstdio>

#include "small_weights.h"

int main() {
    float x[duodec::BLOCK];
    uint8_t codes[duodec::BLOCK / 2];
    const int32_t type = duodec::Small::type;
    fwrite(&type, sizeof type, 1, stdout);
    while (fread(x, sizeof x, 1, stdin) == 1) {
        const float scale = duodec::round_block(x, codes);
        fwrite(&scale, sizeof scale, 1, stdout);
        fwrite(codes, sizeof codes, 1, stdout);
    }
}
