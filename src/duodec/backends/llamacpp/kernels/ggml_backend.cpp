// Our kernels in llama.cpp's CPU backend: one more of its extra buffer types, whose weights are packed, and attention.
//
// A tensor that only ever is multiplied lies in this buffer type, packed when it is read from the file. It registers itself
// when the library is loaded, in the place of the others: theirs give a row other bits at other widths. The environment variable
// DUODEC_KERNELS=off, read then, leaves all as llama.cpp has it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "attention.h"
#include "memory.h"
#include "small_weights.h"
#include "traits.h"
#include "streams.h"
#include "weights.h"

static_assert((int)duodec::F16 == GGML_TYPE_F16 && (int)duodec::BF16 == GGML_TYPE_BF16 && (int)duodec::Q4_0 == GGML_TYPE_Q4_0);
static_assert((int)duodec::Q4_1 == GGML_TYPE_Q4_1 && (int)duodec::Q5_0 == GGML_TYPE_Q5_0 && (int)duodec::Q5_1 == GGML_TYPE_Q5_1);
static_assert((int)duodec::Q8_0 == GGML_TYPE_Q8_0 && (int)duodec::Q4_K == GGML_TYPE_Q4_K && (int)duodec::Q5_K == GGML_TYPE_Q5_K);
static_assert((int)duodec::Q6_K == GGML_TYPE_Q6_K && (int)duodec::IQ4_NL == GGML_TYPE_IQ4_NL);
static_assert((int)duodec::Q2_K == GGML_TYPE_Q2_K && (int)duodec::Q3_K == GGML_TYPE_Q3_K);
static_assert((int)duodec::TQ1_0 == GGML_TYPE_TQ1_0 && (int)duodec::TQ2_0 == GGML_TYPE_TQ2_0 && (int)duodec::IQ1_S == GGML_TYPE_IQ1_S);
static_assert((int)duodec::IQ1_M == GGML_TYPE_IQ1_M && (int)duodec::IQ2_XXS == GGML_TYPE_IQ2_XXS && (int)duodec::IQ2_XS == GGML_TYPE_IQ2_XS);
static_assert((int)duodec::IQ2_S == GGML_TYPE_IQ2_S && (int)duodec::IQ3_XXS == GGML_TYPE_IQ3_XXS && (int)duodec::IQ3_S == GGML_TYPE_IQ3_S);
static_assert((int)duodec::NVFP4 == GGML_TYPE_NVFP4 && (int)duodec::Q1_0 == GGML_TYPE_Q1_0 && (int)duodec::Q2_0 == GGML_TYPE_Q2_0);
static_assert((int)duodec::IQ4_XS == GGML_TYPE_IQ4_XS && (int)duodec::MXFP4 == GGML_TYPE_MXFP4 && (int)duodec::F32 == GGML_TYPE_F32);

namespace {

using duodec::Groups;
using duodec::Kernel;
using duodec::kernel_of;
using duodec::TILE;

constexpr int64_t LEAST_CHUNK = 12 << 10;  // bytes: less does not pay for the taking
constexpr int64_t MOST_CACHED = 256 << 10;  // stays in a core's cache while several groups of rows pass
constexpr int64_t PACKED_AT_ONCE = 4 << 20;  // bytes; smaller tensors are packed by one thread

ggml_backend_buffer_type_t buffer_type();

const Kernel * kernel_for(const ggml_tensor * weights) {
    const Kernel * kernel = kernel_of(weights->type);
    return kernel && weights->ne[0] % kernel->columns == 0 && ggml_is_contiguous(weights) ? kernel : nullptr;
}

int64_t num_matrices_of(const ggml_tensor * weights) { return weights->ne[2] * weights->ne[3]; }  // packed one after the other

int64_t matrix_bytes(const Kernel & kernel, const ggml_tensor * weights) { return kernel.matrix_bytes(weights->ne[1], weights->ne[0]); }

// The rows of a draft's head in the order in which they are packed, and the tiles of them that are computed, ascending. The
// products of other rows are minus infinity.
struct Head {
    const std::vector<int32_t> order;
    std::vector<int32_t> places;  // of each row in that order
    std::vector<int32_t> tiles;

    explicit Head(std::vector<int32_t> order) : order(std::move(order)), places(this->order.size()) {
        for (size_t i = 0; i < this->order.size(); i++) places[this->order[i]] = (int32_t)i;
        compute((int64_t)places.size(), nullptr, 0);
    }

