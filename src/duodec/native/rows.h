// Keep the rows of `drafting/recycling.py`: candidates of the target by the tokens before them.
// The sizes are those of Python, which `library.py` checks.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <list>
#include <unordered_map>
#include <utility>

constexpr int MAX_ORDER = 3, NUM_CANDIDATES = 8;

struct Row {
    int32_t num = 0;
    bool has_confidences = false;
    int32_t tokens[NUM_CANDIDATES];
    double confidences[NUM_CANDIDATES];
};

struct Context {
    int32_t tokens[MAX_ORDER] = {};  // the latest last
    int32_t num = 0;

    void push(int32_t token) {
        if (num == MAX_ORDER) std::memmove(tokens, tokens + 1, (--num) * sizeof(int32_t));
        tokens[num++] = token;
    }
};

using Key = std::array<int32_t, MAX_ORDER>;

struct HashKey {
    size_t operator()(const Key &key) const {
        uint64_t hash = 0;
        for (int32_t token : key)
            hash = (hash ^ uint32_t(token)) * 0x9e3779b97f4a7c15u + (hash >> 29);
        return hash ^ (hash >> 32);
    }
};

struct Rows {
    int64_t max_contexts;
    std::list<std::pair<Key, Row>> by_age[MAX_ORDER];
    std::unordered_map<Key, std::list<std::pair<Key, Row>>::iterator, HashKey> known[MAX_ORDER];

    static Key key_of(const Context &context, int order) {
        Key key{};
        std::copy_n(context.tokens + context.num - order, order, key.begin());
        return key;
    }

    void add(const Context &context, const Row &row) {
        for (int order = 1; order <= context.num; ++order) {
            auto &ages = by_age[order - 1];
            auto &places = known[order - 1];
            Key key = key_of(context, order);
            auto found = places.find(key);
            if (found != places.end()) {
                found->second->second = row;
                ages.splice(ages.end(), ages, found->second);
                continue;
            }
            if (order > 1 && int64_t(places.size()) >= max_contexts) {
                places.erase(ages.front().first);
                ages.pop_front();
            }
            ages.emplace_back(key, row);
            places.emplace(key, std::prev(ages.end()));
        }
    }

    int longest(const Context &context, const Row **row) const {
        if (!context.num) return 0;
        auto shortest = known[0].find(key_of(context, 1));
        if (shortest == known[0].end()) return 0;  // then no longer one is known either
        for (int order = context.num; order > 1; --order) {
            auto found = known[order - 1].find(key_of(context, order));
            if (found != known[order - 1].end()) return *row = &found->second->second, order;
        }
        return *row = &shortest->second->second, 1;
    }
};
