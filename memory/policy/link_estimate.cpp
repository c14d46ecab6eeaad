#include "memory/policy/link_estimate.h"

#include <algorithm>
#include <cmath>

namespace chameleon::memory {

using profiler::Direction;
using profiler::LinkSpeed;

namespace {

constexpr double kPerNs = 1e-9;

double per_ns(const LinkSpeed& speed) {
  return speed.bytes_per_second * kPerNs;
}

bool apart(double a, double b, double part) {
  return std::abs(a - b) > part * std::max(a, b);
}

} // namespace

LinkEstimate::LinkEstimate(const profiler::Durations& durations,
                           const std::optional<runtime::LinkSpeeds>& exact,
                           const MirrorRate* mirror)
    : durations_(durations), mirror_(mirror) {
  if (!exact) return;
  exact_ = {exact->in_bytes_per_s * kPerNs, exact->out_bytes_per_s * kPerNs,
            exact->both_bytes_per_s * kPerNs,
            static_cast<double>(exact->copy_latency_ns)};
}

LinkModel LinkEstimate::now() const {
  LinkModel link = exact_ ? *exact_ : measured();
  if (mirror_ != nullptr) {
    link.mirrored_bytes = static_cast<double>(mirror_->bytesPerStep());
  }
  return link;
}

LinkModel LinkEstimate::measured() const {
  const LinkModel typical;
  const LinkSpeed in = durations_.link(Direction::kIn, /*shared=*/false);
  const LinkSpeed out = durations_.link(Direction::kOut, /*shared=*/false);
  const double in_shared =
      per_ns(durations_.link(Direction::kIn, /*shared=*/true));
  const double out_shared =
      per_ns(durations_.link(Direction::kOut, /*shared=*/true));
  LinkModel link;
  link.in_bytes_per_ns = std::max(per_ns(in), in_shared);
  link.out_bytes_per_ns = std::max(per_ns(out), out_shared);
  if (link.in_bytes_per_ns == 0) link.in_bytes_per_ns = link.out_bytes_per_ns;
  if (link.out_bytes_per_ns == 0) link.out_bytes_per_ns = link.in_bytes_per_ns;
  if (link.in_bytes_per_ns == 0) return typical;
  const double sum = link.in_bytes_per_ns + link.out_bytes_per_ns;
  link.both_bytes_per_ns =
      in_shared > 0 && out_shared > 0
          ? in_shared + out_shared
          : sum * typical.both_bytes_per_ns /
                (typical.in_bytes_per_ns + typical.out_bytes_per_ns);
  link.both_bytes_per_ns =
      std::clamp(link.both_bytes_per_ns,
                 std::max(link.in_bytes_per_ns, link.out_bytes_per_ns), sum);
  const std::int64_t latency_ns = std::max(in.latency_ns, out.latency_ns);
  if (latency_ns > 0) link.latency_ns = static_cast<double>(latency_ns);
  return link;
}

bool differs_much(const LinkModel& a, const LinkModel& b) noexcept {
  constexpr double kRate = 0.25;
  constexpr double kLatency = 0.5;
  constexpr double kLatency_ns = 2000;
  return apart(a.in_bytes_per_ns, b.in_bytes_per_ns, kRate) ||
         apart(a.out_bytes_per_ns, b.out_bytes_per_ns, kRate) ||
         apart(a.both_bytes_per_ns, b.both_bytes_per_ns, kRate) ||
         (apart(a.latency_ns, b.latency_ns, kLatency) &&
          std::abs(a.latency_ns - b.latency_ns) > kLatency_ns);
}

} // namespace chameleon::memory
