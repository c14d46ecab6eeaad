// What a pager decided, op by op: for comparing runs, and for looking into one.
// Off until start(); then bounded: what comes after the limit is counted only.
//
// Thread safety: any thread. on() is one relaxed load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "backend/runtime/ranked_mutex.h"

namespace chameleon::memory {

enum class Decision : std::uint8_t {
  kPin,       // an operand is pinned; offset: where it lies
  kFault,     // an operand had to be fetched first
  kFetch,     // a block is fetched ahead of need; offset: to where
  kWriteBack, // a block is copied out ahead of need, and stays
  kEvict,     // a block left HBM as planned; bytes: copied out for it
  kVictim,    // a block was evicted for room; bytes: copied out for it
  kMove,      // a block moved inside HBM; offset: to where
  kAllocate,  // a kernel got memory
  kFree,      // a kernel gave memory back
  kAdopt,     // a kernel's result became this block
  kDrop,      // a block's bytes were given up
  kRerun,     // a block's bytes were recomputed
};
inline constexpr std::size_t kDecisions = 12;
std::string_view decision_name(Decision decision) noexcept;

struct DecisionRecord {
  std::uint64_t call; // of the pager, counted from 1
  Decision decision;
  std::uint64_t block; // its identity, 0: none
  std::size_t offset;  // in the arena, where it was before it left
  std::size_t bytes;

  friend bool operator==(const DecisionRecord&,
                         const DecisionRecord&) = default;
};

class DecisionLog {
 public:
  // `watched`: set when it starts; whoever makes decisions looks there first.
  explicit DecisionLog(std::atomic<bool>& watched) : watched_(watched) {}

  // Notes so many decisions from now on, after it has forgotten those there
  // are; 0, the default: none.
  void start(std::size_t limit);
  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  void add(const DecisionRecord& record);
  std::vector<DecisionRecord> records() const;
  std::size_t dropped() const; // beyond the limit

 private:
  std::atomic<bool>& watched_;
  std::atomic<bool> on_{false};
  mutable runtime::RankedMutex<runtime::LockRank::kLog>
      mutex_; // a leaf; guards what is below
  std::size_t limit_ = 0;
  std::size_t dropped_ = 0;
  std::vector<DecisionRecord> records_;
};

} // namespace chameleon::memory
