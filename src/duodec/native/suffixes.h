// What `selection.cpp` asks the texts of `suffixes.cpp`.

#pragma once

#include <cstdint>

extern "C" {

void duodec_suffixes_extend(void *suffixes, const int32_t *tokens, int64_t num);

int64_t duodec_suffixes_speculate(void *suffixes, const int32_t *text, int64_t num_text,
                                  double factor, double min_share, int64_t most,
                                  int64_t max_places, int32_t *tokens, int32_t *parents,
                                  double *shares);
}
