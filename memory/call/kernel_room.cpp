#include "memory/call/kernel_room.h"

#include <algorithm>

namespace chameleon::memory {

using runtime::Error;

namespace {

// What a kernel shall find that was not seen yet: this share of HBM, and so
// many times what it is guessed to need.
constexpr std::size_t kUnseenShare = 4;
constexpr std::size_t kUnseenPerGuess = 8;

} // namespace

// Of an op that never ended well: at least as much as its operands have. Where
// these are larger than any seen so far: in proportion.
std::size_t KernelRoom::roomGuessed(const OpMemory& memory, std::size_t bytes) {
  const bool known = memory.known.load(std::memory_order_acquire);
  const std::size_t seen = memory.operand_bytes.load(std::memory_order_relaxed);
  std::size_t peak = memory.peak_bytes.load(std::memory_order_relaxed);
  if (bytes > seen && seen > 0) {
    peak = static_cast<std::size_t>(static_cast<double>(peak) *
                                    static_cast<double>(bytes) /
                                    static_cast<double>(seen));
  }
  return ExtentMap::round(known ? peak : std::max(peak, bytes));
}

// One hole for all that the kernel will allocate, while its operands can still
// be moved out of the way. Where a failure does harm the hole is kept: by
// letting no other call in, or by taking it now.
std::size_t KernelRoom::holeExpected(const CallState& call) const noexcept {
  const std::size_t known = span(call, call.operand_bytes);
  return known == 0 ? call.room_bytes
                    : std::min<std::size_t>(known, call.room_bytes);
}

// For a kernel whose need is a guess, which may be far too low.
std::size_t KernelRoom::roomForUnseen(std::size_t guess,
                                      const CallState& call) const noexcept {
  if (guess == 0) return 0; // smaller ones needed nothing
  return std::min(roomLeft(call),
                  std::max(core_.admission.budgetBytes() / kUnseenShare,
                           kUnseenPerGuess * guess));
}

// Beside all that is pinned, by this call and others.
std::size_t KernelRoom::roomLeft(const CallState& call) const noexcept {
  const std::size_t budget = core_.admission.budgetBytes();
  const std::size_t pinned = core_.admission.load().bytes - call.room_bytes;
  return budget - std::min(budget, pinned);
}

bool KernelRoom::makeRoomForKernel(const Locked& locked, CallState& call,
                                   bool alone, Shortage& shortage) {
  if (call.chooses) return makeRoomToChoose(locked, call, alone, shortage);
  const bool must_not_fail = call.must_not_fail;
  if (call.failures >= CallState::kMaxRetries)
    return reserveAll(locked, call, alone, shortage);
  if (must_not_fail && !hasSeen(call.memory, call.operand_bytes)) {
    const std::size_t bytes =
        roomForUnseen(roomGuessed(*call.memory, call.operand_bytes), call);
    if (room_.largestRun(locked, /*moving=*/false, bytes) < bytes) {
      return reserveAll(locked, call, alone, shortage);
    }
  }
  const bool guess = call.memory != nullptr &&
                     !call.memory->known.load(std::memory_order_acquire);
  if (call.room_bytes == 0 || (guess && !must_not_fail)) return true;
  if (room_.hasPlaces(locked, call.ticket)) {
    if (!must_not_fail) return true;
    call.exclusive = alone && core_.admission.makeExclusive();
    if (call.exclusive) return true; // nobody else takes them
  }
  const std::size_t bytes = holeExpected(call);
  if (bytes > residency_.largeRoomBytes() &&
      span(call, call.operand_bytes) > 0) {
    makeLargeRoom(locked, bytes, call.stream, shortage);
    if (shortage.failure) return false;
  }
  // After a failure the hole is taken: the kernel's own small allocations may
  // be what splits a run that is only there.
  if (call.failures == 0 &&
      room_.largestRun(locked, /*moving=*/false, bytes) >= bytes) {
    if (!must_not_fail) return true;
    call.exclusive = alone && core_.admission.makeExclusive();
    call.hole.due_bytes = call.exclusive ? bytes : 0;
    if (call.exclusive) return true;
  }
  memory_.reserveHole(
      locked, call,
      room_.place(locked, {bytes, End::kTop, ExtentUse::kInCall, call.stream},
                  shortage));
  if (!call.hole.reserved.empty()) {
    if (!must_not_fail) memory_.freeHole(locked, call);
    return true;
  }
  const bool others_may_end = !alone && CallState::of_thread == 0;
  if (shortage.failure || (must_not_fail && others_may_end)) return false;
  shortage = {};
  return !must_not_fail ||
         reserveAll(locked, call, alone, shortage); // maybe it needs less
}

// For a kernel whose library chooses by what it gets: so much in one piece that
// it would take no more from a device without other tensors, and all there is
// where that is not much more than its operands.
bool KernelRoom::makeRoomToChoose(const Locked& locked, CallState& call,
                                  bool alone, Shortage& shortage) {
  if (!takeAlone(locked, call, alone)) return false;
  const std::size_t bytes = roomForUnseen(call.operand_bytes, call);
  if (bytes < roomLeft(call) &&
      room_.makeFree(locked, bytes, call.stream, shortage))
    return true;
  if (shortage.failure) return false;
  shortage = {};
  return reserveAll(locked, call, alone, shortage);
}

// False: when the others have ended. (A thread that is inside a call is never
// alone, and waits for nobody.)
bool KernelRoom::takeAlone(const Locked& /*locked*/, CallState& call,
                           bool alone) noexcept {
  if (!call.exclusive && CallState::of_thread == 0) {
    call.exclusive = alone && core_.admission.makeExclusive();
  }
  return call.exclusive || CallState::of_thread > 0;
}

// All that the operands leave of HBM, in one piece but for what else cannot
// move, and no other call beside it: what does not fit now never will.
bool KernelRoom::reserveAll(const Locked& locked, CallState& call, bool alone,
                            Shortage& shortage) {
  if (!takeAlone(locked, call, alone)) return false;
  while (room_.evictNext(locked, shortage, core_.arena->usedBytes())) {
  }
  if (shortage.failure) return false;
  shortage = {}; // what the host cannot take moves as well
  compaction_.packDown(locked, shortage);
  if (shortage.failure) return false;
  const std::size_t bytes = core_.arena->largestFree();
  call.has_all = bytes + call.operand_bytes >= core_.admission.budgetBytes();
  if (bytes == 0) return true;
  // Not placed: what of it is not cut was not used.
  Extent* const hole =
      core_.arena->allocate(bytes, End::kTop, ExtentUse::kInCall, call.stream);
  if (hole == nullptr) {
    const Error& error = core_.arena->lastError();
    shortage.failure = Error(error.code(), error.message());
    return false;
  }
  if (bytes > call.room_bytes) {
    core_.admission.add(0, bytes - call.room_bytes);
    call.room_bytes = bytes;
  }
  memory_.reserveHole(locked, call, hole);
  return true;
}

// What a call will allocate is free, but in pieces: they become one while its
// operands can still be moved. Inside the kernel these stand still between the
// pieces, and blocks would have to leave. It buys 1.6 % on ResNet-50 at a
// quarter of its peak with re-runs, 8 % over a link of 22 GB/s; modelled.
void KernelRoom::makeLargeRoom(const Locked& locked, std::size_t bytes,
                               StreamIndex stream, Shortage& shortage) {
  if (core_.arena->largestFree() >= bytes) return;
  (void)table_.giveBackSpares(locked); // they are free, too
  if (core_.arena->freeBytes() < bytes) return;
  while (core_.arena->largestFree() < bytes && !shortage.failure) {
    if (!compaction_.compactIfCheaper(locked, bytes, stream, /*needed_at=*/0,
                                      shortage))
      return;
  }
}

} // namespace chameleon::memory
