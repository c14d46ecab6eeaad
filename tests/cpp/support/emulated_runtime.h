// The cuda runtime on an emulated driver, for tests of the layers above: the
// sources that ship, on a device that reports misuse. Two ways to have
// kernels:
//   - inline: the test computes on the calling thread between the pager's
//     begin() and end(), as on the cpu runtime. wait() and moves on a compute
//     stream then run that stream's queue, of which the host learns nothing,
//     and submitted() puts the kernel's operands on record;
//   - queued: kernels are copies or launch()es on compute streams and run when
//     the schedule says so.
// Events that nobody destroyed are a misuse as well.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "backend/runtime/cuda/cuda_runtime.h"
#include "tests/cpp/support/emulated_driver.h"
#include "tests/cpp/support/queued_runtime.h"

namespace chameleon::support {

struct EmulatedRuntimeOptions {
  EmulatedDriverOptions driver;
  bool inline_kernels = true;
  bool register_in_background = false;
  std::size_t commit_bytes = std::size_t{64} << 10;
  // Plants a mistake: replaces rows of the driver's table.
  std::function<void(runtime::CudaDriver&)> plant;
};

class EmulatedRuntime final : public QueuedRuntime {
 public:
  explicit EmulatedRuntime(EmulatedRuntimeOptions options);
  ~EmulatedRuntime() override;

  EmulatedDriver& driver() noexcept { return driver_; }
  runtime::CudaRuntime& cuda() noexcept { return *runtime_; }
  void launch(runtime::Stream stream, std::span<const runtime::ByteRange> reads,
              std::span<const runtime::ByteRange> writes,
              std::function<void()> body) {
    driver_.launch(0, stream.id, reads, writes, std::move(body));
  }

  // ---- QueuedRuntime -------------------------------------------------------
  using QueuedRuntime::run;
  void run(runtime::Stream stream, std::size_t count) override;
  void runAll() override { driver_.runAll(); }
  std::size_t hostWaits() const override {
    return driver_.calls(DriverCall::cuEventSynchronize) +
           driver_.calls(DriverCall::cuStreamSynchronize);
  }

  std::size_t committedBytes() const override { return committed_bytes_; }
  std::size_t hostBytes() const override { return host_bytes_; }

  // ---- DeviceRuntime -------------------------------------------------------
  std::string_view name() const noexcept override { return runtime_->name(); }
  runtime::MemoryInfo deviceMemory() const noexcept override {
    return runtime_->deviceMemory();
  }
  std::size_t commitGranularity() const noexcept override {
    return runtime_->commitGranularity();
  }
  runtime::Result<std::byte*> reserve(std::size_t bytes) override {
    return runtime_->reserve(bytes);
  }
  runtime::Error commit(std::byte* address, std::size_t bytes) override {
    runtime::Error error = runtime_->commit(address, bytes);
    if (!error) committed_bytes_ += bytes;
    return error;
  }
  runtime::Error decommit(std::byte* address, std::size_t bytes) override {
    runtime::Error error = runtime_->decommit(address, bytes);
    if (!error) committed_bytes_ -= bytes;
    return error;
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    runtime_->unreserve(address, bytes);
  }
  runtime::Result<std::byte*> reserveAddresses(std::size_t bytes) override {
    return runtime_->reserveAddresses(bytes);
  }
  runtime::MemoryInfo hostMemory() const noexcept override {
    return runtime_->hostMemory();
  }
  runtime::Error allocateHost(std::byte* address, std::size_t bytes) override {
    runtime::Error error = runtime_->allocateHost(address, bytes);
    if (!error) host_bytes_ += bytes;
    return error;
  }
  void freeHost(std::byte* address, std::size_t bytes) noexcept override {
    host_bytes_ -= bytes;
    runtime_->freeHost(address, bytes);
  }
  void pin(std::byte* address, std::size_t bytes) override {
    runtime_->pin(address, bytes);
  }
  void unpin(std::byte* address, std::size_t bytes) noexcept override {
    runtime_->unpin(address, bytes);
  }
  void awaitPinning() override { runtime_->awaitPinning(); }
  runtime::TransferGaps transferGaps() const noexcept override {
    return runtime_->transferGaps();
  }
  runtime::Error copy(runtime::Stream stream,
                      std::span<const runtime::Copy> copies) override;
  runtime::Result<runtime::Event> record(runtime::Stream stream) override;
  runtime::Result<runtime::Event> recordTimed(runtime::Stream stream) override;
  runtime::Error wait(runtime::Stream stream, runtime::Event event) override;
  bool query(runtime::Event event) noexcept override {
    return runtime_->query(event);
  }
  runtime::Error synchronize(runtime::Event event) override {
    return runtime_->synchronize(event);
  }
  void destroy(runtime::Event event) noexcept override;
  bool drain(runtime::Stream stream) noexcept override {
    return runtime_->drain(stream);
  }
  bool checksCallers() const noexcept override { return true; }
  void submitted(runtime::Stream stream,
                 std::span<const runtime::ByteRange> reads,
                 std::span<const runtime::ByteRange> writes) noexcept override;
  void discarded(runtime::ByteRange range) noexcept override {
    driver_.discard(range);
  }
  void revived(runtime::ByteRange range) noexcept override {
    driver_.revive(range);
  }
  std::int64_t now_ns() const noexcept override { return runtime_->now_ns(); }
  std::optional<runtime::Moment> momentOf(
      runtime::Event event) noexcept override {
    return runtime_->momentOf(event);
  }
  std::optional<std::int64_t> elapsed_ns(runtime::Event start,
                                         runtime::Event end) noexcept override {
    return runtime_->elapsed_ns(start, end);
  }

 private:
  bool runsInline(runtime::Stream stream) const noexcept;
  runtime::Result<runtime::Event> counted(
      runtime::Result<runtime::Event> event);

  const EmulatedRuntimeOptions options_;
  EmulatedDriver driver_;
  runtime::CudaDriver table_;
  std::unique_ptr<runtime::CudaRuntime> runtime_;
  std::atomic<std::int64_t> live_events_{0};
  std::atomic<std::size_t> committed_bytes_{0};
  std::atomic<std::size_t> host_bytes_{0};
};

} // namespace chameleon::support
