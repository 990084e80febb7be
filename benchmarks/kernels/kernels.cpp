// Times the kernels for few rows of activations, format by format, on one thread, beside what the processor can do.
//
//     kernels [FORMAT ...] [--columns 1536] [--rows 8960] [--megabytes 192] [--streams 1]
//
// A line a format: for each number of rows the milliseconds that one pass over the weights takes, and two shares: of the memory
// bandwidth that a plain read of as many bytes reaches, and of the integer dot products that registers alone reach.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"
#include "streams.h"
#include "weights.h"

using namespace duodec;

static double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Run> static double median_s(int repeats, Run run) {
    std::vector<double> times;
    for (int i = 0; i < repeats; i++) {
        const double start = now_s();
        run();
        times.push_back(now_s() - start);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Memory as the backend gives it to weights: not written yet.
struct Memory {
    std::unique_ptr<uint8_t[]> bytes;

    explicit Memory(size_t size) : bytes(new uint8_t[size + LINE]) { use_huge_pages(bytes.get(), size + LINE); }
    uint8_t * begin() const { return (uint8_t *)(((uintptr_t)bytes.get() + LINE - 1) / LINE * LINE); }
};

// Bytes a second that are read, in so many streams, when nothing is done with them but one addition.
template <int STREAMS> static double bandwidth(size_t size) {
    const Memory memory(size);
    memset(memory.begin(), 1, size);
    static volatile float sink;
    constexpr size_t step = 4 * Lanes::ROWS;
    const size_t num = size / sizeof(float) / STREAMS / step * step;  // of a stream
    return STREAMS * num * sizeof(float) / median_s(5, [&] {
        Lanes::Real sums[STREAMS];
        for (auto & sum : sums) sum = Lanes::zero();
        const float * x = (const float *)memory.begin();
        for (size_t i = 0; i < num; i += step)
            for (int s = 0; s < STREAMS; s++) {
                const float * at = x + s * num + i;
                prefetch((const uint8_t *)at, AHEAD / STREAMS, step * sizeof(float));
                for (size_t k = 0; k < step; k += Lanes::ROWS) sums[s] = Lanes::sum(sums[s], Lanes::from_float(at + k));
            }
        float out[Lanes::ROWS];
        for (auto & sum : sums) { Lanes::store(out, sum); sink = sink + out[0]; }
    });
}

template <class Dots, class L = Lanes> static void add(Dots & dots, int v, Lanes::Codes codes, const int8_t * a) {
    if constexpr (L::HOLDS_CODES) dots.add(v, codes, a);
    else dots.add(v, codes, L::word(a, v));
}

// Products a second of codes of four bits and activations, both at hand, in so many sums at once.
template <int chains> static double integer_speed() {
    constexpr int turns = 1 << 16;
    uint8_t bytes[64];
    int8_t words[chains][64];
    for (int i = 0; i < 64; i++) bytes[i] = i % 16;
    for (auto & row : words) for (int i = 0; i < 64; i++) row[i] = i;
    static volatile float sink;
    const double seconds = median_s(5, [&] {
        const Lanes::Codes codes = Lanes::load(bytes);
        Lanes::Dots<15> dots[chains];
        for (auto & dot : dots) { dot.begin(0); add(dot, 0, codes, words[0]); }
        for (int i = 0; i < turns; i++) {
            DUODEC_UNROLL for (int v = 8; v < 16; v++) DUODEC_UNROLL for (int k = 0; k < chains; k++) add(dots[k], v, codes, words[k]);
            asm volatile("" : : "r"(words) : "memory");  // which may be others at the next turn
        }
        float out[Lanes::ROWS];
        for (auto & dot : dots) { Lanes::store(out, Lanes::real(dot.end())); sink = sink + out[0]; }
    });
    return 8.0 * chains * turns * 4 * Lanes::ROWS / seconds;
}

struct Named { const char * name; int type; };
static const Named FORMATS[] = {
    {"Q4_0", Q4_0}, {"Q4_1", Q4_1}, {"Q5_0", Q5_0}, {"Q5_1", Q5_1}, {"Q8_0", Q8_0}, {"Q2_K", Q2_K}, {"Q3_K", Q3_K}, {"Q4_K", Q4_K}, {"Q5_K", Q5_K}, {"Q6_K", Q6_K},
    {"IQ1_S", IQ1_S}, {"IQ1_M", IQ1_M}, {"IQ2_XXS", IQ2_XXS}, {"IQ2_XS", IQ2_XS}, {"IQ2_S", IQ2_S}, {"IQ3_XXS", IQ3_XXS}, {"IQ3_S", IQ3_S},
    {"IQ4_NL", IQ4_NL}, {"IQ4_XS", IQ4_XS}, {"TQ1_0", TQ1_0}, {"TQ2_0", TQ2_0}, {"Q1_0", Q1_0}, {"Q2_0", Q2_0}, {"MXFP4", MXFP4}, {"NVFP4", NVFP4},
    {"F16", F16}, {"BF16", BF16}, {"F32", F32},
};

int main(int count, char ** words) {
    int64_t columns = 1536, rows = 8960, megabytes = 192;
    num_streams = fastest_num_streams();
    std::vector<std::string> wanted;
    for (int i = 1; i < count; i++) {
        const std::string word = words[i];
        if (word.rfind("--", 0) == 0 && i + 1 < count) {
            const int64_t value = atoll(words[++i]);
            if (word == "--columns") columns = value;
            else if (word == "--rows") rows = value;
            else if (word == "--megabytes") megabytes = value;
            else if (word == "--streams" && value >= 1 && value <= MOST_STREAMS) num_streams = (int)value;
            else if (word == "--streams") { fprintf(stderr, "kernels: --streams is %s; give 1 to %d\n", words[i], MOST_STREAMS); return 2; }
            else { fprintf(stderr, "kernels: no option %s\n", word.c_str()); return 2; }
        } else wanted.push_back(word);
    }
    const double bytes_s = std::max(bandwidth<1>(megabytes << 20), bandwidth<MOST_STREAMS>(megabytes << 20)), peak = std::max({integer_speed<4>(), integer_speed<8>(), integer_speed<12>()});
    printf("%s, one thread: reads %.1f GB/s, %.0f thousand million integer products a second\n", Lanes::NAME, bytes_s / 1e9, peak / 1e9);
    printf("weights in %d streams\n", num_streams);
    printf("%lld x %lld weights; ms, share of bandwidth, share of the integer peak\n", (long long)rows, (long long)columns);
    for (const Named & named : FORMATS) {
        if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), named.name) == wanted.end()) continue;
        const Kernel & kernel = *kernel_of(named.type);
        const int64_t matrix_bytes = kernel.matrix_bytes(rows, columns), copies = std::max<int64_t>(1, (megabytes << 20) / matrix_bytes);
        const Memory memory(matrix_bytes * copies);
        uint8_t * weights = memory.begin();
        const int64_t file_row = columns / kernel.columns * kernel.block_bytes;
        std::vector<uint8_t> file(file_row * TILE);
        // numbers of about one in every format: no NaN, and no subnormal ones, which are slow and which models have not
        for (size_t i = 0; i < file.size(); i++) file[i] = 0x30 | (i * 2654435761u >> 13 & 0x0f);
        if (named.type == MXFP4) for (size_t i = 0; i < file.size(); i++) file[i] |= 0x40;
        for (int64_t c = 0; c < copies; c++)
            for (int64_t t = 0; t < num_tiles(rows); t++) kernel.pack_tile(weights + c * matrix_bytes, rows, columns, t, file.data(), file_row);
        std::vector<float> x(columns);
        for (int64_t k = 0; k < columns; k++) x[k] = (float)((k * 37 % 101) - 50) / 25;
        printf("%-6s", named.name);
        for (int m : {1, 2, 4, 8, 16, 32}) {
            const int64_t activation_bytes = kernel.row_bytes(columns);
            std::vector<uint8_t> activations(m * activation_bytes + 64);
            std::vector<float> products(m * rows);
            const Groups groups(kernel, 0, m);
            for (int64_t g = 0; g < groups.num_groups; g++)
                for (int i = 0; i < groups.rows(g); i++) kernel.put_row(activations.data() + groups.first(g) * activation_bytes, i, groups.rows(g), x.data(), 0, columns);
            const auto multiply_all = [&] {
                for (int64_t c = 0; c < copies; c++)
                    for (int64_t begin = 0; begin < num_tiles(rows); begin += 16) {
                        const int64_t end = std::min(num_tiles(rows), begin + 16);
                        for (int64_t g = 0; g < groups.num_groups; g++) {
                            float * out[MOST_ROWS];
                            for (int i = 0; i < groups.rows(g); i++) out[i] = products.data() + (groups.first(g) + i) * rows;
                            multiply_tiles(kernel, weights + c * matrix_bytes, rows, nullptr, columns, begin, end, activations.data() + groups.first(g) * activation_bytes, groups.rows(g), out);
                        }
                    }
            };
            if (m == 1) for (int i = 0; i < 3; i++) multiply_all();  // weights that have just been written are slow to read
            const double seconds = median_s(5, multiply_all) / copies;
            printf("  %d: %.2f %2.0f%% %2.0f%%", m, seconds * 1e3, matrix_bytes / seconds / bytes_s * 100, (double)m * rows * columns / seconds / peak * 100);
        }
        printf("\n");
    }
}