    void compute(int64_t num_first, const int32_t * rows, int64_t num_rows) {
        std::vector<bool> is_computed(duodec::num_tiles((int64_t)places.size()));
        std::fill_n(is_computed.begin(), duodec::num_tiles(num_first), true);
        for (int64_t i = 0; i < num_rows; i++) is_computed[places[rows[i]] / TILE] = true;
        tiles.clear();
        for (size_t t = 0; t < is_computed.size(); t++)
            if (is_computed[t]) tiles.push_back((int32_t)t);
    }
};

thread_local std::vector<int32_t> next_order;  // of the head that this thread loads next; none: as the file has it
thread_local Head * last_head;                 // that this thread has loaded

bool is_ordered(const ggml_tensor * weights) {
    return (int64_t)next_order.size() == weights->ne[1] && num_matrices_of(weights) == 1 &&
           (!strcmp(weights->name, "output.weight") || !strcmp(weights->name, "token_embd.weight"));
}

constexpr ggml_type SMALL = (ggml_type)duodec::Small::type;
thread_local bool packs_small;  // what this thread loads next: weights of more bits are packed in that format

bool is_made_smaller(const ggml_tensor * weights) {
    const Kernel * kernel = kernel_for(weights), * small = kernel_of(SMALL);
    if (!packs_small || !kernel || weights->ne[0] % small->columns) return false;
    constexpr int64_t MANY = 1 << 20;  // rows: space between streams does not count
    return 6 * small->matrix_bytes(MANY, weights->ne[0]) <= 5 * kernel->matrix_bytes(MANY, weights->ne[0]);  // not of 4 bits: only worse
}

// --- one operation

// Which rows of activations meet which matrix: those that are routed to an expert, or an equal part of them, one after the other.
struct Rows {
    const ggml_tensor * op, * x, * ids;
    int64_t num_rows, num_matrices;
    const int32_t * order;  // rows of x by expert, as token * experts used + place
    const int32_t * begin;  // of each expert's rows in `order`, and the end

    explicit Rows(const ggml_tensor * op, uint8_t * work)
        : op(op), x(op->src[1]), ids(op->op == GGML_OP_MUL_MAT_ID ? op->src[2] : nullptr),
          num_rows(ids ? ids->ne[0] * ids->ne[1] : ggml_nrows(x)), num_matrices(num_matrices_of(op->src[0])),
          order((int32_t *)work), begin(order + num_rows) {}

    static int64_t work_bytes(const ggml_tensor * op) {
        if (op->op != GGML_OP_MUL_MAT_ID) return 0;
        const int64_t numbers = op->src[2]->ne[0] * op->src[2]->ne[1] + num_matrices_of(op->src[0]) + 1;
        return (numbers * (int64_t)sizeof(int32_t) + 63) / 64 * 64;
    }

    int32_t expert(int64_t token, int64_t place) const {
        return *(const int32_t *)((const char *)ids->data + token * ids->nb[1] + place * ids->nb[0]);
    }

    // Sorts rows by expert; by one thread, before the others look.
    void sort() const {
        int32_t * to = (int32_t *)order, * first = (int32_t *)begin;
        std::fill(first, first + num_matrices + 1, 0);
        for (int64_t t = 0; t < ids->ne[1]; t++)
            for (int64_t i = 0; i < ids->ne[0]; i++) {
                GGML_ASSERT(expert(t, i) >= 0 && expert(t, i) < num_matrices);
                first[expert(t, i)]++;
            }
        int32_t sum = 0;
        for (int64_t e = 0; e <= num_matrices; e++) { const int32_t n = first[e]; first[e] = sum; sum += n; }
        for (int64_t t = 0; t < ids->ne[1]; t++)
            for (int64_t i = 0; i < ids->ne[0]; i++) to[first[expert(t, i)]++] = (int32_t)(t * ids->ne[0] + i);
        for (int64_t e = num_matrices; e > 0; e--) first[e] = first[e - 1];  // each began where the one before it ended
        first[0] = 0;
    }

    Groups groups(const Kernel & kernel, int64_t matrix) const {
        if (ids) return Groups(kernel, begin[matrix], begin[matrix + 1]);
        const int64_t size = num_rows / num_matrices;
        return Groups(kernel, matrix * size, (matrix + 1) * size);
    }

    struct Place { int64_t i1, i2, i3; };

