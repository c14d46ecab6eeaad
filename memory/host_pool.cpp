#include "memory/host_pool.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/check.h"
#include "memory/fence_joiner.h"
#include "memory/phase_range.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;

struct HostPool::Slab {
  Slab(std::byte* address, std::size_t slab_bytes, FenceJoiner joiner,
       std::uint32_t index)
      : base(address), bytes(slab_bytes), extents(slab_bytes, joiner, index) {}

  bool empty() const noexcept { return extents.usedBytes() == 0; }

  std::byte* const base;
  const std::size_t bytes;
  ExtentMap extents; // its owner number is the slab's index
};

HostPool::HostPool(runtime::DeviceRuntime& runtime, StreamPositions& streams,
                   std::size_t budget_bytes, std::size_t slab_bytes)
    : runtime_(runtime),
      streams_(streams),
      slab_bytes_(ExtentMap::round(slab_bytes)),
      budget_bytes_(budget_bytes) {}

HostPool::~HostPool() {
  // A failure means that the device is lost: nothing uses the slabs then.
  (void)streams_.synchronizeAll().ok();
  for (const auto& slab : slabs_) {
    if (slab != nullptr) runtime_.freeHost(slab->base, slab->bytes);
  }
}

HostPool::Place HostPool::allocate(std::size_t bytes) {
  last_error_ = {};
  if (bytes > budget_bytes_) return {}; // also keeps round() from wrapping
  bytes = ExtentMap::round(bytes);
  std::uint32_t index = bestSlab(bytes);
  if (index == kNone) index = addSlab(bytes);
  if (index == kNone) return {};
  Slab& slab = *slabs_[index];
  Extent* extent =
      slab.extents.allocate(bytes, End::kBottom, ExtentUse::kBlock);
  CHAMELEON_CHECK(extent != nullptr, "a slab's largest hole is out of date");
  largest_free_[index] = slab.extents.largestFree();
  used_bytes_ += bytes;
  peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
  step_peak_bytes_ = std::max(step_peak_bytes_, used_bytes_);
  return {extent, slab.base + extent->offset};
}

void HostPool::free(Extent* extent, const Fence& fence) {
  const std::uint32_t index = extent->owner;
  Slab& slab = *slabs_[index];
  used_bytes_ -= extent->bytes;
  if (!fence.empty()) {
    const FenceJoiner joiner = fence_joiner(streams_);
    joiner.join(joiner.context, extent->fence, fence);
  }
  slab.extents.free(extent);
  largest_free_[index] = slab.extents.largestFree();
}

std::byte* HostPool::address(const Extent& extent) const noexcept {
  return slabs_[extent.owner]->base + extent.offset;
}

bool HostPool::setBudget(std::size_t budget_bytes) {
  last_error_ = {};
  if (!giveBackUntil(budget_bytes)) return false;
  budget_bytes_ = budget_bytes;
  return true;
}

void HostPool::followMachine(double share) {
  share_ = share;
  machine_bytes_ = runtime_.hostMemory().total_bytes;
}

bool HostPool::budgetGrows() {
  if (share_ == 0) return false;
  const std::size_t now = runtime_.hostMemory().total_bytes;
  if (now <= machine_bytes_) return false;
  budget_bytes_ += static_cast<std::size_t>(
      share_ * static_cast<double>(now - machine_bytes_));
  machine_bytes_ = now;
  return true;
}

void HostPool::trim() {
  last_error_ = {};
  for (std::uint32_t index = 0; index < slabs_.size(); ++index) {
    if (slabs_[index] != nullptr && slabs_[index]->empty()) giveBack(index);
  }
}

void HostPool::giveBackIdle(std::size_t keep_bytes, std::size_t most_bytes) {
  const std::size_t before = reserved_bytes_;
  for (std::uint32_t index = 0; index < slabs_.size(); ++index) {
    const Slab* const slab = slabs_[index].get();
    if (slab == nullptr || !slab->empty()) continue;
    const std::size_t left = reserved_bytes_ - slab->bytes;
    if (left < keep_bytes || before - left > most_bytes) continue;
    const Fence& fence = slab->extents.first()->fence;
    if (std::ranges::all_of(fence.slots(), [this](Position position) {
          return streams_.poll(position);
        })) {
      giveBack(index);
    }
  }
}

std::size_t HostPool::slabCount() const noexcept {
  return static_cast<std::size_t>(std::count_if(
      slabs_.begin(), slabs_.end(), [](const auto& s) { return !!s; }));
}

