// Grow the tree of `planning/selection.py`, and learn from the tokens that came. What is tuned stands
// there and comes with each request. `tests/fakes/oracles.py` does the same, with the same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "noise.h"
#include "rows.h"
#include "suffixes.h"

namespace {

constexpr int64_t ROOT = -1, NOWHERE = -2;
constexpr double TICK_S = 1e-9;  // the least that a forward pass takes
constexpr int NUM_LENGTHS = 5;
// kinds of sources, of each one at most
enum { DRAFT, ROWS, TEXTS, OWN = TEXTS, EARLIER, STORED, HEADS, NUM_SOURCES };

// --- what is asked; every field has 8 bytes

struct Constants {
    double prior_weight, memory;
    double least, spread;  // of likelihoods under noise
    double least_of_logit, rate, most_squares;  // of mixing
    double by_rank[NUM_CANDIDATES], lengths[NUM_LENGTHS];
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

struct Text {  // none: of no tokens
    int64_t num;
    const int32_t *tokens, *parents;
    const double *shares;
    int64_t length;          // of a match
    Table *learned;          // of a match by its length
    const double *expected;  // how likely a token is whose share is 1, likewise
};

// weights of a `Mixer`: the first of each kind of input, those of sources by source
enum {
    LOGIT,
    PROPOSED = NUM_SOURCES,
    OTHERS_PROPOSED = 2 * NUM_SOURCES,
    JOINT = 3 * NUM_SOURCES,
    RIVAL
};

struct Request {
    const Constants *constants;
    double *weights, *squares;
    Table *by_order;  // of rows
    const int32_t *tokens, *parents;  // the draft model's tree
    const double *confidences;
    int64_t num_nodes, root;
    Table draft;
    const Rows *rows;  // none: a null pointer
    int64_t end[MAX_ORDER], num_end;  // of the text
    Text texts[NUM_SOURCES - TEXTS];
    int64_t num_tokens, depth, has_branches;
    double least;
    double power;  // of a likelihood at temperature 1; 0: no draw is sampled
    uint64_t seed;
    int64_t choice, position;  // of the token after the text
};

static_assert(sizeof(Request) == 8 * (47 + 5), "as Python packs it");

// What a completion's proposals have in common: all but the texts in the request is there, with
// what was learned of those. Of a text so many tokens are compared.
struct Fixed {
    Request request;
    void *stores[2];  // of the text itself, of earlier ones
    double factor, min_share;
    int64_t max_places, max_depth;
};

// Where a text is, what may be scored after it, and what that costs.
struct Moment {
    const int32_t *tokens, *parents;  // the draft model's tree
    const double *confidences;
    int64_t num_nodes, root;
    const int32_t *end;  // of the text
    int64_t num_end, num_new;  // the last ones are not in its store yet
    int64_t position, num_tokens, depth, has_branches;
    Text others[2];  // of a datastore, of heads
    const double *seconds, *worst;
    double least;
    double trust, caution, lost, most_bet, bet, more_s;
};

static_assert(sizeof(Moment) == 8 * 35, "as Python packs it");

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
    double none = 1.0;  // likelihood that no source is right, if they err independently
    double likelihoods[NUM_SOURCES] = {};
    int32_t at[NUM_SOURCES];
    double rival = 0.0;  // the joint likelihood of the likeliest other token

    double joint() const { return 1.0 - none; }
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
        for (int i = 0; i < NUM_SOURCES - TEXTS; ++i) {
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
        for (int source = TEXTS; source < NUM_SOURCES; ++source)
            if (r.texts[source - TEXTS].num) state.at[source] = ROOT;
        for (int64_t i = 0; i < r.num_end; ++i) state.context.push(int32_t(r.end[i]));
        return state;
    }

    double estimate(const Table &table, double confidence, int64_t rank) const {
        return table.estimate(*r.constants, confidence, rank);
    }

    // Find what all sources but `left_out` propose at a node of that value: in `merged` each token
    // once.
    void ask_all(const State &state, double value, int left_out = NUM_SOURCES) {
        const double share = r.least / value;
        merged.clear();
        for (int source = 0; source < NUM_SOURCES; ++source) {
            found[source].clear();
            if (source != left_out) ask(source, state, share);
            for (const Successor &one : found[source]) merge(source, one);
        }
        double best = 0.0, second = 0.0;
        for (const Merged &one : merged) {
            if (one.joint() > best)
                second = best, best = one.joint();
            else
                second = std::max(second, one.joint());
        }
        for (Merged &one : merged) one.rival = one.joint() < best ? best : second;
    }

    void merge(int source, const Successor &one) {
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
        known->likelihoods[source] = one.likelihood;
        known->at[source] = one.at;
    }

    // --- mixing: `planning/mixing.py`

    double logit(double likelihood) const {
        const double least = r.constants->least_of_logit;
        const double p = std::min(std::max(likelihood, least), 1.0 - least);
        return std::log(p / (1.0 - p));
    }

    // Calls `visit(number of a weight, input)` for all that matter to a token.
    template <typename Visit> void each_input(const Merged &one, Visit visit) const {
        for (int source = 0; source < NUM_SOURCES; ++source) {
            if (one.likelihoods[source] > 0.0) {
                visit(LOGIT + source, logit(one.likelihoods[source]));
                visit(PROPOSED + source, 1.0);
            } else if (!found[source].empty()) {
                visit(OTHERS_PROPOSED + source, 1.0);
            }
        }
        visit(JOINT, logit(one.joint()));
        visit(RIVAL, one.rival);
    }

    // The likelihood that it is the target's token.
    double mixed(const Merged &one) const {
        double sum = 0.0;
        each_input(one, [&](int i, double input) { sum += r.weights[i] * input; });
        return 1.0 / (1.0 + std::exp(-sum));
    }