    Place place(int64_t r) const {
        if (ids) return {order[r] % ids->ne[0], order[r] / ids->ne[0], 0};
        const ggml_tensor * weights = op->src[0];
        const int64_t size = num_rows / num_matrices, matrix = r / size, n = r % size / x->ne[1];
        const int64_t times2 = x->ne[2] / weights->ne[2], times3 = x->ne[3] / weights->ne[3];  // that a matrix is used
        return {r % x->ne[1], matrix % weights->ne[2] * times2 + n % times2, matrix / weights->ne[2] * times3 + n / times2};
    }

    const float * in(int64_t r) const {
        const auto [i1, i2, i3] = place(r);
        return (const float *)((const char *)x->data + i1 % x->ne[1] * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3]);  // experts may share a row
    }

    float * out(int64_t r) const {
        const auto [i1, i2, i3] = place(r);
        return (float *)((char *)op->data + i1 * op->nb[1] + i2 * op->nb[2] + i3 * op->nb[3]);
    }
};

// Where the chunks begin in which threads take tiles, and the end of the last: of the tiles that are left each thread takes half of
// its part, so that all end together, however fast each is, and read long streams. No chunk has more tiles than `most`.
std::vector<int64_t> chunks_of(int64_t num_tiles, int64_t num_threads, int64_t least, int64_t most) {
    std::vector<int64_t> begins;
    for (int64_t tile = 0; tile < num_tiles;) {
        const int64_t part = (num_tiles - tile) / (num_threads == 1 ? 1 : 2 * num_threads);
        const int64_t size = std::max<int64_t>(1, std::min(most, std::max(least, part)));
        for (int64_t i = 0; i < num_threads && tile < num_tiles; i++, tile += size) begins.push_back(tile);
    }
    begins.push_back(num_tiles);
    return begins;
}

class Traits : public ggml::cpu::tensor_traits {
  public:
    explicit Traits(bool is_small, std::unique_ptr<Head> head = {}) : is_small(is_small), head(std::move(head)) {}

    const bool is_small;               // weights are packed in the smaller format, not in the file's
    const std::unique_ptr<Head> head;  // none: all rows, as the file has them

    const Kernel & kernel_of_packed(const ggml_tensor * weights) const { return is_small ? *kernel_of(SMALL) : *kernel_for(weights); }

  private:
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        const Kernel & kernel = kernel_of_packed(op->src[0]);
        const int64_t rows = op->op == GGML_OP_MUL_MAT_ID ? op->src[2]->ne[0] * op->src[2]->ne[1] : ggml_nrows(op->src[1]);
        size = Rows::work_bytes(op) + rows * kernel.row_bytes(op->src[1]->ne[0]) + 64;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) return false;
        const ggml_tensor * weights = op->src[0], * x = op->src[1];
        const Kernel & kernel = kernel_of_packed(weights);
        GGML_ASSERT(x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float));
        const int64_t num_weights = weights->ne[1], all_tiles = duodec::num_tiles(num_weights);
        const int64_t num_tiles = head ? (int64_t)head->tiles.size() : all_tiles;
        const int32_t * tiles = num_tiles < all_tiles ? head->tiles.data() : nullptr, * places = head ? head->order.data() : nullptr;
        const int64_t columns = weights->ne[0], row_bytes = kernel.row_bytes(columns);
        uint8_t * work = (uint8_t *)(((uintptr_t)params->wdata + 63) / 64 * 64);
        const Rows rows(op, work);
        uint8_t * activations = work + Rows::work_bytes(op);
        const int ith = params->ith, nth = params->nth;
        if (rows.ids) {
            if (ith == 0) rows.sort();
            ggml_barrier(params->threadpool);
        }

        // each thread some columns of all rows, so that no two write to one line
        const int64_t blocks = (columns + duodec::BLOCK - 1) / duodec::BLOCK;
        const int64_t begin = blocks * ith / nth * duodec::BLOCK, end = std::min(columns, blocks * (ith + 1) / nth * duodec::BLOCK);
        for (int64_t e = 0; e < rows.num_matrices; e++) {
            const Groups groups = rows.groups(kernel, e);
            for (int64_t g = 0; g < groups.num_groups; g++)
                for (int m = 0; m < groups.rows(g); m++)
                    kernel.put_row(activations + groups.first(g) * row_bytes, m, groups.rows(g), rows.in(groups.first(g) + m), begin, end);
        }
        if (tiles)
            for (int64_t r = ith; r < rows.num_rows; r += nth)
                std::fill_n(rows.out(r), num_weights, -std::numeric_limits<float>::infinity());
        const int64_t tile_bytes = matrix_bytes(kernel, weights) / all_tiles;
        const int64_t most = rows.num_rows > kernel.most_rows ? MOST_CACHED / tile_bytes : num_tiles;
        const std::vector<int64_t> chunks = chunks_of(num_tiles, nth, LEAST_CHUNK / tile_bytes, most);
        const int64_t num_chunks = (int64_t)chunks.size() - 1;
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);

        int64_t next = ith, passed = 0;  // chunks: mine, and those of the matrices before this one
        for (int64_t e = 0; e < rows.num_matrices; e++) {
            const Groups groups = rows.groups(kernel, e);
            if (!groups.num_groups) continue;
            const uint8_t * matrix = (const uint8_t *)weights->data + e * matrix_bytes(kernel, weights);
            for (; next < passed + num_chunks; next = ggml_threadpool_chunk_add(params->threadpool, 1)) {
                const int64_t begin = chunks[next - passed], end = chunks[next - passed + 1];
                for (int64_t g = 0; g < groups.num_groups; g++) {
                    float * out[duodec::MOST_ROWS];
                    for (int m = 0; m < groups.rows(g); m++) out[m] = rows.out(groups.first(g) + m);
                    for (int64_t from = begin, to; from < end; from = to) {  // runs of tiles that follow each other
                        to = tiles ? from + 1 : end;
                        while (to < end && tiles[to] == tiles[to - 1] + 1) to++;
                        const int64_t first = tiles ? tiles[from] : from;
                        duodec::multiply_tiles(kernel, matrix, num_weights, places, columns, first, first + to - from,
                                               activations + groups.first(g) * row_bytes, groups.rows(g), out);
                    }
                }
            }
            passed += num_chunks;
        }
        return true;
    }
};

