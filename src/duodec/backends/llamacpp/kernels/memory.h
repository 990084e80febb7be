// Memory that weights are read from, and that caches lie in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Fills private memory with zeros without taking it: the system gives a page of them when one is first used. Returns whether it
// does.
inline bool zero_when_used(void * begin, size_t size) {
#ifdef __linux__
    constexpr uintptr_t PAGE = 1 << 16;  // a multiple of every system's
    const uintptr_t end = (uintptr_t)begin + size, from = ((uintptr_t)begin + PAGE - 1) / PAGE * PAGE, to = end / PAGE * PAGE;
    if (from >= to || madvise((void *)from, to - from, MADV_DONTNEED)) return false;
    memset(begin, 0, from - (uintptr_t)begin);
    memset((void *)to, 0, end - to);
    return true;
#else
    (void)begin, (void)size;
    return false;
#endif
}

}  // namespace duodec
