// What the link is taken to be: what the runtime knows exactly, or else what
// was measured, and a typical link as long as nothing was.
//
// Thread safety: any thread.
#pragma once

#include <optional>

#include "backend/runtime/device_runtime.h"
#include "memory/policy/mirror_rate.h"
#include "memory/policy/plan/link_model.h"
#include "profiler/durations.h"

namespace chameleon::memory {

class LinkEstimate {
 public:
  // `mirror`: null: nothing leaves beside what plans move.
  LinkEstimate(const profiler::Durations& durations,
               const std::optional<runtime::LinkSpeeds>& exact,
               const MirrorRate* mirror = nullptr);

  // The best that is known now. Where one way or both together were not
  // measured they are in proportion to what was, as on the typical link.
  LinkModel now() const;

 private:
  LinkModel measured() const;

  const profiler::Durations& durations_;
  std::optional<LinkModel> exact_;
  const MirrorRate* mirror_;
};

// So far apart that a plan made for one is worth making again for the other: a
// rate by a quarter of the larger, or the latency by more than half and 2 us.
// What the mirror sends is another matter (add_mirror()).
bool differs_much(const LinkModel& a, const LinkModel& b) noexcept;

} // namespace chameleon::memory
