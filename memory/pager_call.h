// One op call, as the pager sees it.
//
// Thread safety: each type says it. What says nothing is of plain values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <memory>
#include <string_view>

#include "memory/block.h"
#include "memory/inline_list.h"
#include "memory/space/first_fit.h"
#include "memory/space/reserved_hole.h"
#include "memory/streams/op_timer.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

enum class Access : std::uint8_t {
  kRead = 1,
  kWrite = 2, // the op writes; the old value may be read too
  // The op writes every byte of the block and reads none of them. What is not
  // in HBM is not fetched. See Call::overwritten().
  kOverwrite = 3,
};
constexpr bool writes(Access access) noexcept {
  return access != Access::kRead;
}

struct Operand {
  Block* block;
  Access access;
};

// What is learned about one kind of op (the kernels layer owns one per op):
// how many bytes it needs inside its kernel, and how large its operands are, at
// most.
struct OpMemory {
  std::atomic<std::size_t> peak_bytes{0};
  std::atomic<std::size_t> operand_bytes{0};
  std::atomic<bool> known{false};

  // The peak, where the op ended well with operands of that size and none were
  // larger. 0: not known, for other sizes have peaks of their own.
  std::size_t peakAt(std::size_t size_bytes) const noexcept {
    const bool is_of_it =
        known.load(std::memory_order_acquire) &&
        operand_bytes.load(std::memory_order_relaxed) == size_bytes;
    return is_of_it ? peak_bytes.load(std::memory_order_relaxed) : 0;
  }
};

// What is the same for all calls of an op; the kernels layer has one per op.
struct OpKind {
  std::string_view name;      // for messages; must live until end()
  OpMemory* memory = nullptr; // null: nothing is learned
  // The op writes nothing, so that a failed in-call allocation may be answered
  // by end() and another begin() (Call::worthRetrying()).
  bool may_retry = false;
  // With other GPUs: it runs on a stream of its own, beside compute.
  bool is_exchange = false;
};

// A figure that one thread at a time writes and any thread may read.
class Figure {
 public:
  operator std::size_t() const noexcept { // NOLINT: implicit by design
    return value_.load(std::memory_order_relaxed);
  }
  Figure& operator=(std::size_t value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  Figure& operator+=(std::size_t by) noexcept { return *this = *this + by; }
  Figure& operator-=(std::size_t by) noexcept { return *this = *this - by; }

 private:
  std::atomic<std::size_t> value_{0};
};

// What the pager keeps of a call in flight. Private to memory/: to everybody
// else a call is a Call.
//
// Thread safety: the call's own thread alone uses it, but for what says that
// the pager's lock guards it: other threads may free what the call allocated.
struct CallState {
  // A host copy that is kept until the op has overwritten its block.
  struct OldBytes {
    Block* block;
    HostPlace host;
    std::size_t keep_from; // bytes of the block that were overwritten
  };
  static constexpr std::size_t kInline = 8;
  // Of a call that must not fail: the room that is reserved for its kernel.
  struct Hole {
    profiler::QuickToken quick = 0; // by op and sizes: what it needs is learned
    FirstFit layout; // of all that it allocates, wherever that lies
    // Made when it first allocates, since it is exclusive; 0: no hole is due.
    std::size_t due_bytes = 0;
    ReservedHole reserved; // guarded by the pager's lock
  };
  // In-call memory that is a spare block's, one pin each.
  struct Spares {
    InlineList<Block*, kInline> blocks;
    std::size_t bytes = 0;
    // How many more the call may take: a kernel that must not fail needs its
    // room in one piece.
    std::size_t left = 0;
  };
  // Live in-call allocations that are no spare blocks. Guarded by the pager's
  // lock once there are any.
  struct InCall {
    InlineList<Extent*, kInline> extents;
    Figure bytes;
    // The list of calls that have such.
    bool listed = false;
    CallState* previous = nullptr;
    CallState* next = nullptr;
  };
  static constexpr std::uint32_t kMaxRetries = 2;
  // Calls that this thread is inside of, on all pagers. Such a thread holds
  // pins and therefore never waits for other calls.
  static constinit thread_local int of_thread;

  std::size_t liveBytes() const noexcept { // allocated, and not adopted
    return in_call.bytes + spares.bytes;
  }

  // The op wrote all operands of kOverwrite; see Call.
  void overwritten() noexcept {
    for (OldBytes& old : old_bytes) old.keep_from = SIZE_MAX;
  }

  StreamIndex stream = kFirstCompute;
  // These lie side by side, since they are cleared together.
  bool active = false;
  bool exclusive = false;      // no other call enters beside it
  bool keeps_pins = false;     // nobody waits for it (Pager::keepPins)
  bool ends_by_itself = false; // work under way ends it (Pager::endsByItself)
  bool chooses = false;        // Algorithm::kToBeChosen
  bool has_all = false;        // all of HBM beside its operands, in one piece
  bool failed = false;         // an allocation failed in this attempt
  // No allocation may fail: there is no ordinary retry, or none is left.
  bool must_not_fail = false;
  bool can_be_held_back = false; // OpRequest::can_be_held_back
  bool wants_record = false;     // as the policy wants
  bool rerun = false;            // OpRequest::rerun
  std::uint32_t failures = 0;    // attempts that failed so
  int* depth = nullptr;          // calls that its thread is inside of
  std::uint64_t tick = 0;        // its number among all calls of the pager
  std::string_view op;
  OpMemory* memory = nullptr;
  InlineList<Operand, kInline> pins;   // one pin each
  InlineList<Block*, kInline> adopted; // one pin each, seen by no other call
  std::size_t operand_bytes = 0;       // as committed
  profiler::OpTicket ticket{0, profiler::kNone, profiler::kNone,
                            0, false,           false};
  bool observed = false;                 // the profiler saw the op
  profiler::Token token = 0;             // of a recorded op
  std::unique_ptr<OpTiming> timing;      // null, mostly: this op is not timed
  std::forward_list<OldBytes> old_bytes; // empty, mostly
  Hole hole;
  Spares spares;
  std::size_t adopted_bytes = 0;
  std::size_t peak_bytes = 0; // of all that it allocated
  Figure room_bytes;          // committed for in-call allocations
  InCall in_call;
};

// One op call in flight. Lives on the caller's stack between begin() and
// end(); not copyable, used by one thread (frees of its in-call allocations
// may come from other threads). The same object serves the retry of a call
// whose in-call allocation failed: it remembers that.
class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Before end(): the op wrote all operands of kOverwrite / of this one only
  // its first bytes. What was not written has its old value after end(); so
  // has all of them where this is not called, since the op failed.
  void overwritten() noexcept { state_.overwritten(); }
  void overwritten(const Block& block, std::size_t bytes) noexcept {
    for (CallState::OldBytes& old : state_.old_bytes) {
      if (old.block == &block) old.keep_from = bytes;
    }
  }

  // After a failed allocate() and end(): another begin() may succeed. It gets
  // more room, the second time without other calls beside it.
  bool worthRetrying() const noexcept {
    return state_.failed && state_.failures <= CallState::kMaxRetries;
  }
  // The call had all of HBM beside its operands. So an allocation that failed
  // would fail on any device of this size: only a larger budget helps.
  bool hadAll() const noexcept { return state_.has_all; }
  // The call is to be recorded (Pager::record).
  bool wantsRecord() const noexcept { return state_.wants_record; }
  // Its number among all calls of the pager; a retry has another one.
  std::uint64_t tick() const noexcept { return state_.tick; }

 private:
  friend class Pager;
  CallState state_;
};

} // namespace chameleon::memory
