// Op calls, the way out; and what is said when there was no way in.
#include <algorithm>

#include "backend/runtime/check.h"
#include "backend/runtime/options.h"
#include "memory/pager_hot.h"

namespace chameleon::memory {

using runtime::ByteRange;
using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;
using runtime::format_bytes_up;

namespace {

// Smaller ops and copies take so little time that waiting for one more does not
// matter; an event costs some time of the host.
constexpr std::size_t kMarkedBytes = std::size_t{1} << 20;

} // namespace

void PagerImpl::end(Call& call) noexcept {
  CHAMELEON_CHECK(call.active_, "end() of a call that did not begin");
  if (checks_callers_) [[unlikely]] {
    report(call);
  }
  if (call.timing_ != nullptr) [[unlikely]] {
    endTiming(call);
  }
  std::size_t freed = call.adopted_bytes_;
  if (!call.old_bytes_.empty()) [[unlikely]] {
    freed += settleOldBytes(call);
  }
  const Position position = timelines_.advance(call.stream_);
  // While anything was ever swapped: who gets the operands' room, and the
  // copies of them, wait for this op and for none behind it.
  if (host_bytes_.load(std::memory_order_relaxed) != 0 &&
      call.operand_bytes_ + call.adopted_bytes_ >= kMarkedBytes) {
    timelines_.mark(call.stream_);
  }
  learn(call);
  if (call.observed_ && call.ticket_.recorded != profiler::kNone) {
    profiler_.finished(call.ticket_, call.peak_bytes_ - call.adopted_bytes_);
  }
  if (call.listed_ || !call.spares_.empty()) makeForeign(call, position);
  for (const auto [block, access] : call.pins_) {
    stamp(*block, position);
    if (writes(access)) {
      block->last_write.store(position.word, std::memory_order_release);
      block->version.fetch_add(1, std::memory_order_relaxed);
    }
    freed += unpin(*block);
  }
  for (Block* const adopted : call.adopted_) {
    // Nobody else has pinned or used it since: its tensor is not out yet.
    Block& block = *adopted;
    block.last_use[0].store(position.word, std::memory_order_relaxed);
    for (std::size_t use = 1; use < Block::kUseSlots; ++use) {
      block.last_use[use].store(0, std::memory_order_relaxed);
    }
    block.last_write.store(position.word, std::memory_order_relaxed);
    block.become(Block::stateBits(BlockState::kResident));
  }
  call.adopted_.clear();
  retire(call, freed);
  if (check_every_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    checkNow();
  }
}

void PagerImpl::leave(Call& call) noexcept {
  std::size_t freed = settleOldBytes(call);
  for (const Operand& operand : call.pins_) freed += unpin(*operand.block);
  retire(call, freed);
}

void PagerImpl::holdHole(Call& call, Extent* hole) noexcept {
  if (hole == nullptr) return;
  hole_bytes_ += hole->bytes;
  call.hole_.hold(hole);
}

void PagerImpl::freeHole(Call& call) noexcept {
  if (!call.hole_.empty()) hole_bytes_ -= call.hole_.release(*arena_);
}

void PagerImpl::hold(Call& call) noexcept {
  CHAMELEON_CHECK(
      call.active_ && !call.held_ && !call.listed_ && call.spares_.empty(),
      "hold() of a call that does not run or has allocated");
  call.held_ = true;
  --*call.depth_;
  call.hole_due_ = false;
  if (!call.hole_.empty()) {
    const Lock lock(*this);
    freeHole(call);
  }
  fixed_extents_.fetch_add(call.pins_.size(), std::memory_order_relaxed);
  admission_.subtract(1, call.room_bytes_, call.exclusive_);
  call.exclusive_ = false;
  call.room_bytes_ = 0;
  call.spares_left_ = 0;
  admission_.wake();
}

// ---- runtimes that check their callers ---------------------------------

void PagerImpl::report(Call& call) noexcept {
  std::vector<ByteRange> reads;
  std::vector<ByteRange> writes;
  for (const Operand& operand : call.pins_) {
    const Block& block = *operand.block;
    (memory::writes(operand.access) ? writes : reads)
        .push_back({block.device_address, block.bytes});
  }
  for (const Block* block : call.spares_) {
    writes.push_back({block->device_address, block->rounded_bytes});
  }
  for (const Block* block : call.adopted_) {
    writes.push_back({block->device_address, block->bytes});
  }
  if (call.listed_) {
    const Lock lock(*this);
    for (const Extent* extent : call.in_call_) {
      writes.push_back({arena_->address(*extent), extent->bytes});
    }
  }
  runtime_.submitted(timelines_.stream(call.stream_), reads, writes);
}

// ---- messages ------------------------------------------------------------

Error PagerImpl::named(const Call& call, Error error) const {
  if (!error || error.code() != ErrorCode::kDevice) return error;
  return {error.code(),
          name() + ": " + std::string(call.op_) + ": " + error.message()};
}

Error PagerImpl::outOfMemory(const Call& call, std::size_t needed_bytes,
                             std::size_t inside_bytes, Shortage& shortage) {
  if (shortage.failure && (shortage.failure.code() == ErrorCode::kDevice ||
                           shortage.failure.code() == ErrorCode::kLost)) {
    return named(call, std::move(shortage.failure));
  }
  const Lock lock(*this);
  const std::size_t all_bytes = needed_bytes + inside_bytes;
  std::size_t others = pinnedBytes(); // what other calls and users hold
  if (call.active_) {
    const std::size_t own =
        call.operand_bytes_ + call.live_bytes() + call.adopted_bytes_;
    others -= std::min(others, own);
  }
  std::string text = name() + " out of memory. " + std::string(call.op_) +
                     " needs " + format_bytes(all_bytes) +
                     " of HBM (operands " + format_bytes(needed_bytes) +
                     ", inside the kernel " + format_bytes(inside_bytes) +
                     "); budget " + format_bytes(limits_.hbm_budget_bytes) +
                     ", resident " + format_bytes(residentBytes()) +
                     ", pinned " + format_bytes(others) + ", in one piece " +
                     format_bytes(largestRun(false, SIZE_MAX)) + ", host use " +
                     format_bytes(host_pool_->usedBytes()) + " of " +
                     format_bytes(host_pool_->budgetBytes()) + ". ";
  if (shortage.failure) {
    return {shortage.failure.code(), text + shortage.failure.message()};
  }
  if (shortage.host_full) {
    return {ErrorCode::kOutOfHostMemory,
            text +
                "The host memory for evicted tensors is full: raise "
                "torch_chameleon.config.host_budget, or use smaller "
                "tensors"};
  }
  // What a kernel allocates is not known before it has run once.
  const char* unknown =
      inside_bytes == 0 ? " and what its kernel allocates beside its operands"
                        : "";
  return {ErrorCode::kOutOfDeviceMemory,
          text + "Raise torch_chameleon.config.hbm_budget to at least " +
              format_bytes_up(all_bytes + others) + unknown +
              ", or use smaller tensors (a smaller batch)"};
}

} // namespace chameleon::memory
