#include "backend/runtime/cpu/cpu_runtime.h"

#include <chrono>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"
#include "backend/runtime/cpu/call_checker.h"
#include "backend/runtime/cpu/copy_engines.h"
#include "backend/runtime/cpu/line_position.h"
#include "backend/runtime/machine_memory.h"
#include "backend/runtime/use_guard.h"

namespace chameleon::runtime {

namespace {

LineIndex copy_line(Stream stream) {
  if (stream == kCopyInStream) return kCopyInLine;
  if (stream == kCopyOutStream) return kCopyOutLine;
  return kNoLine;
}

bool is_commit_range(const std::byte* address, std::size_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(address) | bytes) %
             kCpuCommitBytes ==
         0;
}

class CpuRuntime final : public DeviceRuntime, private UseGuard {
 public:
  explicit CpuRuntime(const CpuRuntimeOptions& options)
      : checker_(options.adversary.active()
                     ? std::make_unique<CallChecker>(options.adversary,
                                                     options.on_misuse)
                     : nullptr),
        engines_(options.adversary.copies, options.adversary.seed,
                 checker_.get()) {}

  std::string_view name() const noexcept override { return "cpu"; }

  // ---- device memory -----------------------------------------------------
  MemoryInfo deviceMemory() const noexcept override { return machine_memory(); }
  std::size_t commitGranularity() const noexcept override {
    return kCpuCommitBytes;
  }

