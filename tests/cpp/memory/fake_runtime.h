// A DeviceRuntime for tests of what sits right above the seam: address space
// is real (so an access through a logical address faults), copies and waits are
// tasks in one queue per stream that run only when the test or a synchronize()
// says so, every call can be made to fail, and misuse of the seam aborts.
//
// Not thread safe.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/check.h"
#include "tests/cpp/support/queued_runtime.h"
#include "tests/cpp/support/test_runtime.h"

namespace chameleon::memory {

class FakeRuntime final : public support::QueuedRuntime {
 public:
  using Error = runtime::Error;
  using Event = runtime::Event;
  using Stream = runtime::Stream;
  template <typename T>
  using Result = runtime::Result<T>;

  // Copy-in, copy-out, moves and six compute streams.
  static constexpr std::size_t kStreams = 9;
  static constexpr std::size_t kGranularity = std::size_t{64} << 10;

  // What fails next: the call counts down to zero, then fails once.
  enum Point { kReserve, kCommit, kDecommit, kHost, kCopy, kSync, kPoints };
  std::array<int, kPoints> fail_after{-1, -1, -1, -1, -1, -1};
  std::size_t reserve_limit = std::size_t{1} << 46; // more is refused
  std::size_t host_limit = std::size_t{1} << 46;
  std::function<void()> before_synchronize;         // called once, if it is set
  std::size_t machine_bytes = std::size_t{1} << 30; // as hostMemory() says
  bool checks = false;

  // What happened, exactly.
  std::size_t committed_bytes = 0;
  std::size_t commits = 0;
  std::size_t host_bytes = 0;
  std::size_t peak_host_bytes = 0;
  std::size_t synchronizes = 0;
  bool lost = false; // then a failed wait cannot be made up for
  std::size_t cancels = 0;
  std::size_t discards = 0;
  std::size_t revivals = 0;
  runtime::ByteRange last_discarded{};
  runtime::ByteRange last_revived{};

  ~FakeRuntime() override {
    CHAMELEON_CHECK(committed_.empty(), "memory was not decommitted");
    CHAMELEON_CHECK(reserved_.empty(), "a range was not unreserved");
    CHAMELEON_CHECK(host_.empty(), "host memory was not freed");
  }

  using QueuedRuntime::run;
  void run(Stream stream, std::size_t count) override {
    Queue& queue = queues_[indexOf(stream)];
    while (count-- > 0 && queue.done < queue.tasks.size()) {
      const Task task = queue.tasks[queue.done];
      if (task.copy.bytes > 0) {
        std::memmove(task.copy.destination, task.copy.source, task.copy.bytes);
      } else if (task.after.id != 0) {
        finish(task.after);
      }
      ++queue.done;
    }
  }
  std::size_t hostWaits() const override { return synchronizes; }
  std::size_t committedBytes() const override { return committed_bytes; }
  std::size_t hostBytes() const override { return host_bytes; }
  void runAll() override {
    for (std::size_t i = 0; i < kStreams; ++i) run(streamAt(i));
  }
  bool idle(Stream stream) const {
    const Queue& queue = queues_[indexOf(stream)];
    return queue.done == queue.tasks.size();
  }
  bool committed(const std::byte* address) const {
    const auto unit = reinterpret_cast<std::uintptr_t>(address) / kGranularity;
    return committed_.count(unit) != 0;
  }

