// The widest instruction set that this file is compiled for.
//
// Each set gives the same integers and adds the same floats in the same order, so that weights in one format give the same
// bits on every processor. `DUODEC_PLAIN` asks for plain C++, against which the tests hold the others.
#pragma once

#if defined(DUODEC_PLAIN)
#include "lanes_plain.h"
namespace duodec { using plain::Lanes; }
#define DUODEC_IS_FAST 0
#elif defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(DUODEC_AVX2)
#include "lanes_avx512.h"
namespace duodec { using avx512::Lanes; }
#define DUODEC_IS_FAST 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "lanes_avx2.h"
namespace duodec { using avx2::Lanes; }
#define DUODEC_IS_FAST 1
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "lanes_neon.h"
namespace duodec { using neon::Lanes; }
#define DUODEC_IS_FAST 1
#else
#include "lanes_plain.h"
namespace duodec { using plain::Lanes; }
#define DUODEC_IS_FAST 0
#endif
