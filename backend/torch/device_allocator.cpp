#include "backend/torch/device_allocator.h"

#include <algorithm>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_options.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"

namespace chameleon::backend {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
constexpr auto kAll =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  static DeviceAllocator& instance() {
    static auto* allocator = new DeviceAllocator; // leaked: outlives storages
    return *allocator;
  }
  c10::DataPtr allocate(std::size_t bytes) override {
    return allocate_block(bytes, current_device());
  }
  // Blocks have a handle as context, so raw_allocate() is refused by c10.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false,
                "chameleon: storages have no fixed address to copy from; clone "
                "the tensor instead");
  }

  bool initialized() override { return is_used(); }
  void emptyCache(c10::MempoolId_t) override {
    try_finish_deferred_work();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      if (DeviceContext* used = context_if_used(i)) used->pager->trim();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    finish_deferred_work();
    if (data.get_deleter() != &release_block) return;
    auto* block = static_cast<memory::Block*>(data.get_context());
    block->pager->recordUse(*block, to_runtime(stream));
  }
  // Logical figures; what is physical has its own keys in swap_stats().
  DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    DeviceStats result;
    try_finish_deferred_work();
    const DeviceContext* used = context_if_used(resolve_index(index));
    if (used == nullptr) return result;
    const memory::Stats stats = used->pager->stats();
    for (auto* level : {&result.allocated_bytes, &result.active_bytes,
                        &result.requested_bytes}) {
      (*level)[kAll].current = stats.logical_bytes;
      (*level)[kAll].peak = stats.peak_logical_bytes;
    }
    // The same bytes after rounding, so never less than what is allocated.
    const auto rounded =
        static_cast<std::int64_t>(used->pager->levels().logical_rounded_bytes);
    result.reserved_bytes[kAll].current = rounded;
    result.reserved_bytes[kAll].peak =
        std::max(rounded, stats.peak_logical_bytes);
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override {
    try_finish_deferred_work();
    if (DeviceContext* used = context_if_used(resolve_index(index))) {
      used->pager->resetStats();
    }
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(
      c10::DeviceIndex index) override {
    try_finish_deferred_work();
    memory::Pager& pager =
        *context(resolve_index(index), "a memory query").pager;
    const std::size_t total =
        total_memory_bytes(pager.budgets().limits().hbm_budget_bytes);
    const auto live = static_cast<std::size_t>(pager.stats().logical_bytes);
    return {total > live ? total - live : 0, total};
  }
};

const bool allocator_set = [] {
  c10::SetAllocator(kChameleon, &DeviceAllocator::instance());
  return true;
}();

} // namespace

c10::DeviceAllocator* device_allocator() noexcept {
  return &DeviceAllocator::instance();
}

c10::Storage make_storage(std::size_t bytes, c10::DeviceIndex index) {
  return {c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, allocate_block(bytes, index),
      device_allocator(), /*resizable=*/true)};
}

} // namespace chameleon::backend
