#include "memory/policy/recomputing/assignment_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace chameleon::memory {
namespace {

constexpr std::size_t kGroupSizes[] = {2, 1, 4};
constexpr std::size_t kTop = 8;
constexpr std::uint32_t kMovesInVain = 1000;

} // namespace

void AssignmentSearch::alsoTry(Assignment assignment) {
  // One from a file may be of other segments.
  if (assignment.joins.size() != choices_.segments() ||
      assignment.price_ns_per_byte.size() != choices_.segments()) {
    return;
  }
  hints_.push_back(std::move(assignment));
}

bool AssignmentSearch::tookTime(double duration_ns,
                                const Assignment& assignment) {
  const bool is_best = top_.empty() || duration_ns < top_.front().duration_ns;
  if (is_best) moves_ = 0;
  const auto at = std::find_if(
      top_.begin(), top_.end(),
      [&](const Tried& other) { return duration_ns < other.duration_ns; });
  top_.insert(at, {duration_ns, assignment});
  if (top_.size() > kTop) top_.pop_back();
  return is_best;
}

double AssignmentSearch::limit_ns() const noexcept {
  return top_.size() < kTop ? std::numeric_limits<double>::infinity()
                            : top_.back().duration_ns;
}

double AssignmentSearch::price(int step) const {
  return link_ns_per_byte_ * std::pow(10, step / 6.0);
}

Assignment AssignmentSearch::uniform(double price,
                                     std::size_t segments_per_group) const {
  Assignment assignment;
  std::size_t in_group = 0;
  for (std::size_t i = 0; i < choices_.segments(); ++i) {
    if (choices_.beginsPass(i) || in_group == segments_per_group) in_group = 0;
    assignment.price_ns_per_byte.push_back(price);
    assignment.joins.push_back(in_group++ > 0 ? 1 : 0);
  }
  return assignment;
}

std::optional<Assignment> AssignmentSearch::next() {
  if (!hints_.empty()) {
    Assignment hint = std::move(hints_.back());
    hints_.pop_back();
    return hint;
  }
  if (auto assignment = nextUniform()) return assignment;
  if (auto assignment = nextSplit()) return assignment;
  if (top_.empty() || moves_ > kMovesInVain) return std::nullopt;
  ++moves_;
  return nextMove();
}

// The price of moving first, then ever lower ones, then higher ones.
std::optional<Assignment> AssignmentSearch::nextUniform() {
  const std::uint32_t at = uniform_at_++;
  if (at >= kSteps * std::size(kGroupSizes)) return std::nullopt;
  const int down = static_cast<int>(at) % kSteps;
  const int step = down <= -kLowestStep ? -down : down + kLowestStep;
  return uniform(price(step), kGroupSizes[at / kSteps]);
}

std::optional<Assignment> AssignmentSearch::nextSplit() {
  if (!splits_) listSplits();
  if (splits_->empty()) return std::nullopt;
  Assignment assignment = std::move(splits_->back());
  splits_->pop_back();
  return assignment;
}

// They buy 2 % to 9 % (by the seed of the search) on ResNet-50 at a quarter of
// its peak over a link of 22 GB/s, and nothing elsewhere; all modelled.
void AssignmentSearch::listSplits() {
  splits_.emplace();
  std::vector<Assignment> parts{uniform(0, 1)};
  for (const Tried& tried : top_) parts.push_back(tried.assignment);
  const std::size_t count = choices_.segments();
  const auto mix = [&](const Assignment& a, const Assignment& b, auto take_b) {
    Assignment mixed = a;
    bool before = false;
    for (std::size_t i = 0; i < count; ++i) {
      const bool second = take_b(i);
      if (second) {
        mixed.price_ns_per_byte[i] = b.price_ns_per_byte[i];
        mixed.joins[i] = b.joins[i];
      }
      if (second != before) mixed.joins[i] = 0;
      before = second;
    }
    splits_->push_back(std::move(mixed));
  };
  for (const Assignment& a : parts) {
    for (const Assignment& b : parts) {
      if (a == b) continue;
      for (const std::size_t eighths : {1, 2, 4, 6, 7}) {
        mix(a, b, [&](std::size_t i) { return 8 * i >= eighths * count; });
      }
      for (const std::size_t every : {2, 3}) {
        mix(a, b, [&](std::size_t i) { return i / 2 % every == 0; });
      }
    }
  }
  std::reverse(splits_->begin(), splits_->end());
}

std::uint32_t AssignmentSearch::random(std::uint32_t below) {
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<std::uint32_t>((random_ >> 33) % below);
}

Assignment AssignmentSearch::nextMove() {
  const std::size_t which =
      random(2) == 0 ? random(static_cast<std::uint32_t>(top_.size())) : 0;
  Assignment moved = top_[which].assignment;
  const auto count = static_cast<std::uint32_t>(choices_.segments());
  const std::uint32_t first = random(count);
  const std::uint32_t length =
      1 + (random(2) == 0 ? random(4) : random(count - first));
  const std::uint32_t end = std::min(first + length, count);
  switch (random(4)) {
    case 0: { // a range to a neighbouring price, or mostly to a slope of them:
              // what is kept of an early segment is in the way for longer
      const double factor =
          std::pow(10, (1 + random(4)) * (random(2) == 0 ? -1 : 1) / 6.0);
      const bool slopes = end - first > 1 && random(4) != 0;
      for (std::uint32_t i = first; i < end; ++i) {
        const double place = (i - first + 0.5) / (end - first); // 0 to 1
        double& price_here = moved.price_ns_per_byte[i];
        price_here =
            price_here > 0
                ? std::clamp(
                      price_here * std::pow(factor, slopes ? 2 * place - 1 : 1),
                      price(kLowestStep), price(kHighestStep))
                : price(kLowestStep + 5);
      }
      break;
    }
    case 1: { // a range to one price
      const auto step = static_cast<int>(random(kSteps + 1)) + kLowestStep - 1;
      for (std::uint32_t i = first; i < end; ++i) {
        moved.price_ns_per_byte[i] = step < kLowestStep ? 0 : price(step);
      }
      break;
    }
    case 2: { // one or two borders
      for (std::uint32_t n = 1 + random(2); n > 0; --n) {
        const std::uint32_t at = random(count);
        if (!choices_.beginsPass(at)) moved.joins[at] ^= 1;
      }
      break;
    }
    default: {
      const std::uint32_t other = random(count);
      std::swap(moved.price_ns_per_byte[first], moved.price_ns_per_byte[other]);
      break;
    }
  }
  return moved;
}

} // namespace chameleon::memory
