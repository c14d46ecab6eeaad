// Makes bytes that hold no value useless: fills them with a pattern that is
// NaN in every floating-point type and takes the whole pages among them out of
// reach, so that a read of freed or evicted memory cannot go unseen.
//
// Tests: cpu_runtime_test.cpp.
//
// Thread safety: none; its owner locks.
#pragma once

#include <cstdint>

#include "backend/runtime/cpu/range_set.h"

namespace chameleon::runtime {

// As float16, bfloat16, float32 and float64 not a number.
inline constexpr std::uint16_t kPoisonPattern = 0xfff5;

// Fills only. REQUIRES: writable.
void fill_with_poison(Interval interval);

class Poison {
 public:
  // Fills and protects. REQUIRES: writable, whatever is not poisoned already.
  void apply(Interval interval);
  // Makes the interval accessible; its bytes are the pattern still.
  void lift(Interval interval);
  // The memory behind the interval goes away.
  void forget(Interval interval) { poisoned_.remove(interval); }

 private:
  RangeSet poisoned_;
};

} // namespace chameleon::runtime
