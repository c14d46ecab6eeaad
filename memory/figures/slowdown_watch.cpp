#include "memory/figures/slowdown_watch.h"

#include <cstdio>

#include "backend/runtime/byte_size.h"

namespace chameleon::memory {

namespace {

bool is_unforeseen(const StepFigures& figures) {
  return static_cast<double>(figures.forecast_misses) >=
         SlowdownWatch::kMissShare * static_cast<double>(figures.ops);
}

SlowdownCause cause_of(const SlowdownWatch::Step& step) {
  const StepFigures& figures = step.figures;
  if (step.transfer_ns >=
      SlowdownWatch::kLinkShare * static_cast<double>(figures.duration_ns)) {
    return SlowdownCause::kLink;
  }
  return is_unforeseen(figures) ? SlowdownCause::kUnforeseen
                                : SlowdownCause::kLate;
}

std::string what_helps(SlowdownCause cause, const SlowdownWatch::Step& step) {
  std::string help;
  switch (cause) {
    case SlowdownCause::kLink:
      help =
          "These bytes keep the link busy; what helps is to move fewer: a "
          "larger torch_chameleon.config.hbm_budget";
      if (step.plans_ahead && step.recompute) {
        help += " or a smaller batch";
        break;
      }
      help += ", a smaller batch, or ";
      // Without plans nothing is run again.
      if (!step.plans_ahead) {
        help += "torch_chameleon.config.policy = \"forecast\"";
        if (!step.recompute) help += " and ";
      }
      if (!step.recompute) {
        help += "torch_chameleon.config.recompute = \"auto\"";
      }
      break;
    case SlowdownCause::kUnforeseen:
      help = std::to_string(step.figures.forecast_misses) + " of its " +
             std::to_string(step.figures.ops) +
             " ops were not those of earlier steps, so little could be moved "
             "ahead; what helps is ";
      if (!step.marked) {
        help += "torch_chameleon.step() at the end of each step, and ";
      }
      help += "steps of the same ops and sizes";
      break;
    case SlowdownCause::kLate:
      help =
          "The link was idle for much of it, and copies came late; what "
          "helps is ";
      if (!step.plans_ahead) {
        help += "torch_chameleon.config.policy = \"forecast\"";
        break;
      }
      help +=
          "a larger torch_chameleon.config.hbm_budget, as room to fetch "
          "ahead";
      if (!step.recompute) {
        help +=
            ", or torch_chameleon.config.recompute = \"auto\", which moves "
            "fewer bytes";
      }
  }
  return help + ".";
}

} // namespace

void SlowdownWatch::setLimit(std::optional<double> factor) noexcept {
  limit_ = factor;
  restart();
}

void SlowdownWatch::restart() noexcept { seen_ = slow_ = too_slow_ = 0; }

std::optional<SlowdownReport> SlowdownWatch::look(const Step& step) {
  const StepFigures& figures = step.figures;
  if (figures.duration_ns <= 0) return std::nullopt;
  if (step.marked && !marked_) restart();
  marked_ |= step.marked;
  if (!step.marked && marked_) return std::nullopt;
  // A plan that is being made comes soon; for ops that are never the same there
  // is none to wait for.
  const bool awaits_plan =
      step.plans_ahead && figures.plan == nullptr && !is_unforeseen(figures);
  if (seen_ < (marked_ && !awaits_plan ? kWarmUp : kWarmUpUnmarked)) {
    ++seen_;
    return std::nullopt;
  }
  const auto duration = static_cast<double>(figures.duration_ns);
  const auto stall = static_cast<double>(figures.stall_ns);
  const double compute = duration - stall;
  // Of a step that did nothing but wait: any factor is exceeded.
  const double slowdown = compute > 0 ? duration / compute : duration;
  slow_ = stall > kStallShare * duration ? slow_ + 1 : 0;
  too_slow_ = limit_ && slowdown > *limit_ ? too_slow_ + 1 : 0;
  const bool too_slow = too_slow_ >= kInARow;
  if (!too_slow && slow_ < kInARow) return std::nullopt;

  const SlowdownCause cause = cause_of(step);
  bool& told = told_[static_cast<std::size_t>(cause)];
  if (!too_slow && told) return std::nullopt;
  told = true;
  if (too_slow) too_slow_ = 0;
  return SlowdownReport{cause, too_slow, describe(step, cause, slowdown)};
}

std::string SlowdownWatch::describe(const Step& step, SlowdownCause cause,
                                    double slowdown) const {
  const StepFigures& figures = step.figures;
  const auto ms = [](auto ns) { return static_cast<double>(ns) / 1e6; };
  char text[512];
  std::snprintf(
      text, sizeof text,
      "chameleon:%d: a step takes %.4g ms, %.3g times what it would without "
      "waiting for bytes. At %.3g times the budget (peak %s, hbm_budget %s) it "
      "moves %s in and %s out, which with its compute takes %.4g ms "
      "at least. ",
      device_index_, ms(figures.duration_ns), slowdown,
      static_cast<double>(step.peak_logical_bytes) /
          static_cast<double>(step.budget_bytes),
      runtime::format_bytes(step.peak_logical_bytes).c_str(),
      runtime::format_bytes(step.budget_bytes).c_str(),
      runtime::format_bytes(figures.bytes_in).c_str(),
      runtime::format_bytes(figures.bytes_out).c_str(), ms(figures.bound_ns));
  std::string message = text;
  message += what_helps(cause, step);
  if (limit_ && slowdown > *limit_) {
    std::snprintf(text, sizeof text,
                  " (torch_chameleon.config.max_slowdown is %g.)", *limit_);
    message += text;
  }
  return message;
}

} // namespace chameleon::memory
