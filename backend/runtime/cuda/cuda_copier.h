// Submits copies to streams: those of pinned memory as one batch where the
// driver can, each cut where a registration ends; pageable ones by themselves;
// moves inside the device in pieces where source and destination overlap (CUDA
// has no memmove).
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: every method may be called from any thread; all need the
// context to be current. Its lock is held around driver calls that only
// submit.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/cuda/cuda_host_memory.h"
#include "backend/runtime/device_runtime.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

class CudaCopier {
 public:
  CudaCopier(const CudaContext& context, const CudaHostMemory& host)
      : context_(context), host_(host) {}
  ~CudaCopier();
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

  // Between host and device; REQUIRES that no copy depends on another one of
  // the same call.
  Error transfer(CUstream stream, std::span<const Copy> copies);
  // Inside the device, in order, memmove semantics. An error: what was to be
  // moved last is where it was. But if a move onto itself of more than a piece
  // fails half-way bytes are lost, and with them the GPU.
  Error move(CUstream stream, std::span<const Copy> copies);

  // Bytes of our slabs that were copied before they were registered, or
  // because they could not be.
  std::uint64_t pageableBytes() const noexcept {
    return pageable_bytes_.load(std::memory_order_relaxed);
  }
  // Batches that the driver did not take: their copies went one by one.
  std::uint64_t batchRefusals() const noexcept {
    return batch_refusals_.load(std::memory_order_relaxed);
  }

 private:
  Error submit(CUstream stream, const Copy& copy) const;
  // REQUIRES: registered memory, each copy in one registration.
  Error submitAll(CUstream stream, std::span<const Copy> copies);
  CUresult submitBatch(CUstream stream, std::span<const Copy> copies) const;
  Error moveInPieces(CUstream stream, const Copy& copy,
                     std::size_t piece_bytes);
  Error moveByBounce(CUstream stream, const Copy& copy);
  // Whether there is a bounce buffer: asked for with the first transfer, and
  // by each move that needs it while there is none. REQUIRES mutex_.
  bool prepareBounce();

  const CudaContext& context_;
  const CudaHostMemory& host_;
  std::atomic<std::uint64_t> pageable_bytes_{0};
  std::atomic<std::uint64_t> batch_refusals_{0};
  std::atomic<bool> batches_{true}; // the driver takes them
  std::once_flag bounce_ahead_;
  RankedMutex<LockRank::kRuntimePart> mutex_;
  // Guarded by mutex_: a piece of device memory for moves, the event after
  // which it is free again, and where that was recorded.
  std::byte* bounce_ = nullptr;
  CUevent bounce_free_ = nullptr;
  CUstream bounce_stream_ = nullptr;
  bool bounce_used_ = false;
  bool bounce_lost_ = false;
};

} // namespace chameleon::runtime