  Result<std::byte*> reserve(std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kReserve)) return error;
    return reserve_address_space(bytes, kCpuCommitBytes);
  }

  Error commit(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kCommit)) return error;
    CHAMELEON_CHECK(is_commit_range(address, bytes), "a commit is unaligned");
    if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) {
      return system_error(ErrorCode::kOutOfDeviceMemory, "commit", bytes);
    }
    if (checker_) checker_->committed({address, bytes});
    return {};
  }

  Error decommit(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kCommit)) return error;
    CHAMELEON_CHECK(is_commit_range(address, bytes), "a decommit is unaligned");
    if (checker_) checker_->released({address, bytes}, "decommit");
    // Dropped while accessible still: of no access there is nothing to drop.
    if (madvise(address, bytes, MADV_DONTNEED) != 0 ||
        mprotect(address, bytes, PROT_NONE) != 0) {
      return system_error(ErrorCode::kDevice, "decommit", bytes);
    }
    return {};
  }

  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    if (checker_ && !forked()) {
      checker_->released({address, bytes}, "unreserve");
    }
    unmap_memory(address, bytes);
  }

  // ---- host memory -------------------------------------------------------
  MemoryInfo hostMemory() const noexcept override { return machine_memory(); }

  Error allocateHost(std::byte* address, std::size_t bytes) override {
    if (Error error = ready(FaultPoint::kAllocateHost)) return error;
    CHAMELEON_CHECK(is_in_pages(address, bytes), "a host slab has whole pages");
    return open_address_space(address, bytes);
  }

  void freeHost(std::byte* address, std::size_t bytes) noexcept override {
    if (checker_ && !forked()) checker_->released({address, bytes}, "freeHost");
    close_address_space(address, bytes);
  }

  // ---- streams and events ------------------------------------------------
  Error copy(Stream stream, std::span<const Copy> copies) override {
    if (Error error = ready(FaultPoint::kCopy)) return error;
    const LineIndex line = copy_line(stream);
    if (line != kNoLine) return engines_.submit(line, copies);
    if (checker_) checker_->aboutToCopy(copies);
    for (const Copy& c : copies) {
      std::memmove(c.destination, c.source, c.bytes);
    }
    if (checker_) inlineCopiesDone(stream, copies);
    return {};
  }

  bool cancel(Stream stream, const std::byte* destination) noexcept override {
    const LineIndex line = copy_line(stream);
    return line != kNoLine && !forked() && engines_.cancel(line, destination);
  }

  Result<Event> record(Stream stream) override {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    const LineIndex line = copy_line(stream);
    if (line == kNoLine && !checker_) return Event{};
    const Event event =
        (line != kNoLine ? engines_.last(line) : checker_->last(stream))
            .event();
    if (checker_) checker_->eventCreated(event);
    return event;
  }

  Error wait(Stream stream, Event event) override {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    if (checker_) checker_->eventUsed(event, "wait");
    const LinePosition position = LinePosition::of(event);
    if (passed(position)) return {};
    const LineIndex line = copy_line(stream);
    if (line == position.line) return {};
    if (line != kNoLine) return engines_.submitWait(line, position);
    await(position); // compute runs on this thread
    return engines_.failure();
  }

  bool query(Event event) noexcept override {
    if (event.complete()) return true;
    if (forked()) return false;
    if (checker_) checker_->eventUsed(event, "query");
    return passed(LinePosition::of(event));
  }

  Error synchronize(Event event) override {
    if (Error error = ready(FaultPoint::kEvent)) return error;
    if (checker_) checker_->eventUsed(event, "synchronize");
    await(LinePosition::of(event));
    return engines_.failure();
  }

  void destroy(Event event) noexcept override {
    if (checker_ && !forked()) checker_->eventDestroyed(event);
  }

  bool drain(Stream stream) noexcept override {
    if (forked()) return false;
    const LineIndex line = copy_line(stream);
    if (line != kNoLine) {
      await(engines_.last(line));
    } else if (checker_) {
      await(checker_->last(stream));
    }
    return !engines_.lost();
  }

  // ---- checks ------------------------------------------------------------
  bool checksCallers() const noexcept override { return checker_ != nullptr; }
  void submitted(Stream stream, std::span<const ByteRange> reads,
                 std::span<const ByteRange> writes) noexcept override {
    if (checker_ && !forked()) checker_->submitted(stream, reads, writes);
  }
  void discarded(ByteRange range) noexcept override {
    if (checker_ && !forked()) checker_->discarded(range);
  }
  void revived(ByteRange range) noexcept override {
    if (checker_ && !forked()) checker_->revived(range);
  }

  // ---- clock -------------------------------------------------------------
  std::int64_t now_ns() const noexcept override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  Result<Event> recordTimed(Stream stream) override {
    const LineIndex line = copy_line(stream);
    if (line == kNoLine) return record(stream);
    if (Error error = ready(FaultPoint::kEvent)) return error;
    LinePosition mark;
    if (Error error = engines_.submitMark(line, mark)) return error;
    if (checker_) checker_->eventCreated(mark.event());
    return mark.event();
  }

  std::optional<Moment> momentOf(Event event) noexcept override {
    const LinePosition position = LinePosition::of(event);
    if (!position.onCopyEngine() || forked()) return std::nullopt;
    const std::optional<std::int64_t> time_ns = engines_.timeOf(position);
    if (!time_ns) return std::nullopt;
    return Moment{*time_ns, {}};
  }

 private:
  Error ready(FaultPoint point) const {
    if (engines_.lost()) [[unlikely]]
      return engines_.failure();
    return usable(point);
  }

  bool passed(LinePosition position) {
    if (position.none()) return true;
    return position.onCopyEngine() ? engines_.passed(position)
                                   : checker_->computePassed(position);
  }

  void await(LinePosition position) {
    if (position.none()) return;
    if (position.onCopyEngine()) {
      engines_.await(position);
    } else {
      checker_->awaitCompute(position);
    }
  }

  void inlineCopiesDone(Stream stream, std::span<const Copy> copies) {
    std::vector<ByteRange> reads;
    std::vector<ByteRange> writes;
    for (const Copy& c : copies) {
      reads.push_back({c.source, c.bytes});
      writes.push_back({c.destination, c.bytes});
    }
    checker_->submitted(stream, reads, writes);
  }

  const std::unique_ptr<CallChecker> checker_;
  CopyEngines engines_; // destroyed first: it drains into the checker
};

} // namespace

std::unique_ptr<DeviceRuntime> make_cpu_runtime(
    const CpuRuntimeOptions& options) {
  return std::make_unique<CpuRuntime>(options);
}

} // namespace chameleon::runtime
