#include "backend/torch/cuda_in_kernel_allocator.h"

#include <atomic>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/torch_versions.h"

namespace chameleon::backend {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

constinit std::atomic<int> open_pools{0};

// What the arena gives within a call; null: not within one.
void* from_arena(std::size_t bytes) {
  InKernelScope* const scope = InKernelScope::active();
  if (scope == nullptr || bytes == 0) return nullptr;
  auto memory = scope->pager().allocate(scope->call(), bytes);
  if (!memory.ok()) [[unlikely]] {
    scope->failed(memory.error());
    throw_error(memory.error());
  }
  return *memory;
}

// One line a method: what PyTorch asks of its allocator goes to the native one,
// which has to be asked by its own name.
class CudaInKernelAllocator final : public ForwardsNewerCudaCalls {
 public:
  explicit CudaInKernelAllocator(caching::CUDAAllocator* native)
      : ForwardsNewerCudaCalls(*native) {}

  // ---- memory --------------------------------------------------------------
  c10::DataPtr allocate(std::size_t bytes) override {
    if (void* const data = from_arena(bytes)) {
      return {data, data, &detail::release_in_kernel,
              target_device(context_of(data)->index)};
    }
    return native_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &detail::release_in_kernel;
  }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    native_.copy_data(to, from, n);
  }
  void* raw_alloc(std::size_t bytes) override {
    void* const data = from_arena(bytes);
    return data != nullptr ? data : native_.raw_alloc(bytes);
  }
  // Another stream than the call's: the arena orders memory by the latter.
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override {
    return native_.raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* data) override { detail::release_in_kernel(data); }
  void recordStream(const c10::DataPtr& data,
                    c10::cuda::CUDAStream stream) override {
    if (!is_in_kernel(data)) native_.recordStream(data, stream);
  }
  void* getBaseAllocation(void* data, std::size_t* bytes) override {
    check_address(data);
    return native_.getBaseAllocation(data, bytes);
  }
  caching::ShareableHandle shareIpcHandle(void* data) override {
    check_address(data);
    return native_.shareIpcHandle(data);
  }

  // ---- pools, as graphs have them ------------------------------------------
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    native_.beginAllocateToPool(device, pool, std::move(filter));
    open_pools.fetch_add(1);
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    open_pools.fetch_sub(1);
    native_.endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    native_.releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return native_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    native_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    native_.setUseOnOOM(device, pool, use);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    native_.setNoSplit(device, pool);
  }
  bool checkPoolLiveAllocations(
      DeviceIndex device, MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    return native_.checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(
      DeviceIndex device, MempoolId_t pool) override {
    return native_.getCheckpointState(device, pool);
  }
  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device,
      std::shared_ptr<caching::AllocatorState> state) override {
    return native_.setCheckpointPoolState(device, std::move(state));
  }

  // ---- all else ------------------------------------------------------------
  bool initialized() override { return native_.initialized(); }
  void emptyCache(MempoolId_t pool) override { native_.emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      DeviceIndex device) override {
    return native_.getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    native_.resetAccumulatedStats(device);
  }
  void resetPeakStats(DeviceIndex device) override {
    native_.resetPeakStats(device);
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(
      DeviceIndex device) override {
    return native_.getMemoryInfo(device);
  }
  void init(int device_count) override { native_.init(device_count); }
  double getMemoryFraction(DeviceIndex device) override {
    return native_.getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    native_.setMemoryFraction(fraction, device);
  }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) override {
    return native_.getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { native_.enable(value); }
  bool isEnabled() const override { return native_.isEnabled(); }
  // What a library may have for a workspace: it asks before it tries.
  void cacheInfo(DeviceIndex device, std::size_t* largest) override {
    if (InKernelScope* const scope = InKernelScope::active()) {
      *largest = scope->pager().largestInCall(scope->call());
      return;
    }
    native_.cacheInfo(device, largest);
  }
  caching::SnapshotInfo snapshot(MempoolId_t pool,
                                 bool include_traces) override {
    return native_.snapshot(pool, include_traces);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return native_.getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return native_.isHistoryEnabled(); }
  void recordHistory(bool enabled, caching::CreateContextFn context,
                     std::size_t max_entries, caching::RecordContext when,
                     bool clear,
                     const std::vector<std::string>& skip) override {
    native_.recordHistory(enabled, context, max_entries, when, clear, skip);
  }
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& data) override {
    native_.recordAnnotation(data);
  }
  void pushCompileContext(std::string& context) override {
    native_.pushCompileContext(context);
  }
  void popCompileContext() override { native_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override {
    native_.setUserMetadata(metadata);
  }
  std::string getUserMetadata() override { return native_.getUserMetadata(); }
  void attachOutOfMemoryObserver(
      caching::OutOfMemoryObserver observer) override {
    native_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(
      caching::AllocatorTraceTracker tracker) override {
    native_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex other) override {
    native_.enablePeerAccess(device, other);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from,
                          int from_device, std::size_t bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    // The arena is mapped for its own device alone, whatever access the two
    // have to plain memory of each other.
    // mutant: peer-copy
    if (to_device != from_device &&
        (context_of(to) != nullptr || context_of(from) != nullptr)) {
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes,
                                 stream);
    }
    return native_.memcpyAsync(to, to_device, from, from_device, bytes, stream,
                               p2p_enabled);
  }
  std::string name() override { return native_.name(); }

 private:
  static void check_address(const void* data) {
    TORCH_CHECK(context_of(data) == nullptr,
                "chameleon: this CUDA tensor shows a chameleon tensor's memory "
                "for a while, so other processes cannot share it; clone() it "
                "first");
  }
};

} // namespace

bool memory_pools_are_open() noexcept {
  return open_pools.load(std::memory_order_relaxed) > 0;
}

void refuse_capture(c10::DeviceIndex device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(
      c10::cuda::getCurrentCUDAStream(device).stream(), &status);
  TORCH_CHECK_NOT_IMPLEMENTED(
      error == cudaSuccess && status == cudaStreamCaptureStatusNone,
      "chameleon: a CUDA graph cannot capture ops on chameleon tensors, whose "
      "memory moves between replays; capture on \"cuda\" tensors, or run "
      "without the graph");
}

void install_cuda_in_kernel_allocator() {
  static const bool installed = [] {
    caching::CUDAAllocator* const native = caching::get();
    set_native_release(native->raw_deleter());
    // Leaked: memory may outlive every static destructor.
    auto* const ours = new CudaInKernelAllocator(native);
    c10::SetAllocator(c10::DeviceType::CUDA, ours, /*priority=*/255);
    caching::allocator.store(ours);
    return true;
  }();
  (void)installed;
}

} // namespace chameleon::backend
