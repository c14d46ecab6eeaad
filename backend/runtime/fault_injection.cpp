#include "backend/runtime/fault_injection.h"

#include <string>

namespace chameleon::runtime {

namespace {

constexpr std::array<std::string_view, FaultInjection::kPoints> kNames = {
    "reserve", "commit", "allocate_host", "copy",
    "event",   "block",  "completion"};

// What the real failure at this point is.
constexpr std::array<ErrorCode, FaultInjection::kPoints> kCodes = {
    ErrorCode::kUnavailable,     ErrorCode::kOutOfDeviceMemory,
    ErrorCode::kOutOfHostMemory, ErrorCode::kDevice,
    ErrorCode::kDevice,          ErrorCode::kOutOfLogicalMemory,
    ErrorCode::kDevice};

// Trivially destructible: usable until the very end of the process.
constinit FaultInjection g_instance;

} // namespace

FaultInjection& FaultInjection::instance() noexcept { return g_instance; }

void FaultInjection::arm(FaultPoint point, std::uint64_t nth,
                         bool for_ever) noexcept {
  Point& row = points_[static_cast<std::size_t>(point)];
  row.armed.store(false);
  row.nth.store(nth);
  row.for_ever.store(for_ever);
  row.passes.store(0);
  row.armed.store(true);
  armed_.store(true);
}

void FaultInjection::disarmAll() noexcept {
  armed_.store(false);
  for (Point& row : points_) row.armed.store(false);
}

std::uint64_t FaultInjection::passes(FaultPoint point) const noexcept {
  return points_[static_cast<std::size_t>(point)].passes.load();
}

Error FaultInjection::passArmed(FaultPoint point) noexcept {
  const std::size_t index = static_cast<std::size_t>(point);
  Point& row = points_[index];
  if (!row.armed.load()) return {};
  const std::uint64_t pass = row.passes.fetch_add(1) + 1;
  const std::uint64_t nth = row.nth.load();
  const bool fails =
      nth != 0 && (pass == nth || (pass > nth && row.for_ever.load()));
  if (!fails) return {};
  return {kCodes[index], "injected failure: pass " + std::to_string(pass) +
                             " of point '" + std::string(kNames[index]) + "'"};
}

std::optional<FaultPoint> find_fault_point(std::string_view name) noexcept {
  for (std::size_t index = 0; index < kNames.size(); ++index) {
    if (kNames[index] == name) return static_cast<FaultPoint>(index);
  }
  return std::nullopt;
}

std::span<const std::string_view> fault_point_names() noexcept {
  return kNames;
}

} // namespace chameleon::runtime
