#include "backend/runtime/cuda/cuda_host_memory.h"

#include <algorithm>
#include <iterator>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"

namespace chameleon::runtime {

namespace {

// Hints only: where the system refuses one, memory is slower and no less
// right.
void advise(std::byte* address, std::size_t bytes, int numa_node) {
  // Fewer pages to pin.
  (void)madvise(address, bytes, MADV_HUGEPAGE);
  // A child that inherits pinned pages makes the parent copy them.
  (void)madvise(address, bytes, MADV_DONTFORK);
  constexpr int kPreferred = 1; // MPOL_PREFERRED
  constexpr int kNodes = 64;
  if (numa_node < 0 || numa_node >= kNodes) return;
  const unsigned long mask = 1UL << numa_node;
  (void)syscall(SYS_mbind, address, bytes, kPreferred, &mask, kNodes + 1, 0);
}

std::size_t populating_threads(const CudaHostMemoryOptions& options) {
  if (!options.background) return 0;
  if (options.populating_threads != 0) return options.populating_threads;
  constexpr std::size_t kMost = 8;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  const std::size_t cores =
      sched_getaffinity(0, sizeof usable, &usable) == 0
          ? static_cast<std::size_t>(CPU_COUNT(&usable))
          : std::thread::hardware_concurrency(); // more than a set holds
  return std::clamp(cores, std::size_t{2}, kMost + 1) - 1;
}

// While another thread captures a CUDA graph, calls such as registering fail in
// all threads, and the capture with them, unless a thread says that its calls
// have nothing to do with it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver) : driver_(driver) {
    exchanged_ =
        driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~RelaxedCapture() {
    if (exchanged_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED; // then the old
  bool exchanged_ = false;
};

} // namespace

CudaHostMemory::CudaHostMemory(const CudaContext& context,
                               CudaHostMemoryOptions options)
    : context_(context),
      options_(std::move(options)),
      numa_node_(context.attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
                                   /*missing=*/-1)),
      populator_(populating_threads(options_)) {}

CudaHostMemory::~CudaHostMemory() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  populator_.stop();
  if (thread_.joinable()) thread_.join();
  for (const auto& [base, slab] : slabs_) {
    populator_.remove(base);
    unregister(*slab);
    if (slab->is_ours) close_address_space(slab->base, slab->bytes);
  }
}

Error CudaHostMemory::allocate(std::byte* address, std::size_t bytes) {
  if (Error error = open_address_space(address, bytes)) return error;
  advise(address, bytes, numa_node_);
  add(address, bytes, /*is_ours=*/true);
  return {};
}

void CudaHostMemory::add(std::byte* base, std::size_t bytes, bool is_ours) {
  populator_.add(base, bytes);
  std::unique_lock lock(mutex_);
  auto& slab = slabs_[base];
  slab = std::make_unique<Slab>(Slab{base, bytes, is_ours});
  if (!options_.background) {
    while (!slab->done) registerChunk(*slab, lock);
    return;
  }
  queue_.push_back(slab.get());
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  work_.notify_one();
}

void CudaHostMemory::free(std::byte* address, std::size_t bytes) noexcept {
  const std::unique_ptr<Slab> slab = take(address, bytes);
  close_address_space(address, bytes);
  // A registration cannot become smaller.
  const auto kept = static_cast<std::size_t>(address - slab->base);
  if (kept != 0) add(slab->base, kept, /*is_ours=*/true);
}