Traits traits(false), small_traits(true);

// --- attention

// Over a cache in 16 bits; quantised ones stay with llama.cpp.
bool is_attention(const ggml_tensor * op) {
    if (op->op != GGML_OP_FLASH_ATTN_EXT) return false;
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    const auto is_short = [](const ggml_tensor * t) { return (t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16) && t->nb[0] == 2; };
    const ggml_tensor * sinks = op->src[4];
    return q->type == GGML_TYPE_F32 && q->nb[0] == 4 && is_short(k) && is_short(v) && k->ne[0] % duodec::Lanes::ROWS == 0 &&
           v->ne[0] % duodec::Lanes::ROWS == 0 && (!sinks || (sinks->type == GGML_TYPE_F32 && sinks->nb[0] == 4)) &&
           (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && mask->ne[2] == 1)) && q->ne[2] % k->ne[2] == 0 && k->ne[2] == v->ne[2];
}

duodec::Cache cache_of(const ggml_tensor * t) {
    return {(const char *)t->data, (int64_t)t->nb[1], (int64_t)t->nb[2], (int64_t)t->nb[3], t->ne[3], t->ne[0], t->type == GGML_TYPE_BF16};
}

duodec::Attention attention_of(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3];
    duodec::Attention a = {q->ne[1], q->ne[3], q->ne[2], k->ne[1], k->ne[2]};
    const float * parameters = (const float *)op->op_params;
    a.scale = parameters[0], a.most_bias = parameters[1], a.cap = parameters[2];
    if (op->src[4]) a.sinks = (const float *)op->src[4]->data;
    a.queries = (const char *)q->data, a.query_token = q->nb[1], a.query_head = q->nb[2], a.query_stream = q->nb[3];
    a.keys = cache_of(k), a.values = cache_of(v);
    if (mask) a.mask = (const char *)mask->data, a.mask_token = mask->nb[1], a.mask_stream = mask->nb[3], a.num_masks = mask->ne[3];
    a.out = (char *)op->data, a.out_token = op->nb[2], a.out_head = op->nb[1], a.out_stream = op->nb[3];
    return a;
}

class AttentionTraits : public ggml::cpu::tensor_traits {
    static int64_t thread_bytes(const ggml_tensor * op) {
        return (attention_of(op).num_bytes() + duodec::LINE - 1) / duodec::LINE * duodec::LINE + duodec::LINE;  // no line is shared
    }

