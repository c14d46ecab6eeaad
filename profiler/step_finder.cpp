#include "profiler/step_finder.h"

#include <algorithm>
#include <array>
#include <utility>

namespace chameleon::profiler {
namespace {

constexpr std::size_t kFollowers = 8; // different ones counted

} // namespace

void StepFinder::roundEnded(PathId path, std::uint32_t ops) {
  after_of_ = 0;
  if (!runs_.empty() && runs_.back().path == path) {
    ++runs_.back().rounds;
    return;
  }
  // Half of them at once, so that a round costs O(1).
  if (runs_.size() == kRuns) {
    runs_.erase(runs_.begin(),
                runs_.begin() + static_cast<std::ptrdiff_t>(kRuns / 2));
  }
  runs_.push_back({path, ops, 1});
}

PathId StepFinder::nextAfter(PathId path) {
  if (after_of_ != path) {
    after_of_ = path;
    after_ = findNextAfter(path);
  }
  return after_;
}

PathId StepFinder::findNextAfter(PathId path) {
  if (!runs_.empty() && runs_.back().path == path) {
    ++runs_.back().rounds;
    const PathId found = next();
    --runs_.back().rounds;
    return found;
  }
  runs_.push_back({path, 0, 1});
  const PathId found = next();
  runs_.pop_back();
  return found;
}

PathId StepFinder::next() const {
  if (runs_.empty()) return 0;
  const std::size_t last = runs_.size() - 1;
  const Run& run = runs_[last];
  std::array<std::pair<PathId, std::size_t>, kFollowers> votes{};
  std::size_t followers = 0;
  std::size_t best_length = 0;
  for (std::size_t i = last; i-- > 0;) {
    if (runs_[i].path != run.path || runs_[i].rounds < run.rounds) continue;
    std::size_t length = 1;
    while (length < kContext && length <= i &&
           runs_[i - length] == runs_[last - length]) {
      ++length;
    }
    if (length < best_length) continue;
    if (length > best_length) followers = 0;
    best_length = length;
    const PathId follower =
        runs_[i].rounds > run.rounds ? run.path : runs_[i + 1].path;
    std::size_t k = 0;
    while (k < followers && votes[k].first != follower) ++k;
    if (k == kFollowers) continue;
    if (k == followers) votes[followers++] = {follower, 0};
    ++votes[k].second;
  }
  // The latest of the most frequent. Nothing ever followed: a loop.
  PathId best = run.path;
  std::size_t most = 0;
  for (std::size_t k = 0; k < followers; ++k) {
    if (votes[k].second <= most) continue;
    most = votes[k].second;
    best = votes[k].first;
  }
  return best;
}

// The last `period` runs have repeated before, and did not go on for long: they
// are a part of what repeats.
bool StepFinder::endedSoon(std::size_t period) const {
  const auto at = [this, period](std::size_t end) { // are they there as well?
    return end >= period &&
           std::equal(
               runs_.end() - static_cast<std::ptrdiff_t>(period), runs_.end(),
               runs_.begin() + static_cast<std::ptrdiff_t>(end - period));
  };
  std::size_t end = runs_.size();
  while (at(end)) end -= period; // this time
  while (end >= period && !at(end)) --end;
  std::size_t times = 0;
  for (; at(end); end -= period) ++times;
  return times > 0 && times < kLongRepetition;
}

std::vector<PathId> StepFinder::group() const {
  const std::size_t count = runs_.size();
  std::uint64_t ops = 0;
  if (count > 0) {
    const Run& run = runs_.back();
    if (run.ops > 0 && run.ops < kShortRound &&
        std::uint64_t{run.ops} * run.rounds >= kSteadyOps) {
      return std::vector<PathId>((kUnrolledOps + run.ops - 1) / run.ops,
                                 run.path);
    }
  }
  for (std::size_t period = 1; 2 * period <= count; ++period) {
    const Run& first = runs_[count - period];
    ops += std::uint64_t{first.ops} * first.rounds;
    if (ops > kMaxGroupOps) return {};
    if (!std::equal(runs_.end() - static_cast<std::ptrdiff_t>(period),
                    runs_.end(),
                    runs_.end() - static_cast<std::ptrdiff_t>(2 * period))) {
      continue;
    }
    if (endedSoon(period)) continue;
    std::vector<PathId> group;
    for (std::size_t i = count - period; i < count; ++i) {
      group.insert(group.end(), runs_[i].rounds, runs_[i].path);
    }
    return group;
  }
  return {};
}

void StepFinder::grouped(PathId path, std::uint32_t ops) {
  runs_.clear();
  roundEnded(path, ops);
}

} // namespace chameleon::profiler
