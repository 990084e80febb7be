// Times forward passes of a GGUF model on the CPU through llama.h, and compares their logits.
//
//     rows MODEL THREADS REPEATS START [repack] [compare] < TOKENS
//
// The tokens come as numbers, separated by spaces. One line of JSON: milliseconds of a pass over 1, 2, 4, 8, 16 and 32 rows that
// follow START tokens (medians), of a prefill by token, seconds of loading, and with `compare` the most that a logit moves between
// widths and threads. Compiled with -DIK for ik_llama.cpp, whose llama.h is of another age; `repack` is its run-time repacking.
//
// The state of a recurrent model is saved after START tokens, and put back before each pass: that takes it back behind any number of
// rows, and is not timed. A pass of llama.cpp's keeps the states after its last rows, as one does that scores drafts; ik_llama.cpp's
// keeps one.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

static const int WIDTHS[] = {1, 2, 4, 8, 16, 32};
static const int COMPARED[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64}, COMPARED_ALONE[] = {1, 8, 64};  // with all threads, with one
static const int SNAPSHOTS = 8;  // states of a recurrent model that a pass keeps
static const int PREFILL = 512, COMPARED_TEXT = 96, COMPARED_ROWS = 64;

static double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

static void fail(const char * words) {
    fprintf(stderr, "rows: %s\n", words);
    exit(3);
}

struct Model {
    llama_model * model;
    llama_context * context;
    llama_batch batch;
    bool is_recurrent;
    std::vector<uint8_t> kept;  // what a recurrent model holds after START tokens

    Model(const char * path, int threads, int num_context, bool repacks) {
        llama_backend_init();
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = 0;
        llama_context_params of_context = llama_context_default_params();
#ifdef IK
        params.repack_tensors = repacks;
        if (repacks) params.use_mmap = false;
        of_context.flash_attn = true;  // as its programs have it
#else
        params.no_host = true;  // else weights are not laid out for kernels where a GPU is
        (void)repacks;
#endif
        model = llama_model_load_from_file(path, params);
        if (!model) exit(2);
        is_recurrent = llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
#ifndef IK
        if (is_recurrent) of_context.n_rs_seq = SNAPSHOTS;
#endif
        of_context.n_ctx = of_context.n_batch = num_context;
        of_context.n_threads = of_context.n_threads_batch = threads;
        context = llama_init_from_model(model, of_context);
        if (!context) exit(2);
        batch = llama_batch_init(num_context, 0, 1);
    }

    int num_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

    // Lets `forget_from` go back to what is held now.
    void keep() {
        if (!is_recurrent) return;
#ifdef IK
        kept.resize(llama_state_seq_get_size(context, 0, 0));
        const size_t size = llama_state_seq_get_data(context, kept.data(), kept.size(), 0, 0);
#else
        kept.resize(llama_state_seq_get_size(context, 0));
        const size_t size = llama_state_seq_get_data(context, kept.data(), kept.size(), 0);
#endif
        if (!size) fail("this library cannot save the state of a recurrent model");
    }

    // To the beginning, or to what `keep` has kept.
    void forget_from(int position) {
        if (is_recurrent && position > 0) {
#ifdef IK
            const size_t size = llama_state_seq_set_data(context, kept.data(), kept.size(), 0, 0);
#else
            const size_t size = llama_state_seq_set_data(context, kept.data(), kept.size(), 0);
#endif
            if (!size) fail("this library cannot put back the state of a recurrent model");
            return;
        }
#ifdef IK
        llama_kv_cache_seq_rm(context, 0, position, -1);
#else
        llama_memory_seq_rm(llama_get_memory(context), 0, position, -1);
#endif
    }

    // Computes tokens [begin, end) of a text, whose first ones are cached; a row of logits for each of the last so many.
    void compute(const std::vector<llama_token> & tokens, int begin, int end, int num_rows) {
        batch.n_tokens = end - begin;
        for (int i = begin; i < end; i++) {
            const int k = i - begin;
            batch.token[k] = tokens[i];
            batch.pos[k] = i;
            batch.n_seq_id[k] = 1;
            batch.seq_id[k][0] = 0;
            batch.logits[k] = i >= end - num_rows;
        }
        if (llama_decode(context, batch) != 0) {
            fprintf(stderr, "rows: llama_decode failed for %d tokens after %d\n", end - begin, begin);
            exit(3);
        }
        llama_get_logits_ith(context, batch.n_tokens - 1);  // waits for the result
    }
};