    bool work_size(int num_threads, const ggml_tensor * op, size_t & size) override {
        size = num_threads * thread_bytes(op) + duodec::LINE;
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        char * work = (char *)(((uintptr_t)params->wdata + duodec::LINE - 1) / duodec::LINE * duodec::LINE) + params->ith * thread_bytes(op);
        duodec::compute_attention(attention_of(op), params->ith, params->nth, work);
        return true;
    }
};

AttentionTraits attention_traits;

// --- the buffer

std::map<ggml_backend_buffer_t, std::unique_ptr<Traits>> heads;  // one a draft that is loaded
std::mutex heads_mutex;
void (*free_memory)(ggml_backend_buffer_t);  // of the buffers of ggml that ours are

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    const bool is_small = is_made_smaller(tensor);
    tensor->extra = !kernel_for(tensor) ? nullptr : is_small ? &small_traits : &traits;
    if (tensor->extra && is_ordered(tensor)) {
        const std::lock_guard<std::mutex> lock(heads_mutex);
        std::unique_ptr<Traits> & own = heads[buffer];
        if (!own) {
            last_head = new Head(next_order);
            own = std::make_unique<Traits>(is_small, std::unique_ptr<Head>(last_head));
            tensor->extra = own.get();
        }
    }
    return GGML_STATUS_SUCCESS;
}

void free_buffer(ggml_backend_buffer_t buffer) {
    {
        const std::lock_guard<std::mutex> lock(heads_mutex);
        heads.erase(buffer);
    }
    free_memory(buffer);
}

// Reads rows of a tensor in its own format, and writes them in the smaller one.
void make_smaller(ggml_type type, const uint8_t * file, int64_t file_row, int64_t rows, int64_t columns, uint8_t * to) {
    std::vector<float> values(columns);
    for (int64_t i = 0; i < rows; i++) {
        if (type == GGML_TYPE_F32) memcpy(values.data(), file + i * file_row, file_row);
        else ggml_get_type_traits(type)->to_float(file + i * file_row, values.data(), columns);
        for (int64_t b = 0; b < columns; b += duodec::BLOCK, to += kernel_of(SMALL)->block_bytes) {
            const ggml_fp16_t scale = ggml_fp32_to_fp16(duodec::round_block(values.data() + b, to + sizeof(ggml_fp16_t)));
            memcpy(to, &scale, sizeof(scale));
        }
    }
}

void pack(ggml_tensor * tensor, const uint8_t * file, int64_t begin, int64_t end) {
    const Traits & own = *(const Traits *)tensor->extra;
    const Kernel & as_read = *kernel_for(tensor), & kernel = own.kernel_of_packed(tensor);
    const int64_t columns = tensor->ne[0], rows = tensor->ne[1], tiles = duodec::num_tiles(rows);
    const int64_t file_row = columns / as_read.columns * as_read.block_bytes, packed_row = columns / kernel.columns * kernel.block_bytes;
    std::vector<uint8_t> gathered(own.head ? TILE * file_row : 0), smaller(own.is_small ? TILE * packed_row : 0);
    for (int64_t t = begin; t < end; t++) {
        const int64_t first = t % tiles * TILE, row = t / tiles * rows + first, count = std::min<int64_t>(TILE, rows - first);
        uint8_t * matrix = (uint8_t *)tensor->data + t / tiles * matrix_bytes(kernel, tensor);
        const uint8_t * from = file + row * file_row;
        if (own.head) {
            for (int64_t i = 0; i < count; i++) memcpy(gathered.data() + i * file_row, file + own.head->order[first + i] * file_row, file_row);
            from = gathered.data();
        }
        if (own.is_small) {
            make_smaller(tensor->type, from, file_row, count, columns, smaller.data());
            from = smaller.data();
        }
        kernel.pack_tile(matrix, rows, columns, t % tiles, from, packed_row);
    }
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    const int64_t tiles = duodec::num_tiles(tensor->ne[1]) * num_matrices_of(tensor);
    const int64_t most = std::max<int64_t>(1, std::thread::hardware_concurrency());
    const int64_t num_threads = std::min({most, (int64_t)(size / PACKED_AT_ONCE) + 1, tiles});
    std::vector<std::thread> others;
    for (int64_t i = 1; i < num_threads; i++)
        others.emplace_back(pack, tensor, (const uint8_t *)data, i * tiles / num_threads, (i + 1) * tiles / num_threads);
    pack(tensor, (const uint8_t *)data, 0, tiles / num_threads);
    for (auto & other : others) other.join();
}

