// The seam between everything above and a physical device: address space,
// memory, host memory, streams, events, a clock. CUDA's model fits it as it
// is (VMM for the range, cudaStream_t, cudaEvent_t); cpu_runtime implements
// it on host memory, simulated_runtime without data.
//
// It is asynchronous everywhere: copy() only submits, wait() makes a *stream*
// wait. The host waits in synchronize() and drain() alone, and in wait() on a
// runtime whose compute streams run on the calling thread (cpu). No caller may
// hold a lock that a copy engine needs: engines take none but their own.
//
// Thread safety: every method may be called from any thread, with or without
// the GIL. Errors are values; nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

// A queue of work that runs in order. Compute streams come from the user's
// framework (id = its portable stream id, 0 is the default stream); the two
// copy streams and the move stream belong to the runtime.
struct Stream {
  std::uint64_t id = 0;
  bool operator==(const Stream&) const = default;
};
inline constexpr Stream kDefaultComputeStream{0};
// The runtime's own. Ids of compute streams are small, or pointers.
inline constexpr Stream kCopyInStream{~std::uint64_t{0}};
inline constexpr Stream kCopyOutStream{~std::uint64_t{1}};
inline constexpr Stream kMoveStream{~std::uint64_t{2}};

// A point on a stream. 0 is "already complete" and is never destroyed.
struct Event {
  std::uint64_t id = 0;
  bool complete() const noexcept { return id == 0; }
};

struct Copy {
  std::byte* destination;
  const std::byte* source;
  std::size_t bytes;
};

struct ByteRange {
  const std::byte* begin;
  std::size_t bytes;
};

struct MemoryInfo {
  std::size_t free_bytes;
  std::size_t total_bytes;
};

// How a matrix product is calculated.
enum class MathType : std::uint8_t { kFp64, kFp32, kTf32, kFp16, kBf16 };
inline constexpr std::size_t kMathTypes = 5;

// The work of one kernel, for runtimes that model time.
struct OpCost {
  double flops = 0; // of matrix products, multiplications and additions
  MathType math = MathType::kFp32;
  double bytes = 0; // read and written, device memory
};

// What several GPUs do together: a collective, or a send or receive.
enum class ExchangePattern : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend, // or receive
};
struct Exchange {
  ExchangePattern pattern = ExchangePattern::kAllReduce;
  // As nccl-tests counts them: of the tensor that is whole somewhere, so that
  // of a gather is all that comes together, on one rank.
  double bytes = 0;
  int ranks = 1;    // that take part
  int machines = 1; // on which they are, alike; 1 <= machines <= ranks
};

// What the compute streams did so far, all of them together.
struct ComputeTimes {
  std::int64_t busy_ns = 0;    // kernels ran
  std::int64_t stalled_ns = 0; // a stream waited for copies or moves, or ran
                               // slower beside moves
};

// What kept copies over the link from being as fast as they can be, since the
// runtime was made.
struct TransferGaps {
  std::uint64_t pinning_refusals = 0; // slabs that were not pinned whole
  std::uint64_t pageable_bytes = 0;   // copied from or to what is not pinned
  std::uint64_t batch_refusals = 0;   // batches that went as single copies
};

// What the clock and the compute streams showed at one moment.
struct Moment {
  std::int64_t time_ns = 0; // on the clock of now_ns()
  ComputeTimes compute;
};

// The link between device and host memory: what copies reach each way alone,
// and both ways together.
struct LinkSpeeds {
  double in_bytes_per_s = 0;
  double out_bytes_per_s = 0;
  double both_bytes_per_s = 0;
  std::int64_t copy_latency_ns = 0;
};

class DeviceRuntime {
 public:
  DeviceRuntime() = default;
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;
  virtual ~DeviceRuntime() = default;

  virtual std::string_view name() const noexcept = 0; // "cpu", "cuda", ...

  // ---- device memory -------------------------------------------------
  // What a default budget may be derived from.
  virtual MemoryInfo deviceMemory() const noexcept = 0;
  // Unit in which commit and decommit take place, bytes, a power of two.
  virtual std::size_t commitGranularity() const noexcept = 0;
  // Reserves address space of `bytes`; no byte of it is accessible.
  virtual Result<std::byte*> reserve(std::size_t bytes) = 0;
  // Makes [address, address + bytes) usable / gives its memory back.
  // REQUIRES: multiples of commitGranularity() inside one reservation.
  // decommit REQUIRES that no submitted work still uses the range.
  virtual Error commit(std::byte* address, std::size_t bytes) = 0;
  virtual Error decommit(std::byte* address, std::size_t bytes) = 0;
  virtual void unreserve(std::byte* address, std::size_t bytes) noexcept = 0;
  // Reserves address space that is never committed: numbers that nothing may
  // read or write, but for the slabs that allocateHost() puts there. Aligned to
  // pages. unreserve() takes it back. REQUIRES of that: the slabs are gone.
  virtual Result<std::byte*> reserveAddresses(std::size_t bytes) {
    return reserve(bytes);
  }

  // ---- host memory ---------------------------------------------------
  // What the machine (or its cgroup) can give, bytes.
  virtual MemoryInfo hostMemory() const noexcept = 0;
  // Puts a slab there, memory that copies can read and write asynchronously.
  // Copies may lie in several slabs. REQUIRES: whole pages of a range of
  // reserveAddresses(), none of them in a slab.
  virtual Error allocateHost(std::byte* address, std::size_t bytes) = 0;
  // A slab, or its upper part from a page on, goes; its addresses are reserved
  // as before. REQUIRES: no submitted work still uses the slab, be it the part
  // that stays.
  virtual void freeHost(std::byte* address, std::size_t bytes) noexcept = 0;
  // Memory that is not ours: copies to and from it become asynchronous, from
  // some time on. A hint. / It is as it was before. REQUIRES: whole pages that
  // stay mapped until then; the same ones; and that no submitted work uses
  // them.
  virtual void pin(std::byte* /*address*/, std::size_t /*bytes*/) {}
  virtual void unpin(std::byte* /*address*/, std::size_t /*bytes*/) noexcept {}
  // The host waits until every slab has been pinned, or was refused: for who
  // measures copies. Slabs are usable before.
  virtual void awaitPinning() {}
  // All zero where memory need not be pinned and batches are always taken.
  virtual TransferGaps transferGaps() const noexcept { return {}; }