std::uint32_t HostPool::bestSlab(std::size_t bytes) const noexcept {
  std::uint32_t best = kNone;
  std::size_t best_hole = ~std::size_t{0};
  for (std::uint32_t index = 0; index < largest_free_.size(); ++index) {
    const std::size_t hole = largest_free_[index];
    if (hole >= bytes && hole < best_hole) {
      best = index;
      best_hole = hole;
    }
  }
  return best;
}

// A slab that holds at least `bytes` (rounded). kNone: no room or no memory.
std::uint32_t HostPool::addSlab(std::size_t bytes) {
  const auto fits = [this, bytes] {
    return bytes <= budget_bytes_ && giveBackUntil(budget_bytes_ - bytes);
  };
  if (!fits() && !(budgetGrows() && fits())) return kNone;
  const auto ask = [this, bytes] { // the last slab may be a small one
    // mutant: pool-budget
    const std::size_t room = budget_bytes_ - reserved_bytes_;
    return std::min(std::max(bytes, slab_bytes_),
                    room & ~(ExtentMap::kAlignment - 1));
  };
  const PhaseRange range("allocate host memory");
  std::size_t slab_bytes = ask();
  Result<std::byte*> base = runtime_.allocateHost(slab_bytes);
  if (!base.ok()) {
    // The machine has less than the budget allows: what lies idle may do.
    Error refused = base.takeError();
    const std::size_t before = reserved_bytes_;
    trim();
    if (reserved_bytes_ < before) {
      slab_bytes = ask();
      base = runtime_.allocateHost(slab_bytes);
      if (!base.ok()) refused = base.takeError();
    }
    if (!base.ok()) {
      last_error_ = std::move(refused);
      return kNone;
    }
  }
  auto unused = std::find(slabs_.begin(), slabs_.end(), nullptr);
  const auto index = static_cast<std::uint32_t>(unused - slabs_.begin());
  if (unused == slabs_.end()) {
    slabs_.emplace_back();
    largest_free_.emplace_back();
  }
  slabs_[index] =
      std::make_unique<Slab>(*base, slab_bytes, fence_joiner(streams_), index);
  largest_free_[index] = slab_bytes;
  reserved_bytes_ += slab_bytes;
  return index;
}

// REQUIRES: the slab is empty. False: its last copies failed (lastError()).
bool HostPool::giveBack(std::uint32_t index) {
  std::unique_ptr<Slab>& slab = slabs_[index];
  if (Error error = synchronize(streams_, slab->extents.first()->fence)) {
    last_error_ = std::move(error);
    return false;
  }
  runtime_.freeHost(slab->base, slab->bytes);
  reserved_bytes_ -= slab->bytes;
  slab.reset();
  largest_free_[index] = 0;
  return true;
}

// Gives back empty slabs until at most `reserved_bytes` are left. False, and
// none is given back: that would not do.
bool HostPool::giveBackUntil(std::size_t reserved_bytes) {
  if (reserved_bytes_ <= reserved_bytes) return true;
  std::size_t empty_bytes = 0;
  for (const auto& slab : slabs_) {
    if (slab != nullptr && slab->empty()) empty_bytes += slab->bytes;
  }
  if (reserved_bytes_ - empty_bytes > reserved_bytes) return false;
  for (std::uint32_t index = 0; reserved_bytes_ > reserved_bytes; ++index) {
    if (slabs_[index] == nullptr || !slabs_[index]->empty()) continue;
    if (!giveBack(index)) return false;
  }
  return true;
}

void HostPool::check() const {
  CHAMELEON_CHECK(slabs_.size() == largest_free_.size(), "lost slab entries");
  std::size_t reserved = 0;
  std::size_t used = 0;
  for (std::uint32_t index = 0; index < slabs_.size(); ++index) {
    const Slab* slab = slabs_[index].get();
    CHAMELEON_CHECK(largest_free_[index] ==
                        (slab != nullptr ? slab->extents.largestFree() : 0),
                    "a slab's largest hole is out of date");
    if (slab == nullptr) continue;
    slab->extents.check();
    CHAMELEON_CHECK(slab->extents.first()->owner == index,
                    "a slab's extents name another slab");
    reserved += slab->bytes;
    used += slab->extents.usedBytes();
  }
  CHAMELEON_CHECK(reserved == reserved_bytes_ && reserved <= budget_bytes_,
                  "H1: slabs exceed the budget or do not add up");
  CHAMELEON_CHECK(used == used_bytes_ && used <= peak_used_bytes_,
                  "H2: used bytes do not add up");
}

} // namespace chameleon::memory