  // ---- the seam --------------------------------------------------------
  std::string_view name() const noexcept override { return "fake"; }
  runtime::MemoryInfo deviceMemory() const noexcept override {
    return {std::size_t{1} << 30, std::size_t{1} << 30};
  }
  std::size_t commitGranularity() const noexcept override {
    return kGranularity;
  }
  Result<std::byte*> reserve(std::size_t bytes) override {
    if (fails(kReserve) || bytes > reserve_limit) return failure("reserve");
    void* address = ::mmap(nullptr, bytes + kGranularity, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return failure("mmap");
    const auto begin =
        (reinterpret_cast<std::uintptr_t>(address) + kGranularity - 1) /
        kGranularity * kGranularity;
    auto* base = reinterpret_cast<std::byte*>(begin);
    reserved_[base] = {address, bytes};
    return base;
  }
  Error commit(std::byte* address, std::size_t bytes) override {
    if (fails(kCommit)) return failure("commit");
    for (const std::uintptr_t unit : units(address, bytes)) {
      CHAMELEON_CHECK(committed_.emplace(unit, true).second, "committed twice");
    }
    ::mprotect(address, bytes, PROT_READ | PROT_WRITE);
    committed_bytes += bytes;
    ++commits;
    return {};
  }
  Error decommit(std::byte* address, std::size_t bytes) override {
    if (fails(kDecommit)) return failure("decommit");
    for (const std::uintptr_t unit : units(address, bytes)) {
      CHAMELEON_CHECK(committed_.erase(unit) == 1, "decommitted twice");
    }
    ::madvise(address, bytes, MADV_DONTNEED);
    ::mprotect(address, bytes, PROT_NONE);
    committed_bytes -= bytes;
    return {};
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    const auto found = reserved_.find(address);
    CHAMELEON_CHECK(found != reserved_.end() && found->second.bytes == bytes,
                    "not a reserved range");
    ::munmap(found->second.mapping, bytes + kGranularity);
    reserved_.erase(found);
  }

  runtime::MemoryInfo hostMemory() const noexcept override {
    return {machine_bytes, machine_bytes};
  }
  Error allocateHost(std::byte* address, std::size_t bytes) override {
    if (fails(kHost) || host_bytes + bytes > host_limit) {
      return failure("allocateHost");
    }
    const auto above = host_.lower_bound(address);
    CHAMELEON_CHECK(
        (above == host_.end() || address + bytes <= above->first) &&
            (above == host_.begin() ||
             std::prev(above)->first + std::prev(above)->second <= address),
        "host slabs overlap");
    if (Error error = runtime::open_address_space(address, bytes)) return error;
    host_[address] = bytes;
    host_bytes += bytes;
    peak_host_bytes = std::max(peak_host_bytes, host_bytes);
    return {};
  }
  void freeHost(std::byte* address, std::size_t bytes) noexcept override {
    const auto found = std::prev(host_.upper_bound(address));
    CHAMELEON_CHECK(found->first + found->second == address + bytes,
                    "neither a host slab nor its upper part");
    found->second -= bytes;
    if (found->second == 0) host_.erase(found);
    host_bytes -= bytes;
    runtime::close_address_space(address, bytes);
  }

  Stream copyInStream() const noexcept override { return streamAt(0); }
  Stream copyOutStream() const noexcept override { return streamAt(1); }
  Stream moveStream() const noexcept override { return streamAt(2); }
  static Stream compute(std::size_t number) { return streamAt(3 + number); }
  Error copy(Stream stream, std::span<const runtime::Copy> copies) override {
    if (fails(kCopy)) return failure("copy");
    for (const runtime::Copy& copy : copies) {
      queues_[indexOf(stream)].tasks.push_back({copy, {}});
    }
    return {};
  }
  bool cancel(Stream stream, const std::byte* destination) noexcept override {
    Queue& queue = queues_[indexOf(stream)];
    for (std::size_t i = queue.tasks.size(); i-- > queue.done;) {
      if (queue.tasks[i].copy.destination != destination) continue;
      queue.tasks[i].copy = {};
      ++cancels;
      return true;
    }
    return false;
  }
  Result<Event> record(Stream stream) override {
    if (idle(stream)) return Event{};
    const std::size_t index = indexOf(stream);
    const std::uint64_t count = queues_[index].tasks.size();
    return Event{count * kStreams + index};
  }
  Error wait(Stream stream, Event event) override {
    if (!query(event)) queues_[indexOf(stream)].tasks.push_back({{}, event});
    return {};
  }
  bool query(Event event) noexcept override {
    return queues_[event.id % kStreams].done >= event.id / kStreams;
  }
  Error synchronize(Event event) override {
    if (before_synchronize) std::exchange(before_synchronize, nullptr)();
    if (fails(kSync)) return failure("synchronize");
    ++synchronizes;
    finish(event);
    return {};
  }
  void destroy(Event /*event*/) noexcept override {}
  bool drain(Stream stream) noexcept override {
    if (lost) return false;
    finish(record(stream).value());
    return true;
  }

  bool checksCallers() const noexcept override { return checks; }
  void discarded(runtime::ByteRange range) noexcept override {
    ++discards;
    last_discarded = range;
  }
  void revived(runtime::ByteRange range) noexcept override {
    ++revivals;
    last_revived = range;
  }
  std::int64_t now_ns() const noexcept override { return 0; }

 private:
  struct Task { // a copy, or a wait for an event
    runtime::Copy copy;
    Event after;
  };
  struct Queue {
    std::vector<Task> tasks;
    std::size_t done = 0;
  };
  struct Range {
    void* mapping;
    std::size_t bytes;
  };

  // The default compute stream is number 0, so the copy streams come last.
  static Stream streamAt(std::size_t index) {
    return {(index + kStreams - 2) % kStreams};
  }
  static std::size_t indexOf(Stream stream) {
    CHAMELEON_CHECK(stream.id < kStreams, "an unknown stream");
    return (stream.id + 2) % kStreams;
  }
  static std::vector<std::uintptr_t> units(const std::byte* address,
                                           std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    CHAMELEON_CHECK(
        begin % kGranularity == 0 && bytes % kGranularity == 0 && bytes > 0,
        "not a multiple of the granularity");
    std::vector<std::uintptr_t> result;
    for (std::size_t i = 0; i < bytes / kGranularity; ++i) {
      result.push_back(begin / kGranularity + i);
    }
    return result;
  }
  static Error failure(const char* what) {
    return Error(runtime::ErrorCode::kDevice,
                 std::string("injected failure of ") + what);
  }
  bool fails(Point point) {
    int& left = fail_after[point];
    return left >= 0 && left-- == 0;
  }
  void finish(Event event) {
    const Stream stream = streamAt(event.id % kStreams);
    while (!query(event)) run(stream, 1);
  }

  std::map<std::uintptr_t, bool> committed_;
  std::map<const std::byte*, Range> reserved_;
  std::map<const std::byte*, std::size_t> host_;
  std::array<Queue, kStreams> queues_;
};

// The queues that a test of hazards runs: the fake's, or the cuda runtime's.
inline std::unique_ptr<support::QueuedRuntime> make_queues() {
  if (support::tests_run_on_cuda()) return support::make_queued_runtime();
  return std::make_unique<FakeRuntime>();
}

} // namespace chameleon::memory