  // ---- streams and events --------------------------------------------
  virtual Stream copyInStream() const noexcept { return kCopyInStream; }
  virtual Stream copyOutStream() const noexcept { return kCopyOutStream; }
  // For moves inside the device: they run beside kernels, and while these wait
  // for copies.
  virtual Stream moveStream() const noexcept { return kMoveStream; }
  // Submits copies to `stream`. On the move stream, and on a compute stream
  // (copies inside the device), they run in order, and the two ranges of one
  // Copy may overlap (memmove semantics). On a copy stream those of one call
  // may run in any order: none may use bytes that another one writes. They are
  // one batch, which costs the link's latency once where the device can do
  // that.
  virtual Error copy(Stream stream, std::span<const Copy> copies) = 0;
  // Submits a copy from the device to ordinary host memory to a compute stream,
  // where it waits for no other copy: for what is so small that its latency is
  // all it costs. May block the host until the stream gets there.
  virtual Error readBack(Stream stream, const Copy& copy) {
    return this->copy(stream, {&copy, 1});
  }
  // Takes the last copy to `destination` on a copy stream back if it has not
  // begun: its bytes do not move. What runs after it still does. False: it is
  // too late, or the device cannot do that.
  virtual bool cancel(Stream /*stream*/,
                      const std::byte* /*destination*/) noexcept {
    return false;
  }
  // Marks everything submitted to `stream` so far. May return the complete
  // event when all of it has run. The caller destroys it.
  virtual Result<Event> record(Stream stream) = 0;
  // Later work on `stream` starts after `event`, which may be destroyed as
  // soon as this returns.
  virtual Error wait(Stream stream, Event event) = 0;
  virtual bool query(Event event) noexcept = 0; // true: complete
  virtual Error synchronize(Event event) = 0;   // host wait
  virtual void destroy(Event event) noexcept = 0;
  // The host waits until nothing of what was submitted to `stream` so far will
  // touch memory any more, by other means than events: for who must not go on
  // where a wait failed. True: all of it has run. False: the device is lost, or
  // is another process's; nothing runs there.
  virtual bool drain(Stream stream) noexcept = 0;

  // ---- for runtimes that check their callers ---------------------------
  // True: the three calls below want to be made. Constant.
  virtual bool checksCallers() const noexcept { return false; }
  // A kernel was submitted to compute stream `stream` (on cpu: has run) and
  // uses these ranges until the stream has passed it.
  virtual void submitted(Stream /*stream*/,
                         std::span<const ByteRange> /*reads*/,
                         std::span<const ByteRange> /*writes*/) noexcept {}
  // The bytes in the range hold no value any more: freed, or evicted. Work
  // submitted before may still use them.
  virtual void discarded(ByteRange /*range*/) noexcept {}
  // The bytes are about to be written: memory that was just allocated, and
  // the operands that a kernel writes, before it runs.
  virtual void revived(ByteRange /*range*/) noexcept {}

  // ---- runtimes without data -------------------------------------------
  // False: addresses are numbers only; nothing may be read or written there,
  // by the host neither. Copies take time and move nothing. Constant.
  virtual bool holdsData() const noexcept { return true; }

  // ---- clock -----------------------------------------------------------
  // True: the clock is a model's, which computed() drives, and what the host
  // does takes no time. Constant.
  virtual bool modelsTime() const noexcept { return false; }
  virtual std::int64_t now_ns() const noexcept = 0;
  // From the completion of one event to that of another, on the device's own
  // clock; synchronizes with neither. Both from recordTimed(). Nothing: not
  // both have passed, or the device has no clock of its own.
  virtual std::optional<std::int64_t> elapsed_ns(Event /*start*/,
                                                 Event /*end*/) noexcept {
    return std::nullopt;
  }
  // A kernel of this cost was submitted to compute stream `stream`. Means
  // something only where time is modelled.
  virtual Error computed(Stream /*stream*/, const OpCost& /*cost*/) {
    return {};
  }
  // All zero where the runtime does not know.
  virtual ComputeTimes computeTimes() const noexcept { return {}; }

  // ---- measuring ---------------------------------------------------------
  // As record(), for an event that momentOf() will be asked about. It completes
  // between what was submitted before it and what comes after, even where
  // record() would have returned an event that is complete. A complete event
  // all the same: work on this stream runs while it is submitted, and the
  // moment is now.
  virtual Result<Event> recordTimed(Stream stream) { return record(stream); }
  // When the event completed. Nothing: it has not, or that was not kept.
  virtual std::optional<Moment> momentOf(Event /*event*/) noexcept {
    return std::nullopt;
  }
  // The link as the runtime knows it, exactly, or as the first call measured
  // it (tens of milliseconds: not for the step path). Nothing: it must be
  // measured by what is copied.
  virtual std::optional<LinkSpeeds> link() const { return std::nullopt; }

  // ---- several GPUs --------------------------------------------------------
  // An exchange was submitted to `stream`, which from then on is one of
  // exchanges. Means something only where time is modelled.
  virtual Error exchanged(Stream /*stream*/, const Exchange& /*exchange*/) {
    return {};
  }
};

} // namespace chameleon::runtime