const char * buffer_name(ggml_backend_buffer_type_t) { return "CPU_DUODEC"; }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!buffer) return nullptr;
    duodec::use_huge_pages(ggml_backend_buffer_get_base(buffer), size);
    buffer->buft = type;
    free_memory = buffer->iface.free_buffer;
    buffer->iface.free_buffer = free_buffer;
    buffer->iface.init_tensor = init_tensor;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = nullptr;
    buffer->iface.cpy_tensor = nullptr;
    return buffer;
}

size_t alignment(ggml_backend_buffer_type_t) { return duodec::LINE; }

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    static const bool is_chosen = (duodec::num_streams = duodec::fastest_num_streams(), true);  // before any is packed
    (void)is_chosen;
    const Kernel * kernel = is_made_smaller(tensor) ? kernel_of(SMALL) : kernel_for(tensor);
    return kernel ? matrix_bytes(*kernel, tensor) * num_matrices_of(tensor) : ggml_nbytes(tensor);
}

// Not where it is a view of packed weights that divides them into other matrices, or leaves some out.
bool is_packed_as_seen(const ggml_tensor * weights) {
    const ggml_tensor * whole = weights->view_src ? weights->view_src : weights;
    return weights->extra && weights->data == whole->data && weights->ne[0] == whole->ne[0] && weights->ne[1] == whole->ne[1] &&
           num_matrices_of(weights) == num_matrices_of(whole);
}

class Extra : public ggml::cpu::extra_buffer_type {
    static bool is_ours(const ggml_tensor * op) {
        const ggml_tensor * weights = op->src[0];
        return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && weights->buffer && weights->buffer->buft == buffer_type();
    }

  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if (!is_ours(op) || !kernel_for(op->src[0]) || op->src[1]->type != GGML_TYPE_F32) return false;
        return !op->src[1]->buffer || ggml_backend_buft_is_host(op->src[1]->buffer->buft);
    }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        if (is_attention(op)) return &attention_traits;
        if (!is_ours(op)) return nullptr;
        GGML_ASSERT(is_packed_as_seen(op->src[0]));  // nobody else can read it
        return (ggml::cpu::tensor_traits *)op->src[0]->extra;
    }
};

Extra extra;

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type type = {
        {buffer_name, alloc_buffer, alignment, nullptr, alloc_size, nullptr},
        ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        &extra,
    };
    return &type;
}

// --- caches

// llama.cpp clears a cache when it makes it. Written, it would take all of its memory at once; this way it takes what its texts fill.
void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    void * begin = ggml_backend_buffer_get_base(buffer);
    if (value || !duodec::zero_when_used(begin, buffer->size)) memset(begin, value, buffer->size);
}

ggml_backend_buffer_t (*alloc_plain)(ggml_backend_buffer_type_t, size_t);

ggml_backend_buffer_t alloc_cleared_by_us(ggml_backend_buffer_type_t type, size_t size) {
    ggml_backend_buffer_t buffer = alloc_plain(type, size);
    if (buffer) buffer->iface.clear = clear;
    return buffer;
}

const bool is_registered = [] {
    const char * chosen = getenv("DUODEC_KERNELS");
    if (!DUODEC_IS_FAST || (chosen && !strcmp(chosen, "off"))) return false;
    ggml_backend_cpu_get_extra_buffer_types() = {buffer_type()};
    auto & plain = ggml_backend_cpu_buffer_type()->iface;
    alloc_plain = plain.alloc_buffer;
    plain.alloc_buffer = alloc_cleared_by_us;
    return true;
}();

}  // namespace

#define DUODEC_EXPORT extern "C" __attribute__((visibility("default")))

// The instruction set that weights are packed for; an empty text where llama.cpp's own kernels compute.
DUODEC_EXPORT const char * duodec_kernels(void) { return is_registered ? duodec::Lanes::NAME : ""; }

// The bytes that weights of a type of ggml take when they are packed, for each byte in the file; 0: they are not packed.
DUODEC_EXPORT double duodec_packed_size(int type) {
    const Kernel * kernel = kernel_of(type);
    if (!kernel) return 0;
    constexpr int64_t ROWS = 1 << 20, COLUMNS = 256;  // whole blocks of every format; space between streams does not count
    return (double)kernel->matrix_bytes(ROWS, COLUMNS) / (double)(ROWS * COLUMNS / kernel->columns * kernel->block_bytes);
}

