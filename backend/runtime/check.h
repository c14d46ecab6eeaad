// Assertions for broken invariants, in three levels (mimalloc's scheme).
// Never used for bad input or for memory that runs out: those are Errors.
//
// Thread safety: any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

// Always on, for what would otherwise give a wrong number.
#define CHAMELEON_CHECK(condition, text)                                    \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      std::fprintf(stderr, "chameleon: %s:%d: broken invariant: %s (%s)\n", \
                   __FILE__, __LINE__, text, #condition);                   \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

// On in debug builds only.
#ifdef NDEBUG
#define CHAMELEON_DCHECK(condition, text) \
  do {                                    \
  } while (false)
#else
#define CHAMELEON_DCHECK(condition, text) CHAMELEON_CHECK(condition, text)
#endif
