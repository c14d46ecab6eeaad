// The adversarial modes of cpu_runtime: legal behaviour at its most
// inconvenient, so that a missing wait fails a test on this machine instead
// of giving a wrong number on a GPU now and then.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

// When the copy engines run what was submitted. Order within one stream and
// event order between streams always hold.
enum class CopyTiming : std::uint8_t {
  kPrompt,    // at once
  kLate,      // up to half a millisecond later
  kReordered, // held back, then the two engines in random order
  kOnAwait,   // only what somebody waits for (or a long queue pushes out)
};

struct CpuAdversary {
  std::uint64_t seed = 1;
  CopyTiming copies = CopyTiming::kPrompt;
  // Kernels count as running until up to this many later ones were submitted
  // on their stream, or until somebody waits for them; their operands must
  // keep their bytes so long.
  unsigned compute_delay_ops = 0;
  // Discarded bytes are filled with NaNs, whole pages of them protected.
  bool poison = false;

  bool active() const noexcept {
    return copies != CopyTiming::kPrompt || compute_delay_ops != 0 || poison;
  }
};

// One clear sentence about a caller's mistake. Called with locks of the
// runtime held: it may not call back. Empty: print and abort.
using MisuseHandler = std::function<void(std::string_view)>;

// "seed=3,copies=late,compute_delay=8,poison=1"; every part may be left out.
// copies: prompt | late | reordered | on_await.
Result<CpuAdversary> parse_cpu_adversary(std::string_view text);

} // namespace chameleon::runtime