    void learn_to_mix(const Merged &one, bool is_right) {
        const double error = is_right - mixed(one);
        each_input(one, [&](int i, double input) {
            const double gradient = error * input;
            r.squares[i] = std::min(r.constants->most_squares, r.squares[i] + gradient * gradient);
            r.weights[i] += r.constants->rate * gradient / std::sqrt(1.0 + r.squares[i]);
        });
    }

    static bool is_of_draft_alone(const Merged &one) {
        for (int source = DRAFT + 1; source < NUM_SOURCES; ++source)
            if (one.likelihoods[source] > 0.0) return false;
        return true;
    }

    // --- what each source proposes

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
        judged.num = row->num, judged.table = &r.by_order[length - 1];
        for (int64_t i = 0; i < row->num; ++i) judged.judged[i] = {row->tokens[i], confidences[i]};
        if (r.power) order_anew(judged.judged, row->num, key_at(state.depth));
        return judged;
    }

    void ask_text(int64_t number, const State &state, double least) {
        const Text &text = r.texts[number];
        const int32_t node = state.at[TEXTS + number];
        const auto [table, sure] = judge_of(number, node);
        const bool is_noisy = r.power && TEXTS + number != HEADS;
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
        if (!text.length) return {text.learned, *text.expected};
        const double length = double(text.length + (node == ROOT ? 0 : depths[number][node]));
        const double *shortest = r.constants->lengths;  // of each kind
        const auto kind =
            std::upper_bound(shortest + 1, shortest + NUM_LENGTHS, length) - shortest - 1;
        return {&text.learned[kind], text.expected[kind]};
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
    Children tree, texts[NUM_SOURCES - TEXTS];
    std::vector<int32_t> depths[NUM_SOURCES - TEXTS];
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
        ask_all(state, value);
        double sum = 0.0;
        for (const Merged &one : merged) {
            const double likely = mixed(one);
            sum += likely;
            if (value * likely < r.least) continue;
            Edge edge;
            edge.value = value * likely, edge.order = ++order, edge.parent = node;
            edge.token = one.token, edge.depth = deep + 1;
            std::copy_n(one.at, NUM_SOURCES, edge.at);
            edges.push_back(edge);
            std::push_heap(edges.begin(), edges.end());
        }
        return sum;
    }

    int64_t order = 0;
    std::vector<State> states;  // of the root, then of each node
    std::vector<Edge> edges;    // a heap
};

// How many of `num` draft tokens to score: see `planning.compiled.fastest_width`. `seconds` and
// `worst` are by number of draft tokens, 0 to `num`.
int64_t fastest_width(const double *values, int64_t num, const double *seconds,
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
            counts[1] += next && !is_of_draft_alone(*next);
            for (const Merged &one : merged) learn_to_mix(one, one.token == token);
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
            value *= mixed(*next);
            values[i] = value;
            follow(state, *next);
        }
        return num;
    }

  private:
    const Merged *find(const State &state, double value, int32_t token,
                       int left_out = NUM_SOURCES) {
        ask_all(state, value, left_out);
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
        for (int number = 0; number < NUM_SOURCES - TEXTS; ++number) {
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

int64_t duodec_fastest_width(const double *values, int64_t num, const double *seconds,
                             const double *worst, double trust, double caution, double lost,
                             double most_bet, double bet, double more_s) {
    return fastest_width(values, num, seconds, worst, trust, caution, lost, most_bet, bet, more_s);
}

// Search the texts, grow a tree of all sources and choose how much of it to score. `found` is for
// what the two stores propose: of each the number of its nodes, their shares, its score and the
// length of the match, then tokens and parents, with room for as many nodes as texts are compared.
// Returns the number of nodes; the reach follows their values, and then the width.
int64_t duodec_propose(const Fixed *fixed, const Moment *moment, int32_t *tokens, int32_t *parents,
                       double *values, double *found) {
    thread_local Growth growth;
    const Moment &now = *moment;
    Request request = fixed->request;
    request.tokens = now.tokens, request.parents = now.parents;
    request.confidences = now.confidences;
    request.num_nodes = now.num_nodes, request.root = now.root;
    request.num_tokens = now.num_tokens, request.depth = now.depth;
    request.has_branches = now.has_branches, request.least = now.least;
    request.position = now.position;
    request.num_end = std::min<int64_t>(MAX_ORDER, now.num_end);
    std::copy_n(now.end + now.num_end - request.num_end, request.num_end, request.end);
    if (now.num_new)
        duodec_suffixes_extend(fixed->stores[0], now.end + now.num_end - now.num_new, now.num_new);
    const int64_t room = fixed->max_depth;
    const int64_t num_compared = std::min(room, now.num_end);
    for (int i = 0; i < 2; ++i) {
        Text &text = request.texts[i];
        double *shares = found + i * (2 * room + 3) + 1;
        int32_t *nodes = reinterpret_cast<int32_t *>(shares + room + 2);
        text.num = duodec_suffixes_speculate(
            fixed->stores[i], now.end + now.num_end - num_compared, num_compared, fixed->factor,
            fixed->min_share, room, fixed->max_places, nodes, nodes + room, shares);
        text.tokens = nodes, text.parents = nodes + room, text.shares = shares;
        text.length = int64_t(shares[text.num + 1]);
        shares[-1] = double(text.num);
        request.texts[2 + i] = now.others[i];
    }
    const int64_t num = growth.run(request, tokens, parents, values);
    values[num + 1] = double(fastest_width(values, num, now.seconds, now.worst, now.trust,
                                           now.caution, now.lost, now.most_bet, now.bet,
                                           now.more_s));
    return num;
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
