#include "profiler/repetition.h"

#include <algorithm>
#include <span>

namespace chameleon::profiler {
namespace {

constexpr std::uint32_t kMostPlaces = 256;

// It is recognised by distance: each operand is the same block, or was born the
// same number of ops before its use.
bool is_equal(const OpPath& own, std::uint32_t earlier, std::uint32_t later) {
  if (own.op(later).token != own.op(earlier).token) return false;
  const std::span<const Operand> here = own.uses(earlier);
  const std::span<const Operand> there = own.uses(later);
  if (here.size() != there.size()) return false;
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i].value() == there[i].value()) continue;
    const PathValue& a = own.values()[here[i].value()];
    const PathValue& b = own.values()[there[i].value()];
    if (a.bytes != b.bytes || a.output != b.output) return false;
    if (b.carried()) return false;
    // The first round may use a carried value where later ones use what the
    // round before made.
    const std::uint32_t distance = later - b.birth_op;
    if (a.carried() ? distance <= later - earlier
                    : earlier - a.birth_op != distance) {
      return false;
    }
  }
  return true;
}

// REQUIRES: they are equal.
bool share_block(const OpPath& own, std::uint32_t earlier,
                 std::uint32_t later) {
  const std::span<const Operand> here = own.uses(earlier);
  const std::span<const Operand> there = own.uses(later);
  for (std::size_t i = 0; i < here.size(); ++i) {
    if (here[i].value() == there[i].value()) return true;
  }
  return false;
}

// How far back a repetition may begin, so that it can share a block with the
// last ops: as long as one of their operands has been there.
std::uint32_t longest_use(const OpPath& own) {
  std::uint32_t longest = 0;
  const std::uint32_t window = std::min(own.size(), Repetition::kLimit);
  for (std::uint32_t i = own.size() - window; i < own.size(); ++i) {
    for (const Operand use : own.uses(i)) {
      const PathValue& value = own.values()[use.value()];
      if (value.carried()) return kNone;
      longest = std::max(longest, i - value.birth_op);
    }
  }
  return longest;
}

} // namespace

Repetition::Place Repetition::find(const OpPath& recording,
                                   std::uint32_t longer_than) {
  const std::uint32_t last = recording.size() - 1;
  std::swap(runs_, before_);
  runs_.clear();
  if (recording_ != recording.id() || ops_ != last) reach_ = 0;
  next_before_ = before_.cbegin();
  std::uint32_t i = recording.previousLike(last);
  const std::uint32_t farthest = i == kNone ? 0 : longest_use(recording);
  std::uint32_t reach = farthest;
  for (std::uint32_t places = 0; i != kNone && last - i <= farthest;
       i = recording.previousLike(i), ++places) {
    if (places == kMostPlaces) {
      reach = last - i - 1;
      break;
    }
    if (!is_equal(recording, i, last)) continue;
    const Run run = runAt(recording, last - i);
    runs_.push_back(run);
    if (run.length >= kCertain && run.length > longer_than && run.shares) {
      recording_ = 0;
      return {i, run.length};
    }
  }
  recording_ = recording.id();
  ops_ = recording.size();
  reach_ = i == kNone ? kNone : reach;
  return {};
}

// Of the op recorded last, which has an equal one at this distance.
Repetition::Run Repetition::runAt(const OpPath& recording,
                                  std::uint32_t distance) {
  const std::uint32_t last = recording.size() - 1;
  Run run{distance, 0, false};
  if (distance <= reach_) {
    while (next_before_ != before_.cend() &&
           next_before_->distance < distance) {
      ++next_before_;
    }
    if (next_before_ != before_.cend() && next_before_->distance == distance) {
      run = *next_before_;
    }
  } else {
    for (std::uint32_t i = last; i > distance && run.length + 1 < kLimit; --i) {
      if (!is_equal(recording, i - 1 - distance, i - 1)) break;
      ++run.length;
      run.shares =
          run.shares || share_block(recording, i - 1 - distance, i - 1);
    }
  }
  run.length = std::min(run.length + 1, kLimit);
  run.shares = run.shares || share_block(recording, last - distance, last);
  return run;
}

} // namespace chameleon::profiler
