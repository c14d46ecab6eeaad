// The pager: makes the operands of an op call resident, keeps them so while it
// runs, and gives memory away again. One per device index.
//
// What it promises:
//   P1 resident bytes (blocks and in-call allocations) never exceed the
//      budget, host bytes never exceed the host budget;
//   P2 any eviction at any moment leaves every block's bits intact;
//   P3 begin() is all-or-nothing: on failure no pin is held and no block has
//      lost anything;
//   P4 no host wait on the common path: waits are between streams.
//
// Thread safety: every method may be called from any thread. Lock order is in
// memory/README.md. When the pager's mutex is taken no lock is held
// but those of kernels/; copy threads never need it, and it is never held while
// a thread waits for another call or for the GIL, nor on a compute stream.
// release() takes no lock at all and may run with the GIL held or from a
// garbage collector.
//
// The host waits for device work only
//   - in read(), write(), synchronize() and lastStep(), where the recording of
//     a timeline ends, and in level 3 of InvariantWalker::check();
//   - when host slabs or mapped memory are given back, and when the pager is
//     destroyed;
//   - when bytes move on the host: for the copies of these bytes, and for those
//     that use the place where they go;
//   - after an error: where the runtime refuses to make one stream wait for
//     another, or to move bytes inside HBM;
//   - where the runtime computes inline (cpu): there a wait for bytes is one of
//     the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/runtime/device_runtime.h"
#include "memory/block.h"
#include "memory/block_table.h"
#include "memory/budgets.h"
#include "memory/call/call_memory.h"
#include "memory/call/call_pins.h"
#include "memory/call/kernel_room.h"
#include "memory/call/overwrites.h"
#include "memory/decision_log.h"
#include "memory/figures/meter.h"
#include "memory/figures/stats.h"
#include "memory/host_access.h"
#include "memory/invariants.h"
#include "memory/limits.h"
#include "memory/mirror/mirror.h"
#include "memory/op_request.h"
#include "memory/pager_call.h"
#include "memory/pager_core.h"
#include "memory/plan_runner.h"
#include "memory/policy_control.h"
#include "memory/recompute/recompute_records.h"
#include "memory/recompute/recomputer.h"
#include "memory/residency.h"
#include "memory/room/compaction.h"
#include "memory/room/room_finder.h"
#include "memory/stress_hooks.h"
#include "profiler/profiler.h"

namespace chameleon::memory {

class Pager {
 public:
  static runtime::Result<std::unique_ptr<Pager>> create(
      runtime::DeviceRuntime& runtime, const Limits& limits,
      std::string_view policy, int device_index = 0);
  // REQUIRES: no call is in flight. Frees every block that is left.
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // ---- blocks ----------------------------------------------------------
  // A new Unbacked block. Errors: kOutOfLogicalMemory past the logical limit,
  // or where no logical address is left.
  // REQUIRES: bytes > 0.
  runtime::Result<Block*> createBlock(std::size_t bytes);
  // The storage died. Lock-free, noexcept, any thread; queued and drained by
  // later calls. Logical bytes fall at once.
  void release(Block* block) noexcept { table_.release(*block); }

  // ---- op calls ----------------------------------------------------------
  // Pins all operands (a block may occur more than once), resident and ordered
  // before later work on `stream`. Waits for other calls to end where that is
  // needed and helps (a thread that is inside a call already fails instead, so
  // waits cannot form a circle). After success device_address of each operand
  // is valid until end().
  // Errors: kOutOfDeviceMemory, kOutOfHostMemory, kDevice; kLost: an operand's
  // bytes could not be brought back; kTooSlow: steps took longer than the
  // option that bounds their slowdown allows.
  runtime::Error begin(Call& call, const OpRequest& request) {
    return pins_.begin(call.state_, request);
  }
  // The same for an op without an OpKind of its own.
  runtime::Error begin(Call& call, runtime::Stream stream,
                       std::span<const Operand> operands, OpMemory* memory,
                       std::string_view op, bool may_retry,
                       const OpIdentity* identity = nullptr);
  // Stamps and unpins. Extents allocated in the call and neither adopted nor
  // freed become foreign.
  void end(Call& call) noexcept { pins_.end(call.state_); }
  // The call keeps its pins until end(), but no op runs in it: other calls do
  // not wait for it, this thread may wait again, and nothing may be allocated
  // in it. For pins of a user's making, of any length.
  void keepPins(Call& call) noexcept { pins_.keepPins(call.state_); }
  // After keepPins(): work under way (a collective) ends the call by itself, on
  // any thread. A call that would be out of memory waits for that first, for a
  // minute at most.
  void endsByItself(Call& call) noexcept { pins_.endsByItself(call.state_); }

  // Memory for a running call. Never waits for other calls; evicts unpinned
  // blocks. The bytes may be used by work that is submitted to the call's
  // stream from now on. Errors: kOutOfDeviceMemory, kOutOfHostMemory, kDevice.
  runtime::Result<std::byte*> allocate(Call& call, std::size_t bytes) {
    return memory_.allocate(call.state_, bytes);
  }
  // The most bytes that allocate() could give just now.
  std::size_t largestInCall(const Call& call) const {
    return memory_.largestInCall(call.state_);
  }
  // Frees an in-call or foreign extent by its address, from any thread.
  // `call`: the calling thread's current call, or null.
  void free(Call* call, std::byte* address) noexcept {
    memory_.free(call != nullptr ? &call->state_ : nullptr, address);
  }
  // Makes an in-call extent the bytes of a new Resident block, counted
  // logically. `bytes` <= the extent's bytes.
  // kInvalidArgument when `address` is not the start of an in-call extent;
  // kOutOfLogicalMemory past the logical limit. Spare blocks come without being
  // asked about it: together they are less than HBM.
  runtime::Result<Block*> adopt(Call& call, std::byte* address,
                                std::size_t bytes) {
    return memory_.adopt(call.state_, address, bytes);
  }
  // The running call can be run again: what it created, or finished in place,
  // may be dropped from now on (recompute_records.h). After its last adopt(),
  // once. `created`: what it adopted, in the order in which the op gives it
  // when it runs again. REQUIRES: call.wantsRecord(); each operand occurs once.
  void record(Call& call, std::unique_ptr<RecordedOp> op,
              std::span<Block* const> created) {
    recomputer_.record(call.state_, std::move(op), created);
  }
  // True: the address lies in the device range. Lock-free.
  bool contains(const void* address) const noexcept {
    return core_.inArena(address);
  }

