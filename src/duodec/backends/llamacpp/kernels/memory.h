// Memory that weights are read from.
#pragma once
#include <cstddef>
#include <cstdint>
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace duodec {

// Asks for pages of 2 MB before memory is first written: a pass reads all weights once, and looking up pages of 4 KB takes a
// third of its time. Nothing happens where the system has none.
inline void use_huge_pages(void * begin, size_t size) {
#ifdef __linux__
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t from = ((uintptr_t)begin + PAGE - 1) / PAGE * PAGE, to = ((uintptr_t)begin + size) / PAGE * PAGE;
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)begin, (void)size;
#endif
}

}  // namespace duodec
