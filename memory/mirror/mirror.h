// Copies of blocks as they were at one moment, to memory of the caller's: what
// a training can go back to (torch_chameleon.elastic). Nobody waits for them
// but finish(): bytes leave while nothing else does, and what an op is about to
// write leaves before it, at the latest. So no copy has a later value.
//
// A block in HBM is copied by the queue of copies out, piece by piece while
// nothing is evicted; what is on the host is copied by the thread that is in
// finish(). Where an op on the block was deferred, the block's value is the one
// after it, and is copied from then on.
//
// Invariant: Block::kMirroredBit is set exactly while a copy of the block is
// not known to have passed and awaits no deferred op. So who writes the block
// comes for the lock. It is not dropped meanwhile, and dies only afterwards.
//
// Tests: mirror_test.cpp.
//
// Thread safety: methods take the pager's lock, or need it where they take a
// Locked. add() and finish() are for one thread at a time; ops run beside them
// on any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "memory/pager_core.h"
#include "memory/policy/mirror_rate.h"
#include "memory/residency.h"

namespace chameleon::memory {

// Bytes of a block, and where they go.
struct MirrorCopy {
  Block* block;
  std::size_t offset;
  std::size_t bytes;
  std::byte* destination;
};

// Which value of which block: two that are equal are the same bytes. Identity 0
// is that of no block.
struct BlockValue {
  std::uint64_t identity = 0;
  std::uint64_t version = 0;
  bool operator==(const BlockValue&) const = default;
};

class Mirror {
 public:
  // REQUIRES: they outlive it.
  Mirror(PagerCore& core, Residency& residency, MirrorRate& rate)
      : core_(core), residency_(residency), rate_(rate) {}

  enum class Added {
    kLater,     // by finish(), or before the next op that writes the block
    kUnchanged, // `value` is what the destination has
    kInUse,     // or without bytes: nothing was done, the caller reads it
  };
  // The bytes as they are now. `value`: of what the destination has; of what it
  // will have, unless that awaits a deferred op. REQUIRES: nobody writes the
  // block meanwhile, and nobody else the destination until all is finished. The
  // block may be released before.
  Added add(const MirrorCopy& copy, BlockValue& value);
  // Copies what was not copied yet, and waits for it. False: the rest awaits
  // deferred ops. An error: nothing can be said of the destinations.
  runtime::Result<bool> finish();
  bool awaitsOps() const noexcept {
    return awaiting_.load(std::memory_order_relaxed) > 0;
  }
  // Before others may write the block: what was deferred on it has run, or will
  // not. Without the lock where nothing awaits that.
  void deferredOpDone(Block& block) noexcept;
  // The block is about to be written: what was not copied yet is copied, or
  // submitted. `waits` gets what the writer has to wait for.
  void finishBefore(const Locked& locked, Block& block, Fence& waits) noexcept
      REQUIRES(pager_lock);
  // Before an op on `stream`, where time is modelled and threads have none:
  // does what finish() would have done beside the ops so far. The host waits
  // for the ops before, as its clock stands still where it runs ahead of them.
  void advance(StreamIndex stream);

  // Aborts unless the invariant holds for the block.
  void check(const Locked& locked, const Block& block) const
      REQUIRES(pager_lock);

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Entry {
    MirrorCopy copy{};
    std::size_t earlier = kNone;  // entry of the same block, or kNone
    std::size_t copied_bytes = 0; // or submitted
    Position done;                // the last copy that was submitted
    bool awaits_op = false;
    bool passed = false;
    std::size_t leftBytes() const { return copy.bytes - copied_bytes; }
  };

  // The first entry to be copied, or whose copies have not passed; null: there
  // is none, or one failed.
  Entry* first(const Locked& locked) noexcept REQUIRES(pager_lock);
  // At most so many bytes of entries in HBM, from this one on.
  void submitFrom(const Locked& locked, std::size_t index,
                  std::size_t left_bytes) noexcept REQUIRES(pager_lock);
  void submit(const Locked& locked) noexcept REQUIRES(pager_lock);
  void take(const Locked& locked, Entry& entry, std::size_t bytes)
      REQUIRES(pager_lock);
  void copyRestFromHost(const Locked& locked, Entry& entry) noexcept
      REQUIRES(pager_lock);
  void pass(const Locked& locked, Entry& entry) noexcept REQUIRES(pager_lock);
  void fail(const Locked& locked, runtime::Error error) noexcept
      REQUIRES(pager_lock);
  // Nothing of others was copied out for a while.
  bool isQuiet(const Locked& locked) noexcept REQUIRES(pager_lock);
  // All have passed, or one failed, which is what it returns. `last`: of what
  // was submitted.
  runtime::Error end(const Locked& locked, Position& last) REQUIRES(pager_lock);

  PagerCore& core_;
  Residency& residency_;
  MirrorRate& rate_; // is told what is sent
  std::vector<Entry> entries_ GUARDED_BY(pager_lock);
  std::unordered_map<const Block*, std::size_t> last_ GUARDED_BY(pager_lock);
  std::size_t first_ GUARDED_BY(pager_lock) = 0;
  std::atomic<std::size_t> awaiting_{0}; // entries; changed under the lock
  runtime::Error failure_ GUARDED_BY(pager_lock);
  std::int64_t sent_bytes_ GUARDED_BY(pager_lock) = 0; // since all had ended
  Position sent_ GUARDED_BY(pager_lock);               // our last copy out
  Position seen_ GUARDED_BY(pager_lock);               // the last one of others
  std::int64_t quiet_since_ns_ GUARDED_BY(pager_lock) = 0;
  // The batch that is made up, and whose it is.
  std::vector<runtime::Copy> copies_ GUARDED_BY(pager_lock);
  std::vector<Entry*> taken_ GUARDED_BY(pager_lock);
};

} // namespace chameleon::memory
