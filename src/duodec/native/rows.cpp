#include "rows.h"

namespace {

Context context_of(const int32_t *tokens, int64_t num) {
    Context context;
    for (int64_t i = std::max<int64_t>(0, num - MAX_ORDER); i < num; ++i) context.push(tokens[i]);
    return context;
}

}  // namespace

extern "C" {

int64_t duodec_max_order() { return MAX_ORDER; }
int64_t duodec_num_candidates() { return NUM_CANDIDATES; }

Rows *duodec_rows_new(int64_t max_contexts) {
    Rows *rows = new Rows;
    rows->max_contexts = max_contexts;
    return rows;
}

void duodec_rows_free(Rows *rows) { delete rows; }

int64_t duodec_rows_size(const Rows *rows) {
    int64_t size = 0;
    for (const auto &known : rows->known) size += int64_t(known.size());
    return size;
}

// Without confidences: a null pointer.
void duodec_rows_add(Rows *rows, const int32_t *context, int64_t length, const int32_t *tokens,
                     const double *confidences, int64_t num) {
    Row row;
    row.num = int32_t(std::min<int64_t>(num, NUM_CANDIDATES));
    std::copy_n(tokens, row.num, row.tokens);
    if ((row.has_confidences = confidences != nullptr))
        std::copy_n(confidences, row.num, row.confidences);
    rows->add(context_of(context, length), row);
}

// Returns the length of the known context, 0 if none is. `num` is negative without confidences.
int64_t duodec_rows_longest(const Rows *rows, const int32_t *context, int64_t length,
                            int32_t *tokens, double *confidences, int64_t *num) {
    const Row *row = nullptr;
    const int order = rows->longest(context_of(context, length), &row);
    if (!order) return 0;
    std::copy_n(row->tokens, row->num, tokens);
    if (row->has_confidences) std::copy_n(row->confidences, row->num, confidences);
    *num = row->has_confidences ? row->num : -row->num;
    return order;
}
}
