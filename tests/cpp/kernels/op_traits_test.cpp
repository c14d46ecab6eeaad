// What a traits takes out of a schema: of ops of PyTorch, and of schemas made
// up for it.
#include "kernels/op_traits.h"

#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "profiler/op_names.h"
#include "tests/cpp/kernels/schema_ops.h"

namespace chameleon::kernels {
namespace {

using Kinds = std::vector<std::pair<int, ArgumentKind>>;

Kinds kinds_of(const OpTraits& traits) {
  Kinds kinds;
  for (const ArgumentTraits& each : traits.arguments) {
    kinds.emplace_back(each.index, each.kind);
  }
  return kinds;
}

// Indices of the arguments for which it holds.
std::vector<int> which(const OpTraits& traits, bool ArgumentTraits::* is_so) {
  std::vector<int> indices;
  for (const ArgumentTraits& each : traits.arguments) {
    if (each.*is_so) indices.push_back(each.index);
  }
  return indices;
}

std::vector<CpuRule> cpu_rules(const OpTraits& traits) {
  std::vector<CpuRule> rules;
  for (const ArgumentTraits& each : traits.arguments) rules.push_back(each.cpu);
  return rules;
}

using Results = std::vector<std::pair<ResultKind, int>>;

Results results_of(const OpTraits& traits) {
  Results results;
  for (const ResultTraits& each : traits.results) {
    results.emplace_back(each.kind, each.written_argument);
  }
  return results;
}

using enum ArgumentKind;
using Indices = std::vector<int>;

// ---- which arguments -------------------------------------------------------

TEST(OpTraits, HasTheArgumentsOfInterestInOrder) {
  const OpTraits traits = plan_for(
      "(int a, Tensor b, float[] c, Tensor? d, Tensor[] e, bool? f, "
      "Tensor?[] g, Scalar h, str i, *, Generator? j=None, Device? k=None, "
      "Stream? l=None, ScalarType? m=None, Layout? n=None) -> Tensor");
  EXPECT_EQ(traits.argument_count, 14);
  EXPECT_EQ(kinds_of(traits), (Kinds{{1, kTensor},
                                     {3, kTensor},
                                     {4, kTensorList},
                                     {6, kOptionalList},
                                     {9, kGenerator},
                                     {10, kDevice},
                                     {11, kStream}}));
}

TEST(OpTraits, AnOpWithoutTensorsHasNoArgumentOfInterest) {
  const OpTraits traits = plan_for("(int a, float[] b) -> int");
  EXPECT_EQ(traits.argument_count, 2);
  EXPECT_TRUE(traits.arguments.empty());
  EXPECT_EQ(results_of(traits), (Results{{ResultKind::kOther, -1}}));
  EXPECT_TRUE(traits.mayRetry());
}

TEST(OpTraits, ScalarsAreSlicedWithListsOnlyWhereTheOpMayRunInChunks) {
  const OpTraits foreach_add = plan_of_aten("_foreach_add.ScalarList");
  EXPECT_TRUE(foreach_add.is_list_op);
  EXPECT_EQ(kinds_of(foreach_add), (Kinds{{0, kTensorList}, {1, kOtherList}}));

  const OpTraits other =
      plan_for("(Tensor[] self, Scalar[] scalars) -> Tensor[]");
  EXPECT_FALSE(other.is_list_op);
  EXPECT_EQ(kinds_of(other), (Kinds{{0, kTensorList}}));
}

// ---- what is written -------------------------------------------------------

TEST(OpTraits, AnAliasAloneIsNoWrite) {
  const OpTraits view = plan_for("(Tensor(a) self, Tensor b) -> Tensor(a)");
  EXPECT_FALSE(view.writes);
  EXPECT_EQ(which(view, &ArgumentTraits::writes), Indices{});
  EXPECT_EQ(results_of(view), (Results{{ResultKind::kTensor, -1}}));
}

TEST(OpTraits, AResultIsTheArgumentOfItsAlias) {
  const OpTraits crossed = plan_for(
      "(Tensor(a!) x, Tensor y, *, Tensor(b!) z) -> "
      "(Tensor(b!), Tensor, Tensor(a!), Tensor[], int)");
  EXPECT_TRUE(crossed.writes);
  EXPECT_EQ(which(crossed, &ArgumentTraits::writes), (Indices{0, 2}));
  EXPECT_EQ(results_of(crossed), (Results{{ResultKind::kTensor, 2},
                                          {ResultKind::kTensor, -1},
                                          {ResultKind::kTensor, 0},
                                          {ResultKind::kTensorList, -1},
                                          {ResultKind::kOther, -1}}));
}

TEST(OpTraits, OutOperandsOfListedOpsAreOverwrittenAndInPlaceOnesAreNot) {
  const OpTraits out = plan_of_aten("add.out");
  EXPECT_EQ(which(out, &ArgumentTraits::writes), Indices{3});
  EXPECT_EQ(which(out, &ArgumentTraits::overwrites), Indices{3});

  const OpTraits in_place = plan_of_aten("add_.Tensor");
  EXPECT_EQ(which(in_place, &ArgumentTraits::writes), Indices{0});
  EXPECT_EQ(which(in_place, &ArgumentTraits::overwrites), Indices{});

  const OpTraits fill = plan_of_aten("fill_.Tensor");
  EXPECT_EQ(which(fill, &ArgumentTraits::overwrites), Indices{0});

  // It adds to what it finds there.
  const OpTraits put = plan_of_aten("index_put.out");
  EXPECT_EQ(put.writes, true);
  EXPECT_EQ(which(put, &ArgumentTraits::overwrites), Indices{});
}

TEST(OpTraits, GradientsAreWrittenWhereTheyAreUnscaled) {
  for (const char* const op :
       {"_fused_adam_", "_fused_adamw_.tensor_lr", "_fused_sgd_"}) {
    const OpTraits traits = plan_of_aten(op);
    const c10::FunctionSchema& schema = traits.handle.schema();
    for (const ArgumentTraits& each : traits.arguments) {
      const bool grads = schema.arguments()[each.index].name() == "grads";
      const int with = grads ? *schema.argumentIndexWithName("grad_scale") : -1;
      EXPECT_EQ(each.written_with, with) << op;
      EXPECT_TRUE(each.writes || !grads) << op;
    }
  }
}

TEST(OpTraits, WritesThatTheSchemaConcealsAreKnown) {
  const OpTraits norm = plan_of_aten("native_batch_norm");
  // input, weight, bias, running_mean, running_var, ...
  EXPECT_TRUE(norm.writes);
  EXPECT_EQ(which(norm, &ArgumentTraits::writes), (Indices{3, 4}));
  EXPECT_EQ(which(norm, &ArgumentTraits::side_effect), (Indices{3, 4}));
  EXPECT_EQ(which(norm, &ArgumentTraits::overwrites), Indices{});
  EXPECT_FALSE(norm.mayRetry());

  const OpTraits rnn = plan_of_aten("_cudnn_rnn");
  EXPECT_EQ(which(rnn, &ArgumentTraits::writes), Indices{15}); // dropout_state
  EXPECT_EQ(which(rnn, &ArgumentTraits::side_effect), Indices{});
}

// ---- random numbers, retries -----------------------------------------------

TEST(OpTraits, AnOpMayBeTriedAgainThatChangesNothing) {
  EXPECT_TRUE(plan_of_aten("mm").mayRetry());
  EXPECT_FALSE(plan_of_aten("mm.out").mayRetry());
  EXPECT_FALSE(plan_of_aten("relu_").mayRetry());
}

TEST(OpTraits, AGeneratorOrATagMakesItRandom) {
  const OpTraits by_argument = plan_for("(Tensor a, Generator? g) -> Tensor");
  EXPECT_TRUE(by_argument.random);
  EXPECT_FALSE(by_argument.writes);
  EXPECT_FALSE(by_argument.mayRetry());

  const OpTraits by_tag =
      plan_for("(Tensor a) -> Tensor", {at::Tag::nondeterministic_seeded});
  EXPECT_TRUE(by_tag.random);
  EXPECT_FALSE(by_tag.mayRetry());
  EXPECT_FALSE(plan_for("(Tensor a) -> Tensor").random);
  // It has no generator among its arguments.
  EXPECT_TRUE(plan_of_aten("native_dropout").random);
}

// ---- list ops --------------------------------------------------------------

TEST(OpTraits, ElementWiseListOpsMayRunInChunks) {
  for (const char* const op :
       {"_foreach_add.List", "_foreach_norm.Scalar", "_foreach_zero_",
        "_amp_foreach_non_finite_check_and_unscale_", "_fused_adam_",
        "_fused_adamw_.tensor_lr", "_fused_adagrad_", "_fused_sgd_"}) {
    EXPECT_TRUE(plan_of_aten(op).is_list_op) << op;
  }
  // No list; a list that becomes one tensor; lists that are returned anew.
  for (const char* const op : {"add.Tensor", "cat", "_fused_adam"}) {
    EXPECT_FALSE(plan_of_aten(op).is_list_op) << op;
  }
}

TEST(OpTraits, InPlaceListOpsCountVersions) {
  EXPECT_TRUE(plan_of_aten("_foreach_add_.List").counts_versions);
  EXPECT_FALSE(plan_of_aten("_foreach_add.List").counts_versions);
  EXPECT_FALSE(plan_of_aten("_fused_adam_").counts_versions);
  EXPECT_FALSE(plan_of_aten("add_.Tensor").counts_versions);
}

// ---- tensors on the CPU ----------------------------------------------------

TEST(OpTraits, SaysWhichOperandsMayBeOnTheCpu) {
  using enum CpuRule;
  EXPECT_EQ(cpu_rules(plan_of_aten("add.Tensor")),
            (std::vector{kScalar, kScalar}));
  EXPECT_EQ(cpu_rules(plan_of_aten("add.out")),
            (std::vector{kScalar, kScalar, kNever}));
  EXPECT_EQ(cpu_rules(plan_of_aten("mm")), (std::vector{kNever, kNever}));
  EXPECT_EQ(cpu_rules(plan_of_aten("index.Tensor")),
            (std::vector{kScalar, kAny}));
  // Running statistics are written, which only the traits knows.
  const std::vector<CpuRule> norm =
      cpu_rules(plan_of_aten("native_batch_norm"));
  EXPECT_EQ(norm.at(3), kNever);
  EXPECT_EQ(norm.at(4), kNever);
}

// ---- names -----------------------------------------------------------------

TEST(OpTraits, IsKnownByNameAndNumber) {
  const OpTraits traits = plan_of_aten("add.Tensor");
  EXPECT_EQ(traits.name, "aten::add.Tensor");
  EXPECT_EQ(profiler::op_names().name(traits.number), "aten::add.Tensor");
  EXPECT_EQ(traits.kind.name, "aten::add.Tensor");
  EXPECT_EQ(traits.kind.memory, &traits.memory);
  EXPECT_TRUE(traits.kind.may_retry);
  EXPECT_EQ(plan_of_aten("add.Tensor").number, traits.number);
  EXPECT_NE(plan_of_aten("add.Scalar").number, traits.number);
}

} // namespace
} // namespace chameleon::kernels
