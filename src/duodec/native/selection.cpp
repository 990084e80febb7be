// Grow the tree of `planning/selection.py`. What is tuned stands there and comes with each request.
// `tests/fakes/oracles.py` finds the same nodes in the same order, with the same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "noise.h"
#include "rows.h"

namespace {

constexpr int64_t ROOT = -1, NOWHERE = -2;
constexpr double TICK_S = 1e-9;  // the least that a forward pass takes
constexpr int NUM_LENGTHS = 5, MAX_TEXTS = 4;
constexpr int DRAFT = 0, ROWS = 1, TEXTS = 2, NUM_SOURCES = TEXTS + MAX_TEXTS;
enum Pattern { ALONE, UNLIKE_DRAFT, DRAFT_ALONE, TOGETHER };  // who proposes a token

// --- what is asked; every field has 8 bytes

struct Constants {
    double prior_weight, share;
    double least, spread;  // of likelihoods under noise
    double by_rank[NUM_CANDIDATES], by_length[NUM_LENGTHS], lengths[NUM_LENGTHS];
    double num_ranks, num_edges;
    double edges[1];  // and more
};

struct Table {  // an `Acceptance`
    const double *num_right, *num_seen;

    double estimate(const Constants &constants, double confidence, int64_t rank) const {
        const double *edges = constants.edges, *end = edges + int64_t(constants.num_edges);
        const auto bin = std::upper_bound(edges, end, confidence) - edges;
        const int64_t num_ranks = int64_t(constants.num_ranks);
        const int64_t cell = bin * num_ranks + std::min(rank, num_ranks - 1);
        const double right = num_right[cell] + constants.prior_weight * confidence;
        return right / (num_seen[cell] + constants.prior_weight);
    }
};

struct Text {  // a `MatchSource`; with a length of 0 a `StoredSource`, with -1 a `HeadSource`
    int64_t num;
    const int32_t *tokens, *parents;
    const double *shares;
    int64_t length;
};

struct Learned {
    Table by_order[MAX_ORDER], by_length[NUM_LENGTHS], stored, heads, agreement;
};

struct Request {
    const Constants *constants;
    const Learned *learned;
    const int32_t *tokens, *parents;  // the draft model's tree
    const double *confidences;
    int64_t num_nodes, root;
    Table draft;
    const Rows *rows;  // none: a null pointer
    int64_t end[MAX_ORDER], num_end;  // of the text
    int64_t num_texts;
    Text texts[MAX_TEXTS];
    int64_t num_tokens, depth, has_branches;
    double least;
    double power;  // of a likelihood at temperature 1; 0: no draw is sampled
    uint64_t seed;
    int64_t choice, position;  // of the token after the text
};

static_assert(sizeof(Request) == 8 * (38 + 5), "as Python packs it");

// --- selection

struct State {  // where each source stands at a node
    int32_t at[NUM_SOURCES];  // a node of its own; NOWHERE
    Context context;          // of the rows, which stand everywhere
    int32_t depth;            // under the text
};

struct Successor {
    int32_t token;
    double likelihood;
    int32_t at;
};

struct Judged {  // of a row
    int32_t token;
    double confidence;
};

struct Edge {
    double value;
    int64_t order;
    int32_t parent, token, depth;
    int32_t at[NUM_SOURCES];

    bool operator<(const Edge &other) const {  // a heap gives out the greatest
        return value != other.value ? value < other.value : order > other.order;
    }
};

struct Merged {
    int32_t token;
    double none = 1.0;  // likelihood that no source is right
    uint32_t mask = 0;
    int32_t at[NUM_SOURCES];
};

struct Children {  // of each node, in their order
    std::vector<int32_t> first, last, next;

