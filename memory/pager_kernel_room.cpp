// Room for what a kernel will allocate, made before it begins: while its
// operands can still be moved out of the way.
#include <algorithm>

#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::Error;

namespace {

// What a kernel shall find that was not seen yet: this share of HBM, and so
// many times what it is guessed to need.
constexpr std::size_t kUnseenShare = 4;
constexpr std::size_t kUnseenPerGuess = 8;

} // namespace

// One hole for all that the kernel will allocate, while its operands can still
// be moved out of the way. Where a failure does harm the hole is kept: by
// letting no other call in, or by taking it now.
std::size_t PagerImpl::holeWished(const Call& call) const noexcept {
  const std::size_t span = spans_.find(call.quick_);
  return span == 0 ? call.room_bytes_
                   : std::min<std::size_t>(span, call.room_bytes_);
}

// For a kernel whose need is a guess, which may be far too low.
std::size_t PagerImpl::roomForUnseen(std::size_t guess,
                                     const Call& call) const noexcept {
  if (guess == 0) return 0; // smaller ones needed nothing
  return std::min(roomLeft(call),
                  std::max(admission_.budgetBytes() / kUnseenShare,
                           kUnseenPerGuess * guess));
}

// Beside all that is pinned, by this call and others.
std::size_t PagerImpl::roomLeft(const Call& call) const noexcept {
  const std::size_t budget = admission_.budgetBytes();
  const std::size_t pinned = admission_.load().bytes - call.room_bytes_;
  return budget - std::min(budget, pinned);
}

bool PagerImpl::makeRoomForKernel(Call& call, bool must_not_fail, bool alone,
                                  Shortage& shortage) {
  if (call.chooses_) return makeRoomToChoose(call, alone, shortage);
  if (call.failures_ >= Call::kMaxRetries)
    return holdAll(call, alone, shortage);
  if (must_not_fail && !hasSeen(call.memory_, call.operand_bytes_)) {
    const std::size_t bytes =
        roomForUnseen(roomGuessed(*call.memory_, call.operand_bytes_), call);
    if (largestRun(/*moving=*/false, bytes) < bytes) {
      return holdAll(call, alone, shortage);
    }
  }
  const bool guess = call.memory_ != nullptr &&
                     !call.memory_->known.load(std::memory_order_acquire);
  if (call.room_bytes_ == 0 || (guess && !must_not_fail)) return true;
  const std::size_t bytes = holeWished(call);
  if (bytes > large_room_.load(std::memory_order_relaxed) &&
      spans_.find(call.quick_) > 0) {
    makeLargeRoom(bytes, call.stream_, shortage);
    if (shortage.failure) return false;
  }
  // After a failure the hole is taken: the kernel's own small allocations may
  // be what splits a run that is only there.
  if (call.failures_ == 0 && largestRun(/*moving=*/false, bytes) >= bytes) {
    if (!must_not_fail) return true;
    call.exclusive_ = alone && admission_.makeExclusive();
    call.hole_due_ = call.exclusive_;
    if (call.exclusive_) return true;
  }
  holdHole(call,
           place(bytes, End::kTop, ExtentUse::kInCall, call.stream_, shortage));
  if (!call.hole_.empty()) {
    if (!must_not_fail) freeHole(call);
    return true;
  }
  const bool others_may_end = !alone && calls_of_thread == 0;
  if (shortage.failure || (must_not_fail && others_may_end)) return false;
  shortage = {};
  return !must_not_fail ||
         holdAll(call, alone, shortage); // maybe it needs less
}

// For a kernel whose library chooses by what it gets: so much in one piece that
// it would take no more from a device without other tensors, and all there is
// where that is not much more than its operands.
bool PagerImpl::makeRoomToChoose(Call& call, bool alone, Shortage& shortage) {
  if (!takeAlone(call, alone)) return false;
  const std::size_t bytes = roomForUnseen(call.operand_bytes_, call);
  if (bytes < roomLeft(call) && makeFree(bytes, call.stream_, shortage))
    return true;
  if (shortage.failure) return false;
  shortage = {};
  return holdAll(call, alone, shortage);
}

// False: when the others have ended. (A thread that is inside a call is never
// alone, and waits for nobody.)
bool PagerImpl::takeAlone(Call& call, bool alone) noexcept {
  if (!call.exclusive_ && calls_of_thread == 0) {
    call.exclusive_ = alone && admission_.makeExclusive();
  }
  return call.exclusive_ || calls_of_thread > 0;
}

// All that the operands leave of HBM, in one piece but for what else cannot
// move, and no other call beside it: what does not fit now never will.
bool PagerImpl::holdAll(Call& call, bool alone, Shortage& shortage) {
  if (!takeAlone(call, alone)) return false;
  while (evictNext(shortage, arena_->usedBytes())) {
  }
  if (shortage.failure) return false;
  shortage = {}; // what the host cannot take moves as well
  slideAll(shortage);
  if (shortage.failure) return false;
  const std::size_t bytes = arena_->largestFree();
  call.has_all_ = bytes + call.operand_bytes_ >= admission_.budgetBytes();
  if (bytes == 0) return true;
  // Not placed: what of it is not cut was not used.
  Extent* const hole =
      arena_->allocate(bytes, End::kTop, ExtentUse::kInCall, call.stream_);
  if (hole == nullptr) {
    const Error& error = arena_->lastError();
    shortage.failure = Error(error.code(), error.message());
    return false;
  }
  if (bytes > call.room_bytes_) {
    admission_.add(0, bytes - call.room_bytes_);
    call.room_bytes_ = bytes;
  }
  holdHole(call, hole);
  return true;
}

// What a call will allocate is free, but in pieces: they become one while its
// operands can still be moved. Inside the kernel these stand still between the
// pieces, and blocks would have to leave.
void PagerImpl::makeLargeRoom(std::size_t bytes, StreamIndex stream,
                              Shortage& shortage) {
  if (arena_->freeBytes() < bytes || arena_->largestFree() >= bytes) return;
  if (giveBackSpares() && arena_->largestFree() >= bytes) return;
  while (arena_->largestFree() < bytes && !shortage.failure) {
    if (!moveFor(bytes, stream, shortage)) return;
  }
}

} // namespace chameleon::memory
