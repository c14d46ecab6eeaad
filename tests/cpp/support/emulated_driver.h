// A CUDA driver without a GPU: the calls of CudaDriver on host memory, with
// real asynchrony. Streams are queues; what lies in them runs late, in any
// order that the waits between them allow, chosen by a seed. It reports
//   - work that touches unmapped, freed or discarded memory;
//   - two accesses that no wait orders (stream_clocks.h): a missing wait, or
//     memory that was reused or given back too early;
//   - a device that uses another one's memory without access to it;
//   - host memory that is registered before its pages are there, if asked to;
//   - handles that are wrong, destroyed, or of another device, calls without
//     a current context, copies within a batch that depend on each other;
//   - what was never given back, when it is destroyed.
// Any call can be made to fail. The test is told by `on_misuse`.
//
// Two at a time in a process, since its table holds plain functions. They may
// be called from any thread, and so may every method here; all of it runs
// under one lock, `on_misuse` and kernels too, which therefore may not call
// back.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/runtime/cpu/range_set.h"
#include "backend/runtime/cuda/cuda_driver.h"
#include "backend/runtime/device_runtime.h"
#include "tests/cpp/support/emulated_memory.h"
#include "tests/cpp/support/stream_clocks.h"

namespace chameleon::support {

enum class Lateness {
  kPrompt, // work runs when it is submitted
  kRandom, // a little of it after each call, from any queue
  kLate,   // when somebody waits for it, and now and then when asked for
};

struct EmulatedDriverOptions {
  std::uint64_t seed = 1;
  Lateness lateness = Lateness::kRandom;
  int devices = 1;
  std::size_t device_bytes = std::size_t{1} << 30; // of each
  std::size_t granularity = std::size_t{64} << 10;
  std::size_t register_limit = ~std::size_t{0}; // more is refused
  // How long registering takes, under the driver's lock: for tests of races.
  std::chrono::microseconds register_time_per_mebibyte{0};
  // Registering what has pages that are not there yet is reported: a true
  // driver would make them under its lock.
  bool registers_populated_only = false;
  int host_numa_node = 0;     // that lies next to every device; -1: none does
  bool maps_memory = true;    // virtual memory management
  bool copies_batches = true; // cuMemcpyBatchAsync is there
  // One sentence each; empty: print and abort.
  std::function<void(const std::string&)> on_misuse;
};

// The calls by number.
enum class DriverCall : std::size_t {
#define CHAMELEON_NAME(name, version) name,
  CHAMELEON_CUDA_CALLS(CHAMELEON_NAME)
      CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_NAME) kCount
#undef CHAMELEON_NAME
};

class EmulatedDriver {
 public:
  explicit EmulatedDriver(EmulatedDriverOptions options = {});
  // Runs what is left, then reports what was never given back.
  ~EmulatedDriver();
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

  static constexpr int kSlots = 2;
  static EmulatedDriver& at(int slot); // the one whose table this is
  runtime::CudaDriver table() const;

  // The nth call from now on (1 is the next) fails; for ever: all later ones
  // as well. Only cu..Destroy and the like are better left alone. Of a batch of
  // copies that fails some are under way, unless the driver has no batches
  // (CUDA_ERROR_NOT_SUPPORTED).
  void failCall(DriverCall call, std::uint64_t nth, CUresult result,
                bool for_ever = false);
  // From now on every call that uses a context reports this, as after a kernel
  // that read what is not there; CUDA_SUCCESS: none, which no true GPU does.
  // What is in the queues or comes there has no effect any more.
  void loseContext(CUresult result);
  std::uint64_t calls(DriverCall call) const;
  std::uint64_t misuses() const;
  std::vector<std::string> leaks() const;
  void report(const std::string& sentence); // one more misuse
  std::size_t usedBytes(int device) const;
  std::size_t pinnedBytes() const;

  // ---- what the framework does ----------------------------------------
  // Its stream `id` of a device; 0 is the default stream.
  CUstream stream(int device, std::uint64_t id);
  // The same as a function, for CudaRuntimeOptions::stream_of.
  CUstream (*streamOf() const)(int device, std::uint64_t id);
  // A kernel that uses these ranges; `body` runs when the stream gets there.
  void launch(int device, std::uint64_t stream,
              std::span<const runtime::ByteRange> reads,
              std::span<const runtime::ByteRange> writes,
              std::function<void()> body);
  // The same on a stream that was created through the driver, or null.
  void launchOn(int device, CUstream stream,
                std::span<const runtime::ByteRange> reads,
                std::span<const runtime::ByteRange> writes,
                std::function<void()> body);
  // A copy between two devices, whatever access they have (cuMemcpyPeerAsync).
  CUresult copyBetween(CUstream stream, const runtime::Copy& copy);
  // Device `from` may use plain allocations of `to` (cuCtxEnablePeerAccess).
  void enablePeers(int from, int to);
  // Some thread captures a CUDA graph, in the global mode, or does no longer.
  void capture(bool on);
  // The bytes hold no value from now on / again: using them is a misuse.
  void discard(runtime::ByteRange range);
  void revive(runtime::ByteRange range);