// The name of an operation on the CPU that is not computed by our kernels, a space, and the name of the first tensor that it
// reads, until the next call; null for other operations, and where nothing is computed.
DUODEC_EXPORT const char * duodec_left(const ggml_tensor * op) {
    static thread_local std::string left;
    const bool is_elsewhere = op->buffer && !ggml_backend_buffer_is_host(op->buffer);
    if (is_elsewhere || ggml_op_is_empty(op->op) || (is_registered && extra.get_tensor_traits(op))) return nullptr;
    left = std::string(ggml_op_name(op->op)) + " " + (op->src[0] ? op->src[0]->name : "");
    return left.c_str();
}

// Packs the rows of heads of `num` rows that this thread loads from now on in this order, a permutation; 0: as the file has them.
DUODEC_EXPORT void duodec_order_rows(const int32_t * order, int64_t num) {
    next_order.assign(order, order + num);
    if (num) last_head = nullptr;
}

// Packs the weights that this thread loads from now on in fewer bits, where theirs are more; or as the file has them.
DUODEC_EXPORT void duodec_pack_small(bool is_small) { packs_small = is_small; }

// The head that this thread has loaded since an order was named; null where none was ordered. It lives as long as its model.
DUODEC_EXPORT void * duodec_ordered_head(void) { return last_head; }

// Computes the tiles of the first `num_first` rows of a head in its order, and those of `num` rows more, from the next forward
// pass on. None runs meanwhile.
DUODEC_EXPORT void duodec_compute_rows(void * head, int64_t num_first, const int32_t * rows, int64_t num) {
    ((Head *)head)->compute(num_first, rows, num);
}

namespace { double attention_deviation(); }

// How far products of all formats are from those of the weights as ggml reads them, in float64: the largest error, as a share of
// the products' root mean square; and of attention likewise. Not a number where one is not finite.
DUODEC_EXPORT double duodec_deviation(void) {
    constexpr int64_t columns = 512, rows = 40, num_x = 5;
    std::vector<float> weights(rows * columns), x(num_x * columns), read(columns);
    uint32_t state = 1;
    const auto next = [&] { state = state * 1664525u + 1013904223u; return (float)(int32_t)state / 2147483648.0f; };
    for (float & w : weights) w = next() + next() + next();
    for (float & value : x) value = next() + next() + next();
    double worst = attention_deviation();
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const Kernel * kernel = kernel_of(type);
        if (!kernel) continue;
        const ggml_type_traits * traits_of = ggml_get_type_traits((ggml_type)type);
        const int64_t file_row = (int64_t)ggml_row_size((ggml_type)type, columns);
        std::vector<uint8_t> file(rows * file_row), packed(kernel->matrix_bytes(rows, columns) + 64), group(num_x * kernel->row_bytes(columns) + 64);
        if (type == GGML_TYPE_F32) memcpy(file.data(), weights.data(), file.size());
        else if (kernel->columns == 1) ggml_quantize_chunk((ggml_type)type, weights.data(), file.data(), 0, rows, columns, nullptr);
        else  // any blocks of weights of ordinary size: ggml needs seconds before it rounds to some formats
            for (size_t at = 0; at < file.size(); at += kernel->block_bytes)
                for (float most = 0; !(most > 0.5f && most < 8.0f);) {
                    for (int i = 0; i < kernel->block_bytes; i++) file[at + i] = (next(), (uint8_t)(state >> 24));
                    traits_of->to_float(file.data() + at, read.data(), kernel->columns);
                    most = 0;
                    for (int k = 0; k < kernel->columns; k++) most = std::isfinite(read[k]) ? std::max(most, std::abs(read[k])) : 9.0f + most;
                }
        uint8_t * matrix = (uint8_t *)(((uintptr_t)packed.data() + 63) / 64 * 64);
        for (int64_t t = 0; t < duodec::num_tiles(rows); t++) kernel->pack_tile(matrix, rows, columns, t, file.data() + t * TILE * file_row, file_row);
        std::vector<float> products(num_x * rows);
        const Groups groups(*kernel, 0, num_x);
        for (int64_t g = 0; g < groups.num_groups; g++) {
            float * out[duodec::MOST_ROWS];
            uint8_t * at = group.data() + groups.first(g) * kernel->row_bytes(columns);
            for (int m = 0; m < groups.rows(g); m++) {
                kernel->put_row(at, m, groups.rows(g), x.data() + (groups.first(g) + m) * columns, 0, columns);
                out[m] = products.data() + (groups.first(g) + m) * rows;
            }
            duodec::multiply_tiles(*kernel, matrix, rows, nullptr, columns, 0, duodec::num_tiles(rows), at, groups.rows(g), out);
        }
        double most = 0, squares = 0;
        for (int64_t r = 0; r < rows; r++) {
            if (type == GGML_TYPE_F32) memcpy(read.data(), file.data() + r * file_row, file_row);
            else traits_of->to_float(file.data() + r * file_row, read.data(), columns);
            for (int64_t i = 0; i < num_x; i++) {
                double expected = 0;
                for (int64_t k = 0; k < columns; k++) expected += (double)read[k] * x[i * columns + k];
                most = std::max(most, std::abs(expected - products[i * rows + r]));
                squares += expected * expected;
                if (!std::isfinite(products[i * rows + r])) return std::nan("");
            }
        }
        worst = std::max(worst, most / std::sqrt(squares / (double)(rows * num_x)));
    }
    return worst;
}

