#include "backend/runtime/cuda/cuda_runtime.h"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"
#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/cuda/cuda_copier.h"
#include "backend/runtime/cuda/cuda_device_memory.h"
#include "backend/runtime/cuda/cuda_driver.h"
#include "backend/runtime/cuda/cuda_events.h"
#include "backend/runtime/cuda/cuda_host_memory.h"
#include "backend/runtime/cuda/cuda_link_probe.h"
#include "backend/runtime/machine_memory.h"
#include "backend/runtime/ranked_mutex.h"
#include "backend/runtime/use_guard.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

void warn_on_stderr(std::string_view text) {
  std::fprintf(stderr, "chameleon: warning: %.*s\n",
               static_cast<int>(text.size()), text.data());
}

// What is made of the driver, in the order in which it is taken down.
struct Parts {
  std::unique_ptr<CudaContext> context;
  std::unique_ptr<CudaDeviceMemory> memory;
  std::unique_ptr<CudaHostMemory> host;
  std::unique_ptr<CudaEvents> events;
  std::unique_ptr<CudaCopier> copier;
  CUstream in = nullptr;
  CUstream out = nullptr;
  CUstream moves = nullptr;

  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    if (context == nullptr) return;
    {
      const CudaContext::Scope scope(*context);
      for (CUstream stream : {in, out, moves}) {
        if (stream == nullptr) continue;
        context->driver().cuStreamSynchronize(stream);
        context->driver().cuStreamDestroy(stream);
      }
      copier.reset();
      events.reset();
      host.reset();
      memory.reset();
    }
    context.reset();
  }

  Error open(const CudaDriver& driver, int ordinal,
             const CudaRuntimeOptions& options);
  Error makeStreams();
};

Error Parts::open(const CudaDriver& driver, int ordinal,
                  const CudaRuntimeOptions& options) {
  Result<std::unique_ptr<CudaContext>> made_context =
      CudaContext::create(driver, ordinal);
  if (!made_context.ok()) return made_context.takeError();
  context = std::move(*made_context);
  const CudaContext::Scope scope(*context);
  Result<std::unique_ptr<CudaDeviceMemory>> made_memory =
      CudaDeviceMemory::create(*context, options.commit_bytes);
  if (!made_memory.ok()) return made_memory.takeError();
  memory = std::move(*made_memory);
  host = std::make_unique<CudaHostMemory>(
      *context,
      CudaHostMemoryOptions{options.register_chunk_bytes,
                            options.register_in_background,
                            options.warn ? options.warn : warn_on_stderr});
  copier = std::make_unique<CudaCopier>(*context, *host);
  if (Error error = makeStreams()) return error;
  events = std::make_unique<CudaEvents>(*context);
  return events->start(in);
}

// Copies and moves come before kernels: where both wait for the same resource
// the copy is what a kernel will wait for. A fault counts most.
Error Parts::makeStreams() {
  const CudaDriver& driver = context->driver();
  int least = 0;
  int greatest = 0; // the smaller number
  if (Error error =
          context->check(driver.cuCtxGetStreamPriorityRange(&least, &greatest),
                         "cuCtxGetStreamPriorityRange")) {
    return error;
  }
  const auto make = [&](CUstream& stream, int priority) {
    return context->check(driver.cuStreamCreateWithPriority(
                              &stream, CU_STREAM_NON_BLOCKING, priority),
                          "cuStreamCreateWithPriority");
  };
  if (Error error = make(in, greatest)) return error;
  const int next = greatest < least ? greatest + 1 : greatest;
  if (Error error = make(out, next)) return error;
  return make(moves, next);
}

class Runtime final : public CudaRuntime, private UseGuard {
 public:
  Runtime(std::unique_ptr<Parts> parts, int ordinal,
          const CudaRuntimeOptions& options)
      : parts_(std::move(parts)),
        ordinal_(ordinal),
        stream_of_(options.stream_of) {}
  ~Runtime() override {
    // The driver does not survive a fork, nor do the threads.
    if (!forked()) return;
    [[maybe_unused]] const Parts* const leaked = parts_.release();
  }

