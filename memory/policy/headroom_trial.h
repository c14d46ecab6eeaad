// How much of the budget the plan of a path leaves, found out by what its steps
// really take.
//
// A plan's model knows nothing of where blocks lie. The more a plan leaves, the
// more has to be moved or run again; the less it leaves, the more moves inside
// HBM and victims that no plan chose it takes to find room. Which weighs more
// differs from model to model and from card to card.
//
// Where all fits into the whole budget a plan leaves nothing, and so no byte
// moves. It is held to what it says: where its steps take longer after all,
// what else is resident needs room.
//
// A path that was walked once may never be again: where steps differ at random
// its plan is followed in parts, amid what it did not foresee, and leaves more
// (kOnce). When a step went as the path has it, the path is planned again as
// usual, knowing more: in the first step not all that dies had died. Where its
// steps then take longer than the plan's model says, plans that leave more are
// followed for some steps each, and one stays if its steps are clearly shorter.
//
// A trial costs some steps of every training and gains little in most: each
// plan has kTakeOver + kSteps steps, and none follows one whose steps take what
// its model says. A plan that by its model alone takes longer than the best
// one's steps is not tried, and neither are those that leave still more: where
// steps take longer than their plan's model says, these do, too.
//
// Thread safety: none; PlanningThread locks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "memory/policy/path_plan.h"

namespace chameleon::memory {

class HeadroomTrial {
 public:
  // A plan of level n leaves kFactor^n times what plan_search.h leaves by
  // default.
  static constexpr double kFactor = 2.56;
  // A plan that leaves nothing, and moves nothing: all fits.
  static constexpr int kNoHeadroom = -1;
  // Not a level: it marks the plan of a path that was walked only once. That
  // plan leaves as much as one of level kOnceHeadroom.
  static constexpr int kOnce = 3;
  static constexpr int kOnceHeadroom = 1;
  static constexpr int kMostHeadroom = 2; // the highest level that is tried
  // Steps of a plan that count, behind those in which it takes over.
  static constexpr std::size_t kSteps = 3;
  static constexpr std::size_t kTakeOver = 1;

  explicit HeadroomTrial(PathPlanPtr first) : is_over_(first->is_settled) {
    now_.plan = std::move(first);
  }

  // The one to follow.
  const PathPlanPtr& plan() const noexcept { return now_.plan; }
  // The level that is to be tried next, or else that of plan().
  int headroomLevel() const noexcept {
    return wanted_.value_or(now_.plan->headroom_level);
  }
  bool isOver() const noexcept { return is_over_; }

  // A plan was made: it is the one to follow, for good where an earlier run has
  // compared it with others; but where it was wanted and is null: so much
  // cannot be left; and where it was wanted and cannot win: the best one stays.
  // If it is for another link, or for other times, than those before, and no
  // other is wanted: all begins anew. Once all is over, a plan of a level that
  // was given up is one that its search still found, and is not followed.
  void add(PathPlanPtr plan);
  // A step ended that followed this plan and went as it foresaw; null: none.
  // True: a plan with another headroomLevel() is wanted.
  bool stepEnded(const Plan* plan, std::int64_t duration_ns);

 private:
  // What takes that many times the shortest step has done something else, like
  // saving a checkpoint.
  static constexpr double kSomethingElse = 1.5;
  // Steps in a row after which a plan is given up, the ones in which it takes
  // over among them, if each took that many times what the best one's take.
  static constexpr std::size_t kFewSteps = 2;
  static constexpr double kFarLonger = 1.2;
  // Times the best one's steps: less is no noise.
  static constexpr double kClearly = 0.995;
  // Times what the model says: what blocks' places cost is no more than that.
  static constexpr double kAsModelled = 1.02;

  struct Tried {
    PathPlanPtr plan;
    std::array<std::int64_t, kSteps> duration_ns{};
    std::size_t steps = 0;
    double mean_ns() const;
  };
  void judge();
  bool cannotWin(const Plan& plan) const;
  bool isAsModelled() const;
  void end();

  Tried now_;
  Tried best_; // of those that were tried
  std::optional<int> wanted_;
  struct InARow {
    std::size_t followed = 0; // steps that followed now_
    std::size_t slow = 0;     // the last of these, as far as they were
  };
  InARow in_a_row_;
  bool is_over_;
};

} // namespace chameleon::memory
