// One op call, as the pager sees it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "memory/block.h"
#include "memory/first_fit.h"
#include "memory/held_hole.h"
#include "memory/op_timer.h"
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
};

// What is the same for all calls of an op; the kernels layer has one per op.
struct OpKind {
  std::string_view name;      // for messages; must live until end()
  OpMemory* memory = nullptr; // null: nothing is learned
  // The op writes nothing, so that a failed in-call allocation may be answered
  // by end() and another begin() (Call::worthRetrying()).
  bool may_retry = false;
};

// A list in one piece, the first N items of which need no heap.
template <typename T, std::size_t N>
class InlineList {
  static_assert(std::is_trivial_v<T>);

 public:
  void assign(std::span<const T> items) {
    std::copy(items.begin(), items.end(), resize(items.size()));
  }
  // `size` items, whose values the caller sets.
  T* resize(std::size_t size) {
    if (size > N) [[unlikely]] {
      growMore();
      more_->resize(size);
    }
    size_ = size;
    return data();
  }
  void push_back(const T& item) {
    if (size_ < N) [[likely]] {
      inline_[size_++] = item;
    } else {
      pushMore(item);
    }
  }
  void clear() noexcept { size_ = 0; }
  bool empty() const noexcept { return size_ == 0; }
  // The last item takes its place.
  void remove(std::size_t i) noexcept {
    (*this)[i] = (*this)[size_ - 1];
    if (size_ > N) [[unlikely]]
      more_->pop_back();
    if (--size_ == N && more_ != nullptr) [[unlikely]]
      std::copy(more_->begin(), more_->end(), inline_.begin());
  }
  std::size_t size() const noexcept { return size_; }
  T* data() noexcept { return size_ <= N ? inline_.data() : more_->data(); }
  const T* data() const noexcept {
    return size_ <= N ? inline_.data() : more_->data();
  }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  T* begin() noexcept { return data(); }
  T* end() noexcept { return data() + size_; }
  const T* begin() const noexcept { return data(); }
  const T* end() const noexcept { return data() + size_; }
  // size(), where nothing fits.
  template <typename Predicate>
  std::size_t findIf(Predicate predicate) const noexcept {
    const T* const items = data();
    std::size_t i = 0;
    while (i < size_ && !predicate(items[i])) ++i;
    return i;
  }

 private:
  [[gnu::noinline, gnu::cold]] void growMore() {
    if (more_ == nullptr) more_ = std::make_unique<std::vector<T>>();
  }
  [[gnu::noinline, gnu::cold]] void pushMore(const T& item) {
    growMore();
    if (size_ == N) more_->assign(inline_.begin(), inline_.end());
    more_->push_back(item);
    ++size_;
  }

  std::size_t size_ = 0;
  std::unique_ptr<std::vector<T>> more_; // all items, where they exceed N
  std::array<T, N> inline_;              // all items, where they do not
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
  void overwritten() noexcept {
    for (OldBytes& old : old_bytes_) old.keep_from = SIZE_MAX;
  }
  void overwritten(const Block& block, std::size_t bytes) noexcept {
    for (OldBytes& old : old_bytes_) {
      if (old.block == &block) old.keep_from = bytes;
    }
  }

  // After a failed allocate() and end(): another begin() may succeed. It gets
  // more room, the second time without other calls beside it.
  bool worthRetrying() const noexcept {
    return failed_ && failures_ <= kMaxRetries;
  }
  // It has all of HBM but its operands, and more would be a larger budget: an
  // allocation that failed would have failed on a device of that size.
  bool hadAll() const noexcept { return has_all_; }
  // The call is to be recorded (Pager::record).
  bool recording() const noexcept { return recording_; }
  // Its number among all calls of the pager; a retry has another one.
  std::uint64_t tick() const noexcept { return tick_; }

 private:
  friend class PagerImpl;
  friend class InvariantWalker;
  // A host copy that is kept until the op has overwritten its block.
  struct OldBytes {
    Block* block;
    Extent* host;
    std::byte* address;
    Position ready;        // the copy that fills it
    Position read;         // the latest fetch from it
    std::size_t keep_from; // bytes of the block that were overwritten
  };
  static constexpr std::size_t kInline = 8;
  static constexpr std::uint32_t kMaxRetries = 2;

  // Used by the call's own thread only.
  StreamIndex stream_ = kFirstCompute;
  bool active_ = false;
  bool exclusive_ = false;     // no other call enters beside it
  bool held_ = false;          // nobody waits for it (Pager::hold)
  bool failed_ = false;        // an allocation failed in this attempt
  bool must_not_fail_ = false; // no allocation may: it would be the last one
  bool hole_due_ = false;      // made when it first allocates: it is exclusive
  bool chooses_ = false;       // Algorithm::kToBeChosen
  bool has_all_ = false;       // of HBM, in one piece
  bool recording_ = false;     // as the policy wishes
  bool rerun_ = false;         // OpRequest::rerun
  std::uint32_t failures_ = 0; // attempts that failed so
  int* depth_ = nullptr;       // calls that its thread is inside of
  std::uint64_t tick_ = 0;
  std::string_view op_;
  OpMemory* memory_ = nullptr;
  InlineList<Operand, kInline> pins_;   // one pin each
  InlineList<Block*, kInline> adopted_; // one pin each, seen by no other call
  std::size_t operand_bytes_ = 0;       // as committed
  profiler::OpTicket ticket_{0, profiler::kNone, profiler::kNone,
                             0, false,           false};
  bool observed_ = false;                 // the profiler saw the op
  profiler::Token token_ = 0;             // of a recorded op
  std::unique_ptr<OpTiming> timing_;      // null, mostly: this op is not timed
  std::forward_list<OldBytes> old_bytes_; // empty, mostly
  // Of a call that must not fail. By op and sizes: what it needs is learned.
  profiler::QuickToken quick_ = 0;
  FirstFit layout_; // of all that it allocates, wherever that lies
  HeldHole hole_;   // guarded by the pager's lock
  // In-call memory that is a spare block's, one pin each. How many more the
  // call may take: a kernel that must not fail needs its room in one piece.
  InlineList<Block*, kInline> spares_;
  std::size_t spare_bytes_ = 0;
  std::size_t spares_left_ = 0;
  std::size_t live_bytes() const noexcept { // not adopted
    return in_call_bytes_ + spare_bytes_;
  }

  std::size_t adopted_bytes_ = 0;
  std::size_t peak_bytes_ = 0; // of all that it allocated
  Figure room_bytes_;          // committed for in-call allocations

  // Live in-call allocations that are no spare blocks. Guarded by the pager's
  // lock once there are any: other threads may free them.
  InlineList<Extent*, kInline> in_call_;
  Figure in_call_bytes_;
  bool listed_ = false; // in the pager's list of calls with in-call extents
  Call* previous_ = nullptr;
  Call* next_ = nullptr;
};

} // namespace chameleon::memory