// How far the logits of a text's last rows move with the width in which they, and the text before, are computed, and with threads.
struct Compared {
    std::vector<float> first;
    double most = 0;

    void add(Model & model, const std::vector<llama_token> & tokens, int width) {
        const int start = COMPARED_TEXT - COMPARED_ROWS, num_vocab = model.num_vocab();
        const bool is_first = first.empty();
        first.resize((size_t)COMPARED_ROWS * num_vocab);
        model.forget_from(0);
        for (int begin = 0, end; begin < COMPARED_TEXT; begin = end) {
            const bool is_compared = begin >= start;
            end = std::min(begin + width, is_compared ? COMPARED_TEXT : start);
            model.compute(tokens, begin, end, is_compared ? end - begin : 1);
            for (int i = begin; is_compared && i < end; i++) {
                const float * row = llama_get_logits_ith(model.context, i - begin);
                float * same = first.data() + (size_t)(i - start) * num_vocab;
                if (is_first) memcpy(same, row, num_vocab * sizeof(float));
                for (int v = 0; v < num_vocab; v++) most = std::max(most, (double)std::fabs(row[v] - same[v]));
            }
        }
    }
};

static double deviation(Model & model, const std::vector<llama_token> & tokens, int threads) {
    Compared compared;
    for (int width : COMPARED) compared.add(model, tokens, width);
    llama_set_n_threads(model.context, 1, 1);
    for (int width : COMPARED_ALONE) compared.add(model, tokens, width);
    llama_set_n_threads(model.context, threads, threads);
    return compared.most;
}

int main(int count, char ** words) {
    if (count < 5) {
        fprintf(stderr, "usage: rows MODEL THREADS REPEATS START [repack] [compare] < TOKENS\n");
        return 2;
    }
    const int threads = atoi(words[2]), repeats = atoi(words[3]), start = atoi(words[4]);
    bool repacks = false, compares = false;
    for (int i = 5; i < count; i++) (strcmp(words[i], "compare") ? repacks : compares) = true;
    std::vector<llama_token> tokens;
    for (int token; scanf("%d", &token) == 1;) tokens.push_back(token);
    const int most = std::max(PREFILL, std::max(COMPARED_TEXT, start + 32));
    if ((int)tokens.size() < most) {
        fprintf(stderr, "rows: %zu tokens on standard input; give %d\n", tokens.size(), most);
        return 2;
    }
    const double begin_s = now_s();
    Model model(words[1], threads, most, repacks);
    const double load_s = now_s() - begin_s;
    model.compute(tokens, 0, start, 1);
    model.keep();
    model.compute(tokens, start, start + 32, 32);  // what is done once
    constexpr int num_widths = sizeof(WIDTHS) / sizeof(*WIDTHS);
    std::vector<double> times[num_widths], prefill;
    for (int repeat = 0; repeat < repeats; repeat++)
        for (int i = 0; i < num_widths; i++) {
            model.forget_from(start);
            const double from_s = now_s();
            model.compute(tokens, start, start + WIDTHS[i], WIDTHS[i]);
            times[i].push_back((now_s() - from_s) * 1e3);
        }
    for (int repeat = 0; repeat < 3; repeat++) {
        model.forget_from(0);
        const double from_s = now_s();
        model.compute(tokens, 0, PREFILL, 1);
        prefill.push_back((now_s() - from_s) * 1e3 / PREFILL);
    }
    printf("{\"load_s\": %.3f, \"prefill_ms\": %.4f, \"forward_ms\": {", load_s, median(prefill));
    for (int i = 0; i < num_widths; i++) printf("%s\"%d\": %.4f", i ? ", " : "", WIDTHS[i], median(times[i]));
    if (compares) printf("}, \"deviation\": %.6g", deviation(model, tokens, threads));
    else printf("}, \"deviation\": null");
    printf(", \"system\": \"%s\"}\n", llama_print_system_info());
}