    void build(const int32_t *parents, int64_t num) {
        first.assign(num + 1, NOWHERE);
        last.assign(num + 1, NOWHERE);
        next.assign(num, NOWHERE);
        for (int32_t node = 0; node < num; ++node) {
            int32_t above = parents[node] + 1;
            (first[above] == NOWHERE ? first[above] : next[last[above]]) = node;
            last[above] = node;
        }
    }
};

struct Workspace {  // kept between calls, so that none allocates
    Children tree, texts[MAX_TEXTS];
    std::vector<int32_t> depths[MAX_TEXTS];
    std::vector<State> states;  // of the root, then of each node
    std::vector<Edge> edges;    // a heap
    std::vector<Successor> found[NUM_SOURCES];
    std::vector<Merged> merged;
};

class Growth : Workspace {
  public:
    // Returns the number of nodes; their values are followed by the reach.
    int64_t run(const Request &request, int32_t *tokens, int32_t *parents, double *values) {
        r = request;
        order = 0;
        states.clear();
        edges.clear();
        tree.build(r.parents, r.num_nodes);
        for (int64_t i = 0; i < r.num_texts; ++i) {
            texts[i].build(r.texts[i].parents, r.texts[i].num);
            depths[i].resize(r.texts[i].num);
            for (int64_t node = 0; node < r.texts[i].num; ++node) {
                int32_t parent = r.texts[i].parents[node];
                depths[i][node] = parent == ROOT ? 1 : depths[i][parent] + 1;
            }
        }
        const int64_t depth = r.num_tokens ? r.depth : 0;
        State state;
        std::fill_n(state.at, NUM_SOURCES, int32_t(NOWHERE));
        state.depth = 0;
        state.at[DRAFT] = int32_t(r.root);
        for (int64_t i = 0; i < r.num_texts; ++i) state.at[TEXTS + i] = ROOT;
        for (int64_t i = 0; i < r.num_end; ++i) state.context.push(int32_t(r.end[i]));
        states.push_back(state);
        int32_t node = ROOT, deep = 0;
        double value = 1.0, reach = 0.0;
        int64_t count = 0;
        while (true) {
            if (deep < depth) {
                double sum = expand(state, node, value, deep);
                if (node == ROOT) reach = std::min(1.0, sum);
            }
            if (edges.empty() || count >= r.num_tokens) break;
            std::pop_heap(edges.begin(), edges.end());
            Edge edge = edges.back();
            edges.pop_back();
            if (!r.has_branches) edges.clear();
            state.context = states[edge.parent + 1].context;
            state.context.push(edge.token);
            std::copy_n(edge.at, NUM_SOURCES, state.at);
            state.depth = edge.depth;
            states.push_back(state);
            node = int32_t(count++);
            value = edge.value;
            deep = edge.depth;
            tokens[node] = edge.token;
            parents[node] = edge.parent;
            values[node] = value;
        }
        values[count] = reach;
        return count;
    }

  private:
    double estimate(const Table &table, double confidence, int64_t rank) const {
        return table.estimate(*r.constants, confidence, rank);
    }

    // Returns the likelihood that the next token is among a node's successors.
    double expand(const State &state, int32_t node, double value, int32_t deep) {
        const double share = r.constants->share * r.least / value;
        int num_asked = 0, only = 0;
        for (int source = 0; source < TEXTS + r.num_texts; ++source) {
            found[source].clear();
            ask(source, state, share);
            if (!found[source].empty()) ++num_asked, only = source;
        }
        double sum = 0.0;
        if (num_asked == 1) {
            const Pattern pattern = only == DRAFT ? DRAFT_ALONE : ALONE;
            for (const Successor &one : found[only]) {
                const double likely = estimate(r.learned->agreement, one.likelihood, pattern);
                sum += likely;
                Edge edge = edge_to(node, one.token, value * likely, deep);
                if (edge.value < r.least) continue;
                std::fill_n(edge.at, NUM_SOURCES, int32_t(NOWHERE));
                edge.at[only] = one.at;
                push(edge);
            }
        } else if (num_asked) {
            merge();
            const bool draft_knows = !found[DRAFT].empty();
            for (const Merged &one : merged) {
                const Pattern pattern = one.mask & (one.mask - 1) ? TOGETHER
                                        : one.mask & 1            ? DRAFT_ALONE
                                        : draft_knows             ? UNLIKE_DRAFT
                                                                  : ALONE;
                const double likely = estimate(r.learned->agreement, 1.0 - one.none, pattern);
                sum += likely;
                Edge edge = edge_to(node, one.token, value * likely, deep);
                if (edge.value < r.least) continue;
                std::copy_n(one.at, NUM_SOURCES, edge.at);
                push(edge);
            }
        }
        return sum;
    }

    static Edge edge_to(int32_t parent, int32_t token, double value, int32_t deep) {
        Edge edge;
        edge.value = value, edge.parent = parent, edge.token = token, edge.depth = deep + 1;
        return edge;
    }

    void push(Edge &edge) {
        edge.order = ++order;
        edges.push_back(edge);
        std::push_heap(edges.begin(), edges.end());
    }

    void merge() {
        merged.clear();
        for (int source = 0; source < TEXTS + r.num_texts; ++source)
            for (const Successor &one : found[source]) {
                auto known = std::find_if(merged.begin(), merged.end(), [&](const Merged &entry) {
                    return entry.token == one.token;
                });
                if (known == merged.end()) {
                    merged.emplace_back();
                    known = merged.end() - 1;
                    known->token = one.token;
                    std::fill_n(known->at, NUM_SOURCES, int32_t(NOWHERE));
                }
                known->none *= 1.0 - one.likelihood;
                known->mask |= 1u << source;
                known->at[source] = one.at;
            }
    }

    void ask(int source, const State &state, double least) {
        if (source == ROWS)
            ask_rows(state, least);
        else if (state.at[source] != NOWHERE)
            source == DRAFT ? ask_tree(state.at[DRAFT], least)
                            : ask_text(source - TEXTS, state, least);
    }

    void offer(int source, double likelihood, int32_t token, int32_t at, double least) {
        if (likelihood >= least) found[source].push_back({token, likelihood, at});
    }

