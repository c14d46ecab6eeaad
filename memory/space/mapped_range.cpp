#include "memory/space/mapped_range.h"

#include <bit>

#include "backend/runtime/check.h"
#include "memory/phase_range.h"

namespace chameleon::memory {
namespace {

using runtime::Error;

constexpr std::size_t kUnitBytes = std::size_t{32} << 20;

} // namespace

MappedRange::MappedRange(runtime::DeviceRuntime& runtime, std::byte* base,
                         std::size_t range_bytes)
    : runtime_(runtime),
      base_(base),
      range_bytes_(range_bytes),
      granularity_(runtime.commitGranularity()),
      unit_bytes_(std::max(granularity_, kUnitBytes)),
      unit_shift_(static_cast<unsigned>(std::countr_zero(unit_bytes_))) {}

MappedRange::~MappedRange() {
  // A failure means that the device is lost: nothing uses the range then.
  (void)setLimit(0).ok();
  runtime_.unreserve(base_, range_bytes_);
}

Error MappedRange::mapUnits(std::size_t offset, std::size_t bytes) {
  const std::size_t end = offset + bytes;
  const std::size_t last = (end - 1) >> unit_shift_;
  for (std::size_t unit = offset >> unit_shift_; unit <= last; ++unit) {
    const std::size_t begin = unit << unit_shift_;
    std::size_t& mapped = mapped_[unit];
    if (mapped >= std::min(end - begin, unit_bytes_)) continue;
    const PhaseRange range("commit device memory");
    const std::size_t target = std::min(limit_bytes_ - begin, unit_bytes_);
    ++commits_;
    if (Error error =
            runtime_.commit(base_ + begin + mapped, target - mapped)) {
      return error;
    }
    mapped_bytes_ += target - mapped;
    mapped = target;
  }
  return {};
}

bool MappedRange::isMappedAbove(std::size_t limit_bytes) const noexcept {
  const std::size_t limit = roundUp(limit_bytes);
  for (std::size_t unit = limit >> unit_shift_; unit < mapped_.size(); ++unit) {
    const std::size_t begin = unit << unit_shift_;
    if (mapped_[unit] > (limit > begin ? limit - begin : 0)) return true;
  }
  return false;
}

Error MappedRange::setLimit(std::size_t limit_bytes) {
  const std::size_t limit = roundUp(limit_bytes);
  for (std::size_t unit = limit >> unit_shift_; unit < mapped_.size(); ++unit) {
    const std::size_t begin = unit << unit_shift_;
    const std::size_t kept = limit > begin ? limit - begin : 0;
    std::size_t& mapped = mapped_[unit];
    if (mapped <= kept) continue;
    ++commits_;
    if (Error error = runtime_.decommit(base_ + begin + kept, mapped - kept)) {
      return error;
    }
    mapped_bytes_ -= mapped - kept;
    mapped = kept;
  }
  mapped_.resize((limit + unit_bytes_ - 1) >> unit_shift_);
  limit_bytes_ = limit;
  return {};
}

void MappedRange::check() const {
  std::size_t mapped_bytes = 0;
  for (const std::size_t bytes : mapped_) mapped_bytes += bytes;
  CHAMELEON_CHECK(mapped_bytes == mapped_bytes_ && mapped_bytes <= limit_bytes_,
                  "A1: more is mapped than the budget allows");
}

} // namespace chameleon::memory