  // ---- the schedule ------------------------------------------------------
  // Runs up to `count` entries of a stream, and what they wait for. The host
  // learns nothing from it: it has not waited.
  void run(int device, CUstream stream, std::uint64_t count);
  // The same of the n-th stream that was created through the driver.
  void runOwn(std::size_t number, std::uint64_t count);
  void runAll();
  bool idle(int device, CUstream stream) const;

 private:
  friend struct DriverCalls; // what the table's functions do
  template <int, DriverCall, auto>
  friend struct DriverEntry;
  template <int kSlot>
  runtime::CudaDriver tableOf() const;

  struct Task {
    std::vector<runtime::Copy> copies;
    WorkPoint after;             // not before this
    CUevent waits_for = nullptr; // the event that stands for it
    CUevent marks = nullptr;     // takes the time for this event
    std::function<void()> body;
    std::vector<runtime::Interval> uses; // by the body
  };
  struct Line { // a queue; a stream's, or number 0, the host's
    int device = 0;
    std::deque<Task> queue;
    std::uint64_t submitted = 0;
    std::uint64_t done = 0;
    LineClock clock;
    double time_ns = 0; // of a modelled device, when its last entry ended
  };
  struct RecordedEvent {
    int device = 0;
    bool timed = false;
    WorkPoint point; // none: never recorded
    LineClock clock;
    double time_ns = 0;
    unsigned questions = 0; // since the record
  };
  struct Device {
    CUcontext context = nullptr;
    int retained = 0;
    std::size_t default_line = 0;
    std::uint32_t peers = 0; // whose plain allocations it may use, by bit
  };
  struct Fault {
    std::uint64_t calls = 0;
    std::uint64_t nth = 0; // 0: none
    CUresult result = CUDA_SUCCESS;
    bool for_ever = false;
  };

  // All REQUIRE mutex_.
  CUresult enter(DriverCall call);
  void progress();
  void misuse(const std::string& sentence);
  Device* currentDevice();
  // kNoLine: reported.
  std::size_t lineOf(CUstream stream);
  RecordedEvent* eventOf(CUevent event);
  std::size_t addLine(int device);
  WorkPoint submit(std::size_t line, Task task);
  void touch(WorkPoint point, runtime::Interval bytes, bool writes);
  bool mayUse(int device, runtime::Interval bytes) const;
  CUresult copy(std::size_t line, std::vector<runtime::Copy> copies);
  bool takes(std::size_t line, const runtime::Copy& copy, bool& pageable);
  void submitCopies(std::size_t line, std::vector<runtime::Copy> copies,
                    bool pageable);
  bool runHead(std::size_t line); // false: it waits, or there is none
  void runOne(std::size_t line);  // and what it waits for
  void runUntil(WorkPoint point);
  bool runAny();
  bool passed(WorkPoint point) const {
    return lines_[point.line].done >= point.count;
  }
  void execute(Line& line, Task& task);
  void gone(runtime::Interval bytes, const char* call);
  void runEverything();

  static constexpr std::size_t kNoLine = ~std::size_t{0};

  const EmulatedDriverOptions options_;
  int slot_ = 0;
  mutable std::mutex mutex_;
  // Everything below is guarded by mutex_.
  std::mt19937_64 random_;
  EmulatedMemory memory_;
  std::vector<Line> lines_; // [kHostLine]: its clock is what the host knows
  std::vector<Device> devices_;
  std::map<CUstream, std::size_t> streams_;
  std::vector<std::size_t> own_lines_; // of the streams created, in order
  std::map<std::pair<int, std::uint64_t>, CUstream> framework_streams_;
  std::map<CUevent, RecordedEvent> events_;
  AccessMap accesses_;
  runtime::RangeSet discarded_;
  std::array<Fault, static_cast<std::size_t>(DriverCall::kCount)> faults_;
  CUresult lost_ = CUDA_SUCCESS;
  bool dead_ = false;
  bool capturing_ = false;
  std::uint64_t misuses_ = 0;
};

} // namespace chameleon::support
