// The link between HBM and host memory, as fluid: one copy at a time each way,
// a fixed latency before each copy's bytes flow, and a joint limit that two
// copies share fairly.
//
// The default figures are those of a PCIe 5.0 x16 link, with their source in
// backend/runtime/simulated/gpu_profiles.cpp. They count only until the link
// was measured (link_estimate.h).
//
// Units: nanoseconds and bytes, in doubles. Thread safety: values.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace chameleon::memory {

struct LinkModel {
  double in_bytes_per_ns = 55;
  double out_bytes_per_ns = 55;
  double both_bytes_per_ns = 90; // in and out together
  double latency_ns = 7000;      // per copy, before its bytes flow
  // Of each step, that go out beside what a plan moves (mirror_rate.h).
  double mirrored_bytes = 0;

  // One that is `factor` times as fast; copies wait as long before they begin.
  LinkModel times(double factor) const noexcept {
    return {factor * in_bytes_per_ns, factor * out_bytes_per_ns,
            factor * both_bytes_per_ns, latency_ns, mirrored_bytes};
  }
};

enum class Lane : std::uint8_t { kIn, kOut };

class DuplexLink {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit DuplexLink(const LinkModel& model) : model_(model) {
    // Fair: half of the joint limit each, and what one leaves goes to the
    // other.
    const double half = model.both_bytes_per_ns / 2;
    const double in = std::min(model.in_bytes_per_ns, half);
    const double out = std::min(model.out_bytes_per_ns, half);
    shared_ = {std::min(model.in_bytes_per_ns, model.both_bytes_per_ns - out),
               std::min(model.out_bytes_per_ns, model.both_bytes_per_ns - in)};
    alone_ = {model.in_bytes_per_ns, model.out_bytes_per_ns};
  }

  bool busy(Lane lane) const noexcept {
    return copies_[static_cast<std::size_t>(lane)].busy;
  }
  // REQUIRES: !busy(lane).
  void start(Lane lane, double bytes) noexcept {
    copies_[static_cast<std::size_t>(lane)] = {model_.latency_ns, bytes, true};
  }
  // How long until a copy ends or the rates change; kNever: both lanes idle.
  double untilChange() const noexcept {
    double least = kNever;
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const Copy& copy = copies_[lane];
      if (!copy.busy) continue;
      least = std::min(
          least, copy.latency > 0 ? copy.latency : copy.bytes / rate(lane));
    }
    return least;
  }
  // REQUIRES: duration <= untilChange(). Copies that end are not busy then.
  void advance(double duration) noexcept {
    const std::array<double, 2> rates{rate(0), rate(1)};
    for (std::size_t lane = 0; lane < 2; ++lane) {
      Copy& copy = copies_[lane];
      if (!copy.busy) continue;
      if (copy.latency > 0) {
        copy.latency -= duration;
        if (copy.latency < kEpsilon) copy.latency = 0;
      } else {
        copy.bytes -= duration * rates[lane];
      }
      if (copy.latency == 0 && copy.bytes < kEpsilon) copy.busy = false;
    }
  }

 private:
  static constexpr double kEpsilon = 1e-3; // a picosecond; a thousandth byte

  struct Copy {
    double latency; // left
    double bytes;   // left
    bool busy;
  };
  bool flows(std::size_t lane) const noexcept {
    return copies_[lane].busy && copies_[lane].latency == 0;
  }
  double rate(std::size_t lane) const noexcept {
    return flows(1 - lane) ? shared_[lane] : alone_[lane];
  }

  LinkModel model_;
  std::array<double, 2> alone_{};
  std::array<double, 2> shared_{};
  std::array<Copy, 2> copies_{};
};

} // namespace chameleon::memory