  std::string_view name() const noexcept override { return "cuda"; }

  // ---- device memory -----------------------------------------------------
  MemoryInfo deviceMemory() const noexcept override {
    MemoryInfo info{0, 0};
    if (forked()) return info;
    const CudaContext::Scope scope(context());
    if (driver().cuMemGetInfo(&info.free_bytes, &info.total_bytes) !=
        CUDA_SUCCESS) {
      return {0, 0};
    }
    return info;
  }
  std::size_t commitGranularity() const noexcept override {
    return parts_->memory->unitBytes();
  }
  Result<std::byte*> reserve(std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kReserve)) return error;
    const CudaContext::Scope scope(context());
    return parts_->memory->reserve(bytes);
  }
  Error commit(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kCommit)) return error;
    const CudaContext::Scope scope(context());
    return parts_->memory->commit(address, bytes);
  }
  Error decommit(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kCommit)) return error;
    const CudaContext::Scope scope(context());
    return parts_->memory->decommit(address, bytes);
  }
  Result<std::byte*> reserveAddresses(std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kReserve)) return error;
    // Slabs that are aligned to that consist of huge pages.
    Result<std::byte*> base = reserve_address_space(bytes, kHugePageBytes);
    if (!base.ok()) return base;
    const std::lock_guard lock(mutex_);
    addresses_.push_back(*base);
    return base;
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    if (forked()) return;
    {
      const std::lock_guard lock(mutex_);
      if (std::erase(addresses_, address) != 0) {
        unmap_memory(address, bytes);
        return;
      }
    }
    const CudaContext::Scope scope(context());
    parts_->memory->unreserve(address, bytes);
  }

  // ---- host memory -------------------------------------------------------
  MemoryInfo hostMemory() const noexcept override { return machine_memory(); }
  Error allocateHost(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kAllocateHost)) return error;
    CHAMELEON_CHECK(is_in_pages(address, bytes), "a host slab has whole pages");
    return parts_->host->allocate(address, bytes);
  }
  void freeHost(std::byte* address, std::size_t bytes) noexcept override {
    if (!forked()) parts_->host->free(address, bytes);
  }
  void pin(std::byte* address, std::size_t bytes) override {
    CHAMELEON_CHECK(is_in_pages(address, bytes), "what is pinned has pages");
    if (!forked()) parts_->host->pin(address, bytes);
  }
  void unpin(std::byte* address, std::size_t bytes) noexcept override {
    if (!forked()) parts_->host->unpin(address, bytes);
  }
  void awaitPinning() override {
    if (!forked()) parts_->host->awaitRegistration();
  }
  TransferGaps transferGaps() const noexcept override {
    return {parts_->host->refusals(), parts_->copier->pageableBytes(),
            parts_->copier->batchRefusals()};
  }

  // ---- streams and events ------------------------------------------------
  Error copy(Stream stream, std::span<const Copy> copies) override {
    if (Error error = ready(FaultPoint::kCopy)) return error;
    const CudaContext::Scope scope(context());
    if (stream == kCopyInStream)
      return parts_->copier->transfer(parts_->in, copies);
    if (stream == kCopyOutStream) {
      return parts_->copier->transfer(parts_->out, copies);
    }
    return parts_->copier->move(handleOf(stream), copies);
  }
  Result<Event> record(Stream stream) override { return mark(stream, false); }
  Result<Event> recordTimed(Stream stream) override {
    return mark(stream, true);
  }
  Error wait(Stream stream, Event event) override {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    if (event.complete()) return {};
    const CudaContext::Scope scope(context());
    return parts_->events->wait(handleOf(stream), event);
  }
  bool query(Event event) noexcept override {
    if (event.complete()) return true;
    if (forked() || context().lost() != nullptr) return false;
    const CudaContext::Scope scope(context());
    return parts_->events->query(event);
  }
  Error synchronize(Event event) override {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    if (event.complete()) return {};
    const CudaContext::Scope scope(context());
    return parts_->events->synchronize(event);
  }
  void destroy(Event event) noexcept override {
    if (!event.complete() && !forked()) parts_->events->giveBack(event);
  }
  bool drain(Stream stream) noexcept override {
    if (forked()) return false;
    const CudaContext::Scope scope(context());
    if (context().lost() != nullptr) {
      driver().cuStreamSynchronize(handleOf(stream));
      return false;
    }
    return driver().cuStreamSynchronize(handleOf(stream)) == CUDA_SUCCESS;
  }

  // ---- clock ---------------------------------------------------------------
  std::int64_t now_ns() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  std::optional<std::int64_t> elapsed_ns(Event start,
                                         Event end) noexcept override {
    if (start.complete() || end.complete() || forked()) return std::nullopt;
    const CudaContext::Scope scope(context());
    return parts_->events->elapsed_ns(start, end);
  }
  std::optional<Moment> momentOf(Event event) noexcept override {
    if (event.complete() || forked()) return std::nullopt;
    const CudaContext::Scope scope(context());
    const std::optional<std::int64_t> time_ns = parts_->events->time_ns(event);
    if (!time_ns) return std::nullopt;
    return Moment{*time_ns, {}};
  }
  std::optional<LinkSpeeds> link() const override {
    if (forked()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (!link_measured_) {
      link_measured_ = true; // once, also where it fails
      const CudaContext::Scope scope(context());
      Result<LinkSpeeds> measured =
          measure_link(context(), parts_->in, parts_->out);
      if (measured.ok()) link_ = *measured;
    }
    return link_;
  }

  // ---- CUDA ----------------------------------------------------------------
  CudaRuntimeStats stats() const noexcept override {
    return {parts_->host->registeredBytes(), parts_->events->created()};
  }

 private:
  const CudaContext& context() const noexcept { return *parts_->context; }
  const CudaDriver& driver() const noexcept { return context().driver(); }

  // A lost GPU: the whole story was told when it was lost.
  Error ready(FaultPoint point) const {
    if (const std::string* const why = context().lost()) [[unlikely]] {
      return {ErrorCode::kDevice,
              "the GPU is lost to this process: " + *why +
                  " earlier; train on in a new process, from a checkpoint"};
    }
    return usable(point);
  }

  CUstream handleOf(Stream stream) const noexcept {
    if (stream == kCopyInStream) return parts_->in;
    if (stream == kCopyOutStream) return parts_->out;
    if (stream == kMoveStream) return parts_->moves;
    if (stream_of_ != nullptr) return stream_of_(ordinal_, stream.id);
    return reinterpret_cast<CUstream>(stream.id);
  }

  Result<Event> mark(Stream stream, bool timed) {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    const CudaContext::Scope scope(context());
    return parts_->events->record(handleOf(stream), timed);
  }

  std::unique_ptr<Parts> parts_;
  const int ordinal_;
  CUstream_st* (*const stream_of_)(int, std::uint64_t);
  mutable RankedMutex<LockRank::kRuntime> mutex_;
  // Guarded by mutex_.
  std::vector<std::byte*> addresses_; // reserved, never committed
  mutable bool link_measured_ = false;
  mutable std::optional<LinkSpeeds> link_;
};

} // namespace

Result<std::unique_ptr<CudaRuntime>> make_cuda_runtime(
    const CudaDriver& driver, int ordinal, const CudaRuntimeOptions& options) {
  auto parts = std::make_unique<Parts>();
  if (Error error = parts->open(driver, ordinal, options)) return error;
  return std::unique_ptr<CudaRuntime>(
      std::make_unique<Runtime>(std::move(parts), ordinal, options));
}

} // namespace chameleon::runtime
