#include "backend/runtime/cuda/cuda_copier.h"

#include <algorithm>

#include "backend/runtime/move_steps.h"

namespace chameleon::runtime {

namespace {

// Calls piece(offset, bytes) for pieces of at most `piece_bytes`, in the order
// in which none overwrites what a later one reads. Where some of them have been
// moved and one cannot be, tried twice, bytes are lost for good: the GPU counts
// as lost.
template <typename Piece>
Error in_pieces(const Copy& copy, std::size_t piece_bytes,
                const CudaContext& context, Piece piece) {
  const std::size_t count = (copy.bytes + piece_bytes - 1) / piece_bytes;
  const bool upwards = copy.destination < copy.source;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = (upwards ? i : count - 1 - i) * piece_bytes;
    const std::size_t bytes = std::min(piece_bytes, copy.bytes - offset);
    Error error = piece(offset, bytes);
    if (error && i > 0) {
      error = piece(offset, bytes);
      if (error) {
        context.lose("moving a tensor inside device memory failed half-way");
      }
    }
    if (error) return error;
  }
  return {};
}

} // namespace

CudaCopier::~CudaCopier() {
  if (bounce_free_ != nullptr) context_.driver().cuEventDestroy(bounce_free_);
  if (bounce_ != nullptr) context_.driver().cuMemFree(device_pointer(bounce_));
}

Error CudaCopier::transfer(CUstream stream, std::span<const Copy> copies) {
  // Moves come when memory is full, and then there may be no room for it.
  std::call_once(bounce_ahead_, [this] {
    const std::lock_guard lock(mutex_);
    prepareBounce();
  });
  std::vector<Copy> batch;
  batch.reserve(copies.size());
  std::uint64_t pageable_bytes = 0;
  Error error;
  for (const Copy& whole : copies) {
    for (Copy copy = whole; copy.bytes > 0 && !error;) {
      CudaHostMemory::Run run = host_.runAt(copy.destination, copy.bytes);
      if (!run.ours) run = host_.runAt(copy.source, copy.bytes);
      const Copy part{copy.destination, copy.source, run.bytes};
      if (run.registered) {
        batch.push_back(part);
      } else {
        // The driver may block in this one: what can start starts first.
        error = submitAll(stream, batch);
        batch.clear();
        if (!error) error = submit(stream, part);
        if (run.ours) pageable_bytes += run.bytes;
      }
      copy.destination += run.bytes;
      copy.source += run.bytes;
      copy.bytes -= run.bytes;
    }
    if (error) break;
  }
  if (pageable_bytes != 0) {
    pageable_bytes_.fetch_add(pageable_bytes, std::memory_order_relaxed);
  }
  if (error) return error;
  return submitAll(stream, batch);
}

Error CudaCopier::move(CUstream stream, std::span<const Copy> copies) {
  for (const Copy& copy : copies) {
    const MoveSteps steps = steps_of_move(copy);
    if (steps.pieces == 0) continue;
    Error error = steps.bounces ? moveByBounce(stream, copy)
                                : moveInPieces(stream, copy, steps.piece_bytes);
    if (error) return error;
  }
  return {};
}

Error CudaCopier::submit(CUstream stream, const Copy& copy) const {
  return context_.check(context_.driver().cuMemcpyAsync(
                            device_pointer(copy.destination),
                            device_pointer(copy.source), copy.bytes, stream),
                        "cuMemcpyAsync");
}

Error CudaCopier::submitAll(CUstream stream, std::span<const Copy> copies) {
  if (copies.size() > 1 && context_.driver().cuMemcpyBatchAsync != nullptr &&
      batches_.load(std::memory_order_relaxed)) {
    const CUresult result = submitBatch(stream, copies);
    Error error = context_.check(result, "cuMemcpyBatchAsync");
    if (!error || context_.lost() != nullptr) return error;
    // Some of the batch may be under way. The same bytes once more, later on
    // the same stream, change nothing.
    batch_refusals_.fetch_add(1, std::memory_order_relaxed);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
      batches_.store(false, std::memory_order_relaxed);
    }
  }
  for (const Copy& copy : copies) {
    if (Error error = submit(stream, copy)) return error;
  }
  return {};
}

CUresult CudaCopier::submitBatch(CUstream stream,
                                 std::span<const Copy> copies) const {
  std::vector<CUdeviceptr> to;
  std::vector<CUdeviceptr> from;
  std::vector<std::size_t> sizes;
  to.reserve(copies.size());
  from.reserve(copies.size());
  sizes.reserve(copies.size());
  for (const Copy& copy : copies) {
    to.push_back(device_pointer(copy.destination));
    from.push_back(device_pointer(copy.source));
    sizes.push_back(copy.bytes);
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  std::size_t first = 0; // the attributes hold from this copy on
  return context_.driver().cuMemcpyBatchAsync(
      to.data(), from.data(), sizes.data(), copies.size(), &attributes, &first,
      /*numAttrs=*/1, stream);
}

Error CudaCopier::moveInPieces(CUstream stream, const Copy& copy,
                               std::size_t piece_bytes) {
  return in_pieces(
      copy, piece_bytes, context_, [&](std::size_t offset, std::size_t bytes) {
        return submit(stream,
                      {copy.destination + offset, copy.source + offset, bytes});
      });
}

Error CudaCopier::moveByBounce(CUstream stream, const Copy& copy) {
  const CudaDriver& driver = context_.driver();
  const std::lock_guard lock(mutex_);
  if (!prepareBounce()) return moveInPieces(stream, copy, distance_of(copy));
  // mutant: bounce-turn
  if (bounce_used_ && bounce_stream_ != stream) {
    if (Error error = context_.check(
            driver.cuStreamWaitEvent(stream, bounce_free_, /*Flags=*/0),
            "cuStreamWaitEvent")) {
      return error;
    }
  }
  Error error = in_pieces(
      copy, MoveSteps::kBounceBytes, context_,
      [&](std::size_t offset, std::size_t bytes) {
        Error failed = submit(stream, {bounce_, copy.source + offset, bytes});
        if (failed) return failed;
        return submit(stream, {copy.destination + offset, bounce_, bytes});
      });
  bounce_used_ = true;
  bounce_stream_ = stream;
  // Nobody could wait for this use. The move itself is under way.
  if (driver.cuEventRecord(bounce_free_, stream) != CUDA_SUCCESS) {
    bounce_lost_ = true;
  }
  return error;
}

bool CudaCopier::prepareBounce() {
  if (bounce_lost_) return false;
  if (bounce_ != nullptr) return true;
  const CudaDriver& driver = context_.driver();
  if (bounce_free_ == nullptr &&
      driver.cuEventCreate(&bounce_free_, CU_EVENT_DISABLE_TIMING) !=
          CUDA_SUCCESS) {
    bounce_free_ = nullptr;
    return false;
  }
  CUdeviceptr memory = 0;
  if (driver.cuMemAlloc(&memory, MoveSteps::kBounceBytes) != CUDA_SUCCESS) {
    return false;
  }
  bounce_ = reinterpret_cast<std::byte*>(memory);
  return true;
}

} // namespace chameleon::runtime
