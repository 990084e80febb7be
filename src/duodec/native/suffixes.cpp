// Keep the texts of `drafting/suffix.py` and search them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "suffixes.h"

namespace {

constexpr int32_t ROOT = -1, END = -1;
constexpr double ROUNDING = 1e-6;

struct Node {
    int64_t count;  // of the places that go on through it
    int32_t token, parent;
};

struct Group {  // of places that went on alike so far
    int64_t begin, end;
    int32_t node;
};

class Suffixes {
  public:
    Suffixes(int64_t max_depth, int64_t max_tokens) : max_depth(max_depth), max_tokens(max_tokens) {
        clear();
    }

    int64_t size() const { return num_tokens; }

    int64_t num_cells() const { return int64_t(tokens.size()); }

    void extend(const int32_t *added, int64_t num) {
        for (int64_t i = 0; i < num; ++i) {
            places[added[i]].push_back(int32_t(tokens.size()));
            tokens.push_back(added[i]);
        }
        num_tokens += num;
    }

    void end() {
        tokens.insert(tokens.end(), max_depth, END);
        if (int64_t(tokens.size()) <= max_tokens) return;
        const std::vector<int32_t> newer(tokens.begin() + tokens.size() / 2, tokens.end());
        clear();
        for (int32_t token : newer)
            if (token == END)
                tokens.push_back(END);
            else
                extend(&token, 1);
    }

    // The shares of the draft's nodes are followed by its score and the length of the match.
    // Returns the number of nodes.
    int64_t speculate(const int32_t *text, int64_t num_text, double factor, double min_share,
                      int64_t most, int64_t max_places, int32_t *drafted, int32_t *parents,
                      double *shares) {
        match(text, num_text);
        double score = 0.0;
        int64_t num_best = 0, best_length = 0;
        for (size_t i = lengths.size(); i-- > 0;) {
            const int64_t length = lengths[i];
            const int64_t num =
                int64_t(std::min(double(most), factor * double(length) + ROUNDING));
            if (double(num) <= score) break;
            const auto &all = matches[i];
            const int64_t num_places = std::min<int64_t>(max_places, int64_t(all.size()));
            at.assign(all.end() - num_places, all.end());
            const double fewest = std::ceil(min_share * double(num_places) - ROUNDING);
            const int64_t num_nodes = grow(num, std::max<int64_t>(1, int64_t(fewest)));
            int64_t sum = 0;
            for (int64_t node = 0; node < num_nodes; ++node) sum += found[best[node]].count;
            if (double(sum) / double(num_places) <= score) continue;
            score = double(sum) / double(num_places), num_best = num_nodes, best_length = length;
            for (int64_t node = 0; node < num_nodes; ++node) {
                const Node &one = found[best[node]];
                drafted[node] = one.token;
                parents[node] = one.parent == ROOT ? ROOT : rank[one.parent];
                shares[node] = double(one.count) / double(num_places);
            }
        }
        shares[num_best] = score, shares[num_best + 1] = double(best_length);
        return num_best;
    }

  private:
    void clear() {
        tokens.assign(max_depth, END);
        places.clear();
        num_tokens = 0;
    }

    int32_t token_at(int64_t place) const {
        return place < int64_t(tokens.size()) ? tokens[place] : END;
    }

    // Suffix lengths, ascending, with the places of the last token; of lengths with the same places
    // only the longest.
    void match(const int32_t *text, int64_t num_text) {
        lengths.clear();
        if (!num_text) return;
        auto known = places.find(text[num_text - 1]);
        if (known == places.end()) return;
        at = known->second;
        if (at.back() + 1 == int64_t(tokens.size())) at.pop_back();  // the text's own end
        for (int64_t length = 1; !at.empty(); ++length) {
            longer.clear();
            if (length < num_text) {
                const int32_t token = text[num_text - 1 - length];
                for (int32_t place : at)
                    if (tokens[place - length] == token) longer.push_back(place);
            }
            if (longer.size() < at.size()) {
                if (matches.size() <= lengths.size()) matches.emplace_back();
                matches[lengths.size()] = at;
                lengths.push_back(length);
            }
            at.swap(longer);
        }
    }

