#include "profiler/durations.h"

#include <algorithm>
#include <cmath>

namespace chameleon::profiler {
namespace {

constexpr double kWeight = 0.2;              // of a new sample
constexpr double kOutlier = 4.0;             // times the estimate
constexpr int kBelieved = 3;                 // outliers in a row
constexpr double kFade = 0.995;              // of the fit, per sample
constexpr std::uint32_t kSettle = 32;        // samples before sampling less
constexpr std::uint32_t kAllKnown = 1 << 13; // looks: more than most steps
constexpr std::uint64_t kLargeCopyBytes = 1 << 20;
constexpr std::uint64_t kSmallCopyBytes = 64 << 10;
constexpr double kLinkFade = 0.95;

} // namespace

bool Durations::rearm() noexcept {
  // An irregular distance: a regular one would meet the same ops each step.
  const std::uint32_t stride = stride_.load(std::memory_order_relaxed);
  const std::uint32_t phase =
      phase_.fetch_add(0x9e3779b9, std::memory_order_relaxed);
  const std::uint32_t distance =
      stride / 2 +
      static_cast<std::uint32_t>((std::uint64_t{phase} * stride) >> 32);
  const bool all = all_.load(std::memory_order_relaxed) ||
                   looks_at_all_.load(std::memory_order_relaxed);
  countdown_.store(all ? 1 : static_cast<std::int32_t>(std::max(distance, 1U)),
                   std::memory_order_relaxed);
  return true;
}

bool Durations::shouldSample(Token token) {
  if (all_.load(std::memory_order_relaxed)) return true;
  const std::lock_guard guard(lock_);
  Estimate& of_token = estimate(token);
  const bool is_new = of_token.asked_for < kFirst;
  if (is_new) ++of_token.asked_for;
  if (!looks_at_all_.load(std::memory_order_relaxed)) {
    const std::uint32_t more = stride_.load(std::memory_order_relaxed) / kDense;
    looks_left_ = std::min(looks_left_ + more, kMostLooks);
    if (is_new && looks_left_ >= kMostLooks / 2) {
      known_in_a_row_ = 0;
      looks_at_all_.store(true, std::memory_order_relaxed);
    }
    return true;
  }
  --looks_left_;
  known_in_a_row_ = is_new ? 0 : known_in_a_row_ + 1;
  if (looks_left_ == 0 || known_in_a_row_ == kAllKnown) {
    looks_at_all_.store(false, std::memory_order_relaxed);
  }
  return is_new;
}

Durations::Estimate& Durations::estimate(Token token) {
  if (tokens_.size() >= kMaxTokens && !tokens_.contains(token)) makeRoom();
  return tokens_[token];
}

double Durations::line(std::uint64_t bytes) const noexcept {
  const auto [n, x, y, xx, xy] = fit_;
  if (n < 1) return static_cast<double>(kUntimedOp_ns);
  const double spread = n * xx - x * x;
  // All of one size: through the mean, no slope.
  double slope = spread > 1e-6 * xx * n ? (n * xy - x * y) / spread : 0;
  slope = std::max(slope, 0.0);
  const double start = std::max((y - slope * x) / n, 0.0);
  return start + slope * static_cast<double>(bytes);
}

void Durations::makeRoom() {
  std::erase_if(tokens_, [](const auto& entry) { return !entry.second.fresh; });
  if (tokens_.size() >= kMaxTokens) tokens_.clear();
  for (auto& [token, estimate] : tokens_) estimate.fresh = false;
}

void Durations::addOp(Token token, std::uint64_t bytes,
                      std::int64_t duration_ns) {
  if (duration_ns < 0) return;
  const std::lock_guard guard(lock_);
  Estimate& estimate = this->estimate(token);
  estimate.fresh = true;
  const auto sample = static_cast<double>(duration_ns);
  const double old = estimate.duration_ns;
  double now = sample;
  bool unknown = estimate.samples == 0;
  if (!unknown && estimate.samples < kFirst) {
    now = std::min(old, sample);
  } else if (!unknown) {
    const int sign =
        sample > old * kOutlier ? 1 : (sample * kOutlier < old ? -1 : 0);
    const int before = estimate.outliers;
    estimate.outliers = static_cast<std::int16_t>(
        sign == 0 ? 0 : (before * sign > 0 ? before + sign : sign));
    if (std::abs(estimate.outliers) >= kBelieved) {
      estimate.outliers = 0; // things did change: start from here
      unknown = true;
    } else if (sign != 0) {
      return;
    } else {
      now = old + kWeight * (sample - old);
    }
  }
  estimate.duration_ns = now;
  if (estimate.samples < UINT16_MAX) ++estimate.samples;

  const auto x = static_cast<double>(bytes);
  for (double& sum : fit_) sum *= kFade;
  fit_[0] += 1;
  fit_[1] += x;
  fit_[2] += sample;
  fit_[3] += x * x;
  fit_[4] += x * sample;

  settled_ = unknown ? 0 : settled_ + 1;
  std::uint32_t stride = stride_.load(std::memory_order_relaxed);
  if (unknown) {
    stride = std::max(stride / 2, kDense);
  } else if (settled_ % kSettle == 0) {
    stride = std::min(stride * 2, kSparse);
  }
  stride_.store(stride, std::memory_order_relaxed);
}

void Durations::addBeside(Token token) {
  const std::lock_guard guard(lock_);
  Estimate& estimate = this->estimate(token);
  estimate.fresh = true;
  estimate.duration_ns = 0;
  estimate.samples = std::max<std::uint16_t>(estimate.samples, 1);
}

std::int64_t Durations::op(Token token, std::uint64_t bytes) const {
  const std::lock_guard guard(lock_);
  const auto at = tokens_.find(token);
  const double ns = at != tokens_.end() && at->second.samples > 0
                        ? at->second.duration_ns
                        : line(bytes);
  return static_cast<std::int64_t>(ns);
}

bool Durations::known(Token token) const {
  const std::lock_guard guard(lock_);
  const auto at = tokens_.find(token);
  return at != tokens_.end() && at->second.samples > 0;
}

std::size_t Durations::tokens() const {
  const std::lock_guard guard(lock_);
  return tokens_.size();
}

void Durations::addCopy(Direction direction, bool shared, std::uint64_t bytes,
                        std::int64_t duration_ns) {
  if (duration_ns <= 0 || bytes == 0) return;
  const std::lock_guard guard(lock_);
  Link& link = at(direction, shared);
  const auto ns = static_cast<double>(duration_ns);
  if (bytes <= kSmallCopyBytes) {
    // Noise only adds time: towards less quickly, towards more slowly.
    const double weight = ns < link.latency_ns ? 0.5 : 0.02;
    link.latency_ns +=
        link.latency_known ? weight * (ns - link.latency_ns) : ns;
    link.latency_known = true;
  } else if (bytes >= kLargeCopyBytes) {
    const auto size = static_cast<double>(bytes);
    const double own = std::max(ns - link.latency_ns, 1.0);
    // One copy that was kept waiting does not say that the link is slow.
    const double expected = link.bytes > 0 ? size * link.ns / link.bytes : own;
    const double used = std::min(own, kOutlier * expected);
    link.bytes = kLinkFade * link.bytes + size;
    link.ns = kLinkFade * link.ns + used;
  }
}

LinkSpeed Durations::link(Direction direction, bool shared) const {
  const std::lock_guard guard(lock_);
  const Link& link =
      links_[2 * static_cast<std::size_t>(direction) + (shared ? 1 : 0)];
  LinkSpeed speed;
  if (link.ns > 0) speed.bytes_per_second = link.bytes / link.ns * 1e9;
  speed.latency_ns = static_cast<std::int64_t>(link.latency_ns);
  return speed;
}

} // namespace chameleon::profiler
