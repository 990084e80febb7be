// Grow the tree of `planning/selection.py`, and learn from the tokens that came. What is tuned stands
// there and comes with each request. `tests/fakes/oracles.py` does the same, with the same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
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
    double prior_weight, memory, share;
    double least, spread;  // of likelihoods under noise
    double by_rank[NUM_CANDIDATES], by_length[NUM_LENGTHS], lengths[NUM_LENGTHS];
    double num_ranks, num_edges;
    double edges[1];  // and more
};

struct Table {  // an `Acceptance`
    double *num_right, *num_seen;

    int64_t cell_of(const Constants &constants, double confidence, int64_t rank) const {
        const double *edges = constants.edges, *end = edges + int64_t(constants.num_edges);
        const auto bin = std::upper_bound(edges, end, confidence) - edges;
        const int64_t num_ranks = int64_t(constants.num_ranks);
        return bin * num_ranks + std::min(rank, num_ranks - 1);
    }

    double estimate(const Constants &constants, double confidence, int64_t rank) const {
        const int64_t cell = cell_of(constants, confidence, rank);
        const double right = num_right[cell] + constants.prior_weight * confidence;
        return right / (num_seen[cell] + constants.prior_weight);
    }

    void observe(const Constants &constants, double confidence, int64_t rank, bool is_right) {
        const int64_t cell = cell_of(constants, confidence, rank);
        if (num_seen[cell] >= constants.memory) num_right[cell] *= 0.5, num_seen[cell] *= 0.5;
        num_right[cell] += is_right;
        num_seen[cell] += 1;
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
    Learned *learned;
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

struct JudgedRow {
    int64_t num = 0;
    Table *table = nullptr;
    Judged judged[NUM_CANDIDATES];
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

// What the sources propose at a node. The workspace is kept between calls, so that none allocates.
class Sources {
  protected:
    // Returns where the sources stand at the end of the text.
    State begin(const Request &request) {
        r = request;
        tree.build(r.parents, r.num_nodes);
        for (int64_t i = 0; i < r.num_texts; ++i) {
            texts[i].build(r.texts[i].parents, r.texts[i].num);
            depths[i].resize(r.texts[i].num);
            for (int64_t node = 0; node < r.texts[i].num; ++node) {
                int32_t parent = r.texts[i].parents[node];
                depths[i][node] = parent == ROOT ? 1 : depths[i][parent] + 1;
            }
        }
        State state;
        std::fill_n(state.at, NUM_SOURCES, int32_t(NOWHERE));
        state.depth = 0;
        state.at[DRAFT] = int32_t(r.root);
        for (int64_t i = 0; i < r.num_texts; ++i) state.at[TEXTS + i] = ROOT;
        for (int64_t i = 0; i < r.num_end; ++i) state.context.push(int32_t(r.end[i]));
        return state;
    }

    double estimate(const Table &table, double confidence, int64_t rank) const {
        return table.estimate(*r.constants, confidence, rank);
    }

    // Find what all sources but `left_out` propose at a node of that value. Returns how many propose
    // something; the last of them is `only`.
    int ask_all(const State &state, double value, int &only, int left_out = NUM_SOURCES) {
        const double share = r.constants->share * r.least / value;
        int num_asked = 0;
        for (int source = 0; source < TEXTS + r.num_texts; ++source) {
            found[source].clear();
            if (source != left_out) ask(source, state, share);
            if (!found[source].empty()) ++num_asked, only = source;
        }
        return num_asked;
    }

    // Each token that was found once.
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

    Pattern pattern_of(const Merged &one) const {
        return one.mask & (one.mask - 1) ? TOGETHER
               : one.mask & 1            ? DRAFT_ALONE
               : found[DRAFT].empty()    ? ALONE
                                         : UNLIKE_DRAFT;
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
        JudgedRow row = judged_row(state);
        for (int64_t i = 0; i < row.num; ++i)
            offer(ROWS, estimate(*row.table, row.judged[i].confidence, i), row.judged[i].token,
                  NOWHERE, least);
    }

    JudgedRow judged_row(const State &state) {
        JudgedRow judged;
        const Row *row = nullptr;
        const int length = r.rows ? r.rows->longest(state.context, &row) : 0;
        if (!length || !row->num) return judged;
        const double *confidences = row->has_confidences ? row->confidences : r.constants->by_rank;
        judged.num = row->num, judged.table = &r.learned->by_order[length - 1];
        for (int64_t i = 0; i < row->num; ++i) judged.judged[i] = {row->tokens[i], confidences[i]};
        if (r.power) order_anew(judged.judged, row->num, key_at(state.depth));
        return judged;
    }

    void ask_text(int64_t number, const State &state, double least) {
        const Text &text = r.texts[number];
        const int32_t node = state.at[TEXTS + number];
        const auto [table, sure] = judge_of(number, node);
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

    // What was learned of a text's tokens after a node, and how likely one is whose share is 1.
    std::pair<Table *, double> judge_of(int64_t number, int32_t node) const {
        const Text &text = r.texts[number];
        if (text.length <= 0) return {text.length ? &r.learned->heads : &r.learned->stored, 1.0};
        const double length = double(text.length + (node == ROOT ? 0 : depths[number][node]));
        const double *shortest = r.constants->lengths;  // of each kind
        const auto kind =
            std::upper_bound(shortest + 1, shortest + NUM_LENGTHS, length) - shortest - 1;
        return {&r.learned->by_length[kind], r.constants->by_length[kind]};
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
    Children tree, texts[MAX_TEXTS];
    std::vector<int32_t> depths[MAX_TEXTS];
    std::vector<Successor> found[NUM_SOURCES];
    std::vector<Merged> merged;
};

class Growth : Sources {
  public:
    // Returns the number of nodes; their values are followed by the reach.
    int64_t run(const Request &request, int32_t *tokens, int32_t *parents, double *values) {
        order = 0;
        states.clear();
        edges.clear();
        State state = begin(request);
        const int64_t depth = r.num_tokens ? r.depth : 0;
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
    // Returns the likelihood that the next token is among a node's successors.
    double expand(const State &state, int32_t node, double value, int32_t deep) {
        int only = 0;
        const int num_asked = ask_all(state, value, only);
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
            for (const Merged &one : merged) {
                const double likely =
                    estimate(r.learned->agreement, 1.0 - one.none, pattern_of(one));
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

    int64_t order = 0;
    std::vector<State> states;  // of the root, then of each node
    std::vector<Edge> edges;    // a heap
};

struct Selected {  // nodes of a tree that was grown
    const int32_t *tokens, *parents;
    const double *values;
    int64_t num;

    int64_t child(int64_t node, int32_t token) const {
        for (int64_t i = 0; i < num; ++i)
            if (parents[i] == node && tokens[i] == token) return i;
        return NOWHERE;
    }
};

// Goes along tokens that came, and asks the sources again: to keep what they all said would cost
// time between two forward passes.
class Walk : Sources {
  public:
    // Label what was proposed along these tokens. Counts tokens whose parent's successors were
    // known, and those of them that a source without a model proposed.
    void learn(const Request &request, const Selected &selected, const int32_t *tokens, int64_t num,
               int64_t *counts) {
        State state = begin(request);
        int64_t node = ROOT;
        double value = 1.0;
        counts[0] = counts[1] = 0;
        for (int64_t i = 0; i < std::min(num, r.depth); ++i) {
            const int32_t token = tokens[i];
            ++counts[0];
            const Merged *next = find(state, value, token);
            bool is_without_draft = false;
            for (const Merged &one : merged) {
                const bool is_right = one.token == token;
                r.learned->agreement.observe(*r.constants, 1.0 - one.none, pattern_of(one),
                                             is_right);
                is_without_draft |= is_right && pattern_of(one) != DRAFT_ALONE;
            }
            counts[1] += is_without_draft;
            label(state, token);
            node = selected.child(node, token);
            if (node == NOWHERE || !next) return;  // others have taught meanwhile
            value = selected.values[node];
            follow(state, *next);
        }
    }

    // What these tokens are worth to all sources but one, one after the other. Returns how many of
    // them are proposed.
    int64_t without(const Request &request, int source, const int32_t *tokens, int64_t num,
                    double *values) {
        State state = begin(request);
        double value = 1.0;
        for (int64_t i = 0; i < num; ++i) {
            const Merged *next = find(state, value, tokens[i], source);
            if (!next) return i;
            value *= estimate(r.learned->agreement, 1.0 - next->none, pattern_of(*next));
            values[i] = value;
            follow(state, *next);
        }
        return num;
    }

  private:
    const Merged *find(const State &state, double value, int32_t token,
                       int left_out = NUM_SOURCES) {
        int only = 0;
        ask_all(state, value, only, left_out);
        merge();
        for (const Merged &one : merged)
            if (one.token == token) return &one;
        return nullptr;
    }

    static void follow(State &state, const Merged &one) {
        std::copy_n(one.at, NUM_SOURCES, state.at);
        state.context.push(one.token);
        ++state.depth;
    }

    // Each source but the draft model's tree learns of itself; the latter elsewhere.
    void label(const State &state, int32_t token) {
        JudgedRow row = judged_row(state);
        for (int64_t i = 0; i < row.num; ++i)
            row.table->observe(*r.constants, row.judged[i].confidence, i,
                               row.judged[i].token == token);
        for (int64_t number = 0; number < r.num_texts; ++number) {
            const int32_t node = state.at[TEXTS + number];
            if (node == NOWHERE) continue;
            const Text &text = r.texts[number];
            const auto [table, sure] = judge_of(number, node);
            const double above = node == ROOT ? 1.0 : text.shares[node];
            const Children &children = texts[number];
            int64_t rank = 0;
            int32_t child = children.first[node + 1];
            for (; child != NOWHERE; child = children.next[child])
                table->observe(*r.constants, sure * text.shares[child] / above, rank++,
                               text.tokens[child] == token);
        }
    }
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

// Learn from `num` tokens that came where a tree of `num_nodes` nodes was grown; two counts.
void duodec_learn(const void *request, const int32_t *nodes, const int32_t *parents,
                  const double *values, int64_t num_nodes, const int32_t *tokens, int64_t num,
                  int64_t *counts) {
    thread_local Walk walk;
    walk.learn(*static_cast<const Request *>(request), {nodes, parents, values, num_nodes}, tokens,
               num, counts);
}

// The values of `num` tokens without a source; how many of them the others propose.
int64_t duodec_without(const void *request, int64_t source, const int32_t *tokens, int64_t num,
                       double *values) {
    thread_local Walk walk;
    return walk.without(*static_cast<const Request *>(request), int(source), tokens, num, values);
}
}