namespace {

double attention_deviation() {
    constexpr int64_t size = 128, num = 77, stride = 2 * size, rows = duodec::TOKENS;  // of every other cell
    uint32_t state = 7;
    const auto next = [&] { state = state * 1664525u + 1013904223u; return (float)(int32_t)state / 2147483648.0f; };
    double most = 0, squares = 0;
    int64_t num_found = 0;
    for (int kind = 0; kind < 4; kind++) {
        const bool is_key_bfloat = kind & 1, is_value_bfloat = kind & 2;
        std::vector<uint16_t> keys(num * stride), values(num * stride), mask(rows * num);
        const auto to_short = [](float x, bool is_bfloat) -> uint16_t { return is_bfloat ? ggml_fp32_to_bf16(x).bits : ggml_fp32_to_fp16(x); };
        const auto to_double = [](uint16_t x, bool is_bfloat) -> double { return is_bfloat ? ggml_bf16_to_fp32(ggml_bf16_t{x}) : ggml_fp16_to_fp32(x); };
        for (auto & x : keys) x = to_short(next(), is_key_bfloat);
        for (auto & x : values) x = to_short(next(), is_value_bfloat);
        // each row sees one cell more than the one before, as drafts do
        for (int64_t r = 0; r < rows; r++) for (int64_t c = 0; c < num; c++) mask[r * num + c] = c < num - rows + r ? ggml_fp32_to_fp16(c % 3 ? 0.0f : next()) : 0xfc00;
        for (int64_t heads = 1; heads <= duodec::HEADS; heads++) {
            std::vector<float> queries(rows * heads * size), found(rows * heads * size);
            for (auto & x : queries) x = 4 * next();
            const int64_t head = 4 * size, row = heads * head, last = num * 2 * stride;
            const duodec::Attention a = {rows, 1, heads, num, 1, 0.25f, (const char *)queries.data(), row, head, rows * row,
                {(const char *)keys.data(), 2 * stride, 2 * size, last, 1, size, is_key_bfloat}, {(const char *)values.data(), 2 * stride, 2 * size, last, 1, size, is_value_bfloat},
                (const char *)mask.data(), 2 * num, 2 * rows * num, 1, (char *)found.data(), row, head, rows * row};
            std::vector<char> work(a.num_bytes());
            duodec::compute_attention(a, 0, 1, work.data());
            for (int64_t q = 0; q < rows * heads; q++) {
                std::vector<double> weights(num), expected(size);
                double sum = 0;
                for (int64_t c = 0; c < num - rows + q / heads; c++) {
                    double score = 0;
                    for (int64_t d = 0; d < size; d++) score += queries[q * size + d] * to_double(keys[c * stride + d], is_key_bfloat);
                    sum += weights[c] = std::exp(0.25 * score + ggml_fp16_to_fp32(mask[q / heads * num + c]));
                }
                for (int64_t d = 0; d < size; d++, num_found++) {
                    for (int64_t c = 0; c < num; c++) expected[d] += weights[c] / sum * to_double(values[c * stride + d], is_value_bfloat);
                    if (!std::isfinite(found[q * size + d])) return std::nan("");
                    most = std::max(most, std::abs(expected[d] - found[q * size + d]));
                    squares += expected[d] * expected[d];
                }
            }
        }
    }
    return most / std::sqrt(squares / num_found);
}

}  // namespace
