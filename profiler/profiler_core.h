// What all parts of the profiler work on, and the lock that guards it.
//
//   recorder   what ran: the round that is no known path
//   matcher    where the run is in what is known: the cursor
//   variant    how far the round is from the path's sizes
//   history    the paths
//   blocks     what is kept of each live block
//
// Ops have numbers from 0, in the order in which they were observed; op_count
// is that of the next one. (LiveBlocks counts from 1.)
//
// Parts (rounds.h, rejoiner.h, variant_rounds.h, divergence_log.h) hold a
// reference to it. Their methods REQUIRE the lock, where nothing else is said.
//
// Thread safety: `lock` guards everything; of the two counts only the writers
// hold it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "profiler/leaf_lock.h"
#include "profiler/live_blocks.h"
#include "profiler/op_history.h"
#include "profiler/op_recorder.h"
#include "profiler/sequence_matcher.h"
#include "profiler/shape_variant.h"

namespace chameleon::profiler {

struct ProfilerCore {
  using Guard = std::lock_guard<LeafLock>;

  ProfilerCore(std::size_t history_limit_bytes, LiveBlocks::Gone gone)
      : blocks(gone), history(history_limit_bytes) {}
  ProfilerCore(const ProfilerCore&) = delete;
  ProfilerCore& operator=(const ProfilerCore&) = delete;

  std::uint64_t opCount() const noexcept {
    return op_count.load(std::memory_order_relaxed);
  }
  std::uint64_t stepCount() const noexcept {
    return step_count.load(std::memory_order_relaxed);
  }
  void countOp() noexcept {
    op_count.store(opCount() + 1, std::memory_order_relaxed);
  }

  mutable LeafLock lock;
  std::atomic<std::uint64_t> op_count{0};   // observed
  std::atomic<std::uint64_t> step_count{0}; // that have ended
  LiveBlocks blocks;
  OpHistory history;
  OpRecorder recorder{blocks};
  SequenceMatcher matcher{blocks, history, recorder};
  ShapeVariant variant;
  std::uint32_t epoch = 0; // changes with the path or the recording
};

} // namespace chameleon::profiler
