// Sees to it that nobody is slowed down by swapping without being told: looks
// at each step that ended, and says in words what is wrong where several in a
// row spent most of their time waiting for bytes.
//
// Thread safety: none; the pager's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "memory/figures/step_meter.h"

namespace chameleon::memory {

// What a slow step is slow of.
enum class SlowdownCause : std::uint8_t {
  kLink,       // its bytes keep the link busy for most of the time
  kUnforeseen, // its ops were not the expected ones, so nothing was planned
  kLate,       // neither: the bytes could have been moved in time
};
inline constexpr std::size_t kSlowdownCauses = 3;

struct SlowdownReport {
  SlowdownCause cause;
  bool too_slow; // beyond the limit: an error, else a warning
  std::string message;
};

class SlowdownWatch {
 public:
  // Steps that are not looked at: the sequence is learned and a plan is made.
  // Without marks the layers of the first step pass for steps, too.
  static constexpr int kWarmUp = 5;
  static constexpr int kWarmUpUnmarked = 100;
  // So many in a row have to be slow: one alone has saved a checkpoint, or the
  // like.
  static constexpr int kInARow = 3;
  // Slow: more than this share of the step was spent waiting.
  static constexpr double kStallShare = 0.5;
  // kLink: its copies alone take at least this share of the step.
  static constexpr double kLinkShare = 0.7;
  // kUnforeseen: at least this share of its ops.
  static constexpr double kMissShare = 0.1;

  struct Step {
    const StepFigures& figures; // bound_ns included
    double transfer_ns;         // for which its bytes keep the link busy
    std::size_t peak_logical_bytes;
    std::size_t budget_bytes;
    bool plans_ahead; // the policy does
    bool recompute;   // is on
    bool marked;      // its end, by who trains
  };

  explicit SlowdownWatch(int device_index) : device_index_(device_index) {}

  // A step may take as many times its compute time; none: any number of times.
  void setLimit(std::optional<double> factor) noexcept;
  // Something was changed that steps depend on: the warm-up begins again.
  void restart() noexcept;
  // A step ended. What is to be said of it, once for each cause and once for
  // each time that the limit was exceeded kInARow times.
  std::optional<SlowdownReport> look(const Step& step);

 private:
  std::string describe(const Step& step, SlowdownCause cause,
                       double slowdown) const;

  const int device_index_;
  std::optional<double> limit_;
  bool marked_ = false; // steps are, so others are none
  int seen_ = 0;        // steps since restart(), as far as the warm-up
  int slow_ = 0;        // of these in a row, at the end
  int too_slow_ = 0;    // the same, beyond the limit
  bool told_[kSlowdownCauses] = {};
};

} // namespace chameleon::memory