    void ask_tree(int32_t node, double least) {
        int64_t rank = 0;
        for (int32_t child = tree.first[node + 1]; child != NOWHERE; child = tree.next[child])
            offer(DRAFT, estimate(r.draft, r.confidences[child], rank++), r.tokens[child], child,
                  least);
    }

    void ask_rows(const State &state, double least) {
        const Row *row = nullptr;
        const int length = r.rows ? r.rows->longest(state.context, &row) : 0;
        if (!length || !row->num) return;
        const double *confidences = row->has_confidences ? row->confidences : r.constants->by_rank;
        Judged judged[NUM_CANDIDATES];
        for (int64_t i = 0; i < row->num; ++i) judged[i] = {row->tokens[i], confidences[i]};
        if (r.power) order_anew(judged, row->num, key_at(state.depth));
        for (int64_t i = 0; i < row->num; ++i)
            offer(ROWS, estimate(r.learned->by_order[length - 1], judged[i].confidence, i),
                  judged[i].token, NOWHERE, least);
    }

    void ask_text(int64_t number, const State &state, double least) {
        const Text &text = r.texts[number];
        const int32_t node = state.at[TEXTS + number];
        const Table *table = text.length ? &r.learned->heads : &r.learned->stored;
        double sure = 1.0;
        if (text.length > 0) {
            const double length = double(text.length + (node == ROOT ? 0 : depths[number][node]));
            const double *shortest = r.constants->lengths;  // of each kind
            const auto kind =
                std::upper_bound(shortest + 1, shortest + NUM_LENGTHS, length) - shortest - 1;
            table = &r.learned->by_length[kind], sure = r.constants->by_length[kind];
        }
        const bool is_noisy = r.power && text.length >= 0;
        const uint64_t key = is_noisy ? key_at(state.depth) : 0;
        const double above = node == ROOT ? 1.0 : text.shares[node];
        const Children &children = texts[number];
        int64_t rank = 0;
        int32_t child = children.first[node + 1];
        for (; child != NOWHERE; child = children.next[child]) {
            double likelihood = estimate(*table, sure * text.shares[child] / above, rank++);
            if (is_noisy) likelihood = with_noise(likelihood, text.tokens[child], key);
            offer(TEXTS + int(number), likelihood, text.tokens[child], child, least);
        }
    }

    // --- a draw is foreseen by its noise: `planning/coupling.py`

    uint64_t key_at(int32_t depth) const {
        return key_of(r.seed, r.choice, uint64_t(r.position + depth));
    }

    double log_of_likelihood(double likelihood, double most = 1.0) const {
        return std::log(std::max(likelihood, r.constants->least) / most);
    }

    // Of a row.
    void order_anew(Judged *judged, int64_t num, uint64_t key) const {
        const double most = std::max(judged[0].confidence, r.constants->least);
        for (int64_t i = 0; i < num; ++i) {
            const Judged one = {judged[i].token,
                                r.power * log_of_likelihood(judged[i].confidence, most) +
                                    double(gumbel(bits_of(uint32_t(judged[i].token), key)))};
            int64_t place = i;
            for (; place && judged[place - 1].confidence < one.confidence; --place)
                judged[place] = judged[place - 1];
            judged[place] = one;
        }
        const double best = judged[0].confidence;
        double sum = 0.0;
        for (int64_t i = 0; i < num; ++i)
            sum += judged[i].confidence = std::exp(judged[i].confidence - best);
        for (int64_t i = 0; i < num; ++i) judged[i].confidence /= sum;
    }

    // Of a token that followed earlier.
    double with_noise(double likelihood, int32_t token, uint64_t key) const {
        const double likely = std::exp(r.constants->spread * log_of_likelihood(likelihood));
        const double noise = double(gumbel(bits_of(uint32_t(token), key)));
        return likelihood / likely * std::exp(-(1.0 - likely) / likely * std::exp(-noise));
    }

    Request r;
    int64_t order = 0;
};

}  // namespace

extern "C" {

// How many of `num` draft tokens to score: see `planning.compiled.fastest_width`. `seconds` and
// `worst` are by number of draft tokens, 0 to `num`.
int64_t duodec_fastest_width(const double *values, int64_t num, const double *seconds,
                             const double *worst, double trust, double caution, double lost,
                             double most_bet, double bet, double more_s) {
    const double plain_s = std::max(TICK_S, seconds[0] + more_s);
    double best = caution / plain_s, promised = 0.0;
    int64_t width = 0;
    for (int64_t i = 1; i <= num; ++i) {
        promised += trust * values[i - 1];
        const double most_lost = lost + std::min(most_bet, bet * promised);
        if (worst[i] + more_s > plain_s * (1.0 + most_lost)) continue;
        const double rate = (1.0 + promised) / std::max(TICK_S, seconds[i] + more_s);
        if (rate > best) best = rate, width = i;
    }
    return width;
}

// Room for `num_tokens` nodes, and one value more.
int64_t duodec_grow(const void *request, int32_t *tokens, int32_t *parents, double *values) {
    thread_local Growth growth;
    return growth.run(*static_cast<const Request *>(request), tokens, parents, values);
}
}