    // The most frequent tokens after the places: those of `found` that `best` names, at most so
    // many, each after as many places at least. Returns how many.
    int64_t grow(int64_t num, int64_t fewest) {
        found.clear();
        level.assign(1, {0, int64_t(at.size()), ROOT});
        for (int64_t depth = 1; depth <= num && !level.empty(); ++depth) {
            below.clear();
            for (const Group &group : level) divide(group, depth, fewest);
            level.swap(below);
            if (int64_t(found.size()) < num) continue;
            counts.clear();  // a deeper node must be more frequent than the last of these
            for (const Node &node : found) counts.push_back(node.count);
            std::nth_element(counts.begin(), counts.begin() + num - 1, counts.end(),
                             [](int64_t a, int64_t b) { return a > b; });
            fewest = 1 + counts[num - 1];
        }
        best.resize(found.size());
        for (size_t i = 0; i < best.size(); ++i) best[i] = int32_t(i);
        std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
            return found[a].count > found[b].count;
        });
        if (int64_t(best.size()) > num) best.resize(num);
        rank.resize(found.size());
        for (size_t i = 0; i < best.size(); ++i) rank[best[i]] = int32_t(i);
        return int64_t(best.size());
    }

    // By the next token.
    void divide(const Group &group, int64_t depth, int64_t fewest) {
        const auto first = at.begin() + group.begin, last = at.begin() + group.end;
        if (group.end - group.begin > 1)
            std::sort(first, last, [&](int32_t a, int32_t b) {
                return token_at(a + depth) < token_at(b + depth);
            });
        for (int64_t begin = group.begin, end; begin < group.end; begin = end) {
            const int32_t token = token_at(at[begin] + depth);
            for (end = begin + 1; end < group.end && token_at(at[end] + depth) == token;) ++end;
            if (token == END || end - begin < fewest) continue;
            below.push_back({begin, end, int32_t(found.size())});
            found.push_back({end - begin, token, group.node});
        }
    }

    const int64_t max_depth, max_tokens;
    int64_t num_tokens = 0;
    std::vector<int32_t> tokens;
    std::unordered_map<int32_t, std::vector<int32_t>> places;

    // kept between searches, so that none allocates
    std::vector<int32_t> at, longer, best, rank;
    std::vector<int64_t> lengths, counts;
    std::vector<std::vector<int32_t>> matches;
    std::vector<Group> level, below;
    std::vector<Node> found;
};

}  // namespace

extern "C" {

void *duodec_suffixes_new(int64_t max_depth, int64_t max_tokens) {
    return new Suffixes(max_depth, max_tokens);
}

void duodec_suffixes_free(void *suffixes) { delete static_cast<Suffixes *>(suffixes); }

int64_t duodec_suffixes_size(const void *suffixes) {
    return static_cast<const Suffixes *>(suffixes)->size();
}

int64_t duodec_suffixes_cells(const void *suffixes) {
    return static_cast<const Suffixes *>(suffixes)->num_cells();
}

void duodec_suffixes_extend(void *suffixes, const int32_t *tokens, int64_t num) {
    static_cast<Suffixes *>(suffixes)->extend(tokens, num);
}

void duodec_suffixes_end(void *suffixes) { static_cast<Suffixes *>(suffixes)->end(); }

// `text` has at most `max_depth` tokens. Room for `most` nodes, and two shares more.
int64_t duodec_suffixes_speculate(void *suffixes, const int32_t *text, int64_t num_text,
                                  double factor, double min_share, int64_t most,
                                  int64_t max_places, int32_t *tokens, int32_t *parents,
                                  double *shares) {
    return static_cast<Suffixes *>(suffixes)->speculate(text, num_text, factor, min_share, most,
                                                        max_places, tokens, parents, shares);
}
}
