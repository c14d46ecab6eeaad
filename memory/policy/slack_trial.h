// How much of the budget the plan of a path leaves, found out by what its steps
// really take.
//
// A plan's model knows nothing of where blocks lie. The more a plan leaves, the
// more has to be moved or run again; the less it leaves, the more moves inside
// HBM and victims that no plan chose it takes to find room. Which weighs more
// differs from model to model and from card to card (README.md).
//
// A path that was walked once may never be again: where steps differ at random
// its plan is followed in parts, amid what it did not foresee, and leaves more
// (kOnce). When a step went as the path has it, the path is planned again as
// usual, knowing more: in the first step not all that dies had died. Where the
// path is followed step after step it is then planned with less left and with
// more; each of these plans is followed for some steps, and the one whose steps
// are the shortest stays. All are tried, since what blocks' places make of a
// plan knows no order: the best may lie behind a worse one. Where one of them
// drops and swapping alone takes hardly longer by the model, a plan that only
// swaps is the last one tried (kSwapsOnly). Two that so few steps do not tell
// apart are followed again, one after the other, for as many as tell.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/policy/path_plan.h"

namespace chameleon::memory {

class SlackTrial {
 public:
  // Slack counts in powers of this; 0 is what plan_search.h begins with.
  static constexpr double kFactor = 1.6;
  static constexpr std::array kSlacks = {0, -1, 1, -2, 2, 3}; // in this order
  // None of these, but as much is left as with the other.
  static constexpr int kOnce = 4;
  static constexpr int kOnceSlack = 2;
  // None either: 0, and nothing is dropped.
  static constexpr int kSwapsOnly = 5;
  // Steps of a plan that count, behind those in which it takes over: until
  // their mean is known.
  static constexpr std::size_t kLeastSteps = 6;
  static constexpr std::size_t kMostSteps = 18;
  static constexpr std::size_t kTakeOver = 2;
  // Of each of the two best, where those do not tell them apart.
  static constexpr std::size_t kRunOffSteps = 40;

  explicit SlackTrial(PathPlanPtr first) { now_.plan = std::move(first); }

  // The one to follow.
  const PathPlanPtr& plan() const noexcept { return now_.plan; }
  // The slack that is to be tried next, or else that of plan().
  int slack() const noexcept { return wanted_.value_or(now_.plan->slack); }
  bool isOver() const noexcept { return is_over_; }

  // A plan was made: it is the one to follow, but where it was wanted and is
  // null: there is none like that. If it is for another link, or for
  // other times, than those before, and no other is wanted: all begins anew.
  void add(PathPlanPtr plan);
  // A step ended that followed this plan and went as it foresaw; null: none.
  // True: a plan with another slack() is wanted.
  bool stepEnded(const Plan* plan, std::int64_t duration_ns);

 private:
  // What takes that many times the shortest step has done something else, like
  // saving a checkpoint.
  static constexpr double kSomethingElse = 1.5;
  // Of the mean: its standard error, where it is known.
  static constexpr double kKnown = 0.001;
  // Steps after which a plan is given up, if each of them took that many times
  // the best one's mean: a trial must not cost more than it can gain.
  static constexpr std::size_t kFewSteps = 2;
  static constexpr double kFarLonger = 1.2;
  // Standard errors of the difference between two means that are alike.
  static constexpr double kAlike = 3;
  // Times the ops alone: there is nothing to gain.
  static constexpr double kGoodEnough = 1.002;

  struct Mean {
    double ns;
    double error_ns; // standard error
  };
  struct Tried {
    PathPlanPtr plan;
    std::array<std::int64_t, kRunOffSteps> duration_ns{};
    std::size_t steps = 0;
    Mean mean() const;
    bool isKnown() const;
    bool isShorter(const Tried& other) const; // or the other is none
    bool isAlike(const Tried& other) const;
  };
  void judge();
  bool isHopeless() const; // now_ is
  std::optional<int> untried() const;
  void endOrRunOff();
  void judgeRunOff();
  void end();

  Tried now_;
  Tried best_;   // of those that were tried
  Tried second_; // next to it
  std::vector<int> tried_;
  bool any_drops_ = false; // of those that were tried
  bool is_run_off_ = false;
  std::optional<int> wanted_;
  std::size_t in_a_row_ = 0; // steps that followed now_
  bool is_over_ = false;
};

} // namespace chameleon::memory