  // ---- host access without a fault ---------------------------------------
  // Copies between a block and ordinary host memory. Uses the host copy where
  // it is valid; a block without bytes takes its data on the host side when
  // HBM is short. Both wait on the host (blocking copies do natively) for all
  // earlier work on the block; `stream` is the one that a copy through HBM is
  // ordered with. A block that was never written reads as zeros.
  // On a runtime that holds no data nothing is read or written at
  // `destination` and `source`, which may be null.
  // Errors: as begin() without kTooSlow.
  // REQUIRES: offset + bytes <= block->bytes.
  runtime::Error read(Block& block, std::size_t offset, std::byte* destination,
                      std::size_t bytes, runtime::Stream stream) {
    return host_access_.read(block, offset, destination, bytes, stream);
  }
  runtime::Error write(Block& block, std::size_t offset,
                       const std::byte* source, std::size_t bytes,
                       runtime::Stream stream) {
    return host_access_.write(block, offset, source, bytes, stream);
  }

  // ---- mirror --------------------------------------------------------------
  // Copies of blocks as they are now, behind and beside what ops do (Mirror).
  // Bytes go to their destination until finishMirror() returns, at the latest;
  // those of a block that is in use at once, as by read(). `had`: the value
  // that the destination has. Returns the one that it gets: if it is the same
  // one, nothing is copied; of what is in use or awaits a deferred op it is not
  // known. Errors: as read(). REQUIRES: as Mirror::add().
  runtime::Result<BlockValue> mirror(const MirrorCopy& copy, BlockValue had,
                                     runtime::Stream stream);
  // False: the rest awaits deferred ops.
  runtime::Result<bool> finishMirror() { return mirror_.finish(); }
  bool mirrorAwaitsOps() const noexcept { return mirror_.awaitsOps(); }
  // What was deferred on the block (Block::has_deferred_op) has run, or will
  // not; before anybody else uses it.
  void deferredOpDone(Block& block) noexcept { mirror_.deferredOpDone(block); }

  // ---- control -------------------------------------------------------------
  Budgets& budgets() noexcept { return budgets_; }
  PolicyControl& policy() noexcept { return policy_; }
  // Lock-free, for every op: the budget, and what is used just now.
  struct Levels {
    std::size_t logical_bytes;
    std::size_t logical_rounded_bytes; // each block's rounded to 512
    std::size_t resident_bytes;
    std::size_t host_bytes;
  };
  std::size_t hbmBudget() const noexcept {
    return core_.admission.budgetBytes();
  }
  Levels levels() const noexcept;
  // Evicts one block (kInvalidArgument: it is pinned) / every unpinned block
  // (tests, and users who want HBM).
  runtime::Error evict(Block& block);
  runtime::Error evictAll();
  // `stream` was used on the block outside of any call (record_stream).
  void recordUse(Block& block, runtime::Stream stream);
  // The host waits for everything submitted. What was timed is known then.
  runtime::Error synchronize();
  void trim(); // frees released blocks, empty host slabs

  // For tests.
  Recomputer& recomputer() noexcept { return recomputer_; }
  StressHooks& stress() noexcept { return stress_; }

  // ---- measuring -----------------------------------------------------------
  Meter& meter() noexcept { return meter_; } // steps, timed ops, the link
  profiler::Profiler& profiler() noexcept { return core_.profiler; }
  DecisionLog& decisions() noexcept { return core_.decisions; }

  // Op calls so far. The latest has this number, in decisions and timelines.
  std::uint64_t calls() const noexcept {
    return core_.ticks.load(std::memory_order_relaxed);
  }
  // Every block whose storage lives, in no order.
  struct BlockInfo {
    std::uint64_t identity;
    const std::byte* logical_address;
    std::size_t bytes;
    std::size_t rounded_bytes;
    BlockState state;
  };
  std::vector<BlockInfo> blocks();

  // Counters since the last reset, and levels as they are. Any thread; while
  // others run ops the figures are not all of the same moment.
  Stats stats();
  void resetStats();
  InvariantWalker& invariants() noexcept { return walker_; }

 private:
  Pager(runtime::DeviceRuntime& runtime, const Limits& limits, int device_index,
        std::unique_ptr<LogicalSpace> space);
  // Makes what may fail. Nobody else knows the pager yet: nothing is locked.
  runtime::Error open(std::string_view policy) NO_THREAD_SAFETY_ANALYSIS;

  // In the order in which they know each other (pager_core.h). recomputer_ is
  // room_'s LastResort.
  PagerCore core_;
  Meter meter_;
  Residency residency_;
  BlockTable table_;
  Mirror mirror_;
  Compaction compaction_;
  Recomputer recomputer_;
  RoomFinder room_;
  StressHooks stress_;
  CallMemory memory_;
  KernelRoom kernel_room_;
  Overwrites overwrites_;
  PlanRunner plans_;
  InvariantWalker walker_;
  CallPins pins_;
  HostAccess host_access_;
  Budgets budgets_;
  PolicyControl policy_;
};

} // namespace chameleon::memory