std::unique_ptr<CudaHostMemory::Slab> CudaHostMemory::take(
    std::byte* address, std::size_t bytes) noexcept {
  std::unique_ptr<Slab> slab;
  {
    std::unique_lock lock(mutex_);
    auto found = slabs_.upper_bound(address);
    CHAMELEON_CHECK(found != slabs_.begin(), "freeHost of what is no slab");
    --found;
    slab = std::move(found->second);
    CHAMELEON_CHECK(slab->base + slab->bytes == address + bytes,
                    "freeHost of what is neither a slab nor its upper part");
    slabs_.erase(found);
    std::erase(queue_, slab.get());
    progress_.notify_all(); // nothing may be left to wait for
    lock.unlock();
    populator_.remove(slab->base); // the thread goes on if it awaits it
    lock.lock();
    progress_.wait(lock, [&] { return !slab->busy; });
    registered_bytes_ -= slab->registered_bytes;
  }
  unregister(*slab);
  return slab;
}

CudaHostMemory::Run CudaHostMemory::runAt(const std::byte* address,
                                          std::size_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto after = slabs_.upper_bound(address);
  if (after != slabs_.begin()) {
    const Slab& slab = *std::prev(after)->second;
    const auto offset = static_cast<std::size_t>(address - slab.base);
    if (offset < slab.bytes) {
      const std::size_t chunk = options_.chunk_bytes;
      // mutant: chunk-border
      const std::size_t end =
          std::min(slab.bytes, (offset / chunk + 1) * chunk);
      return {std::min(bytes, end - offset), offset < slab.registered_bytes,
              true};
    }
  }
  return {bytes, false, false};
}

std::size_t CudaHostMemory::registeredBytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return registered_bytes_;
}

std::uint64_t CudaHostMemory::refusals() const noexcept {
  const std::lock_guard lock(mutex_);
  return refusals_;
}

void CudaHostMemory::awaitRegistration() {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [this] { return queue_.empty(); });
}

void CudaHostMemory::run() {
  pthread_setname_np(pthread_self(), "cham-pin");
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    Slab& slab = *queue_.front();
    registerChunk(slab, lock);
    // free() took it off the queue if it wants it.
    if (!queue_.empty() && queue_.front() == &slab && slab.done) {
      queue_.pop_front();
    }
  }
}

void CudaHostMemory::registerChunk(Slab& slab, std::unique_lock<Mutex>& lock) {
  const std::size_t begin = slab.registered_bytes;
  const std::size_t bytes = std::min(options_.chunk_bytes, slab.bytes - begin);
  slab.busy = true;
  lock.unlock();
  if (!populator_.await(slab.base, begin + bytes)) {
    lock.lock();
    slab.busy = false;
    progress_.notify_all();
    return;
  }
  CUresult result = CUDA_SUCCESS;
  {
    const CudaContext::Scope scope(context_);
    const RelaxedCapture relaxed(context_.driver());
    result = context_.driver().cuMemHostRegister(slab.base + begin, bytes,
                                                 CU_MEMHOSTREGISTER_PORTABLE);
  }
  const Error error = context_.check(result, "cuMemHostRegister");
  // The process ends, or the GPU is lost: no fault of the memory.
  const bool has_ended =
      result == CUDA_ERROR_DEINITIALIZED || context_.lost() != nullptr;
  if (error) populator_.remove(slab.base); // of no use to the driver
  lock.lock();
  if (!error) {
    slab.registered_bytes += bytes;
    registered_bytes_ += bytes;
    slab.done = slab.registered_bytes == slab.bytes;
  } else {
    slab.done = true;
    if (!has_ended && ++refusals_ == 1 && options_.warn) {
      lock.unlock();
      options_.warn(
          "host memory for evicted tensors cannot be pinned, so copies of it "
          "are slower (the limit on locked memory, ulimit -l, is a usual "
          "reason): " +
          error.message());
      lock.lock();
    }
  }
  slab.busy = false; // once the lock is given up it may be gone
  progress_.notify_all();
}

void CudaHostMemory::unregister(const Slab& slab) noexcept {
  const CudaContext::Scope scope(context_);
  const RelaxedCapture relaxed(context_.driver());
  for (std::size_t at = 0; at < slab.registered_bytes;
       at += options_.chunk_bytes) {
    context_.driver().cuMemHostUnregister(slab.base + at);
  }
}

} // namespace chameleon::runtime
