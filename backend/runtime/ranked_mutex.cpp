#include "backend/runtime/ranked_mutex.h"

#ifndef NDEBUG

#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

constinit thread_local std::uint32_t held = 0; // a bit a rank

constexpr std::uint32_t bit_of(LockRank rank) {
  return std::uint32_t{1} << static_cast<unsigned>(rank);
}

} // namespace

void lock_taken(LockRank rank) noexcept {
  CHAMELEON_CHECK(held < bit_of(rank),
                  "a lock is taken out of order: the thread holds one of the "
                  "same or a later rank");
  held |= bit_of(rank);
}

void lock_given_back(LockRank rank) noexcept {
  CHAMELEON_CHECK((held & bit_of(rank)) != 0,
                  "a lock is given back that the thread does not hold");
  held &= ~bit_of(rank);
}

} // namespace chameleon::runtime

#endif
