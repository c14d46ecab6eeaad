// Which ops may run again, by schemas that differ in what counts.
#include "kernels/reruns/rerun_rules.h"

#include "profiler/op_names.h"
#include "tests/cpp/kernels/schema_ops.h"

namespace chameleon::kernels {
namespace {

using enum RerunRule;

// Of an op "aten::<name>", where nobody else has one of that name.
RerunRule rule_for(const std::string& name, std::string_view schema,
                   const std::vector<at::Tag>& tags = {}) {
  const c10::OperatorHandle op = define("aten::" + name, schema, tags);
  return rerun_rule(op, OpTraits(op));
}

RerunRule rule_of_aten(const std::string& name) {
  const OpTraits traits = plan_of_aten(name);
  return rerun_rule(traits.handle, traits);
}

TEST(RerunRules, TensorsInAndTensorsOutMayRunAgain) {
  EXPECT_EQ(rule_for("made_up_plain",
                     "(Tensor a, Tensor? b, Tensor[] c, Tensor?[] d, int e, "
                     "Generator? f=None) -> (Tensor, Tensor)"),
            kMay);
  EXPECT_EQ(rule_for("made_up_in_place", "(Tensor(a!) a) -> Tensor(a!)"), kMay);
}

TEST(RerunRules, OnlyPyTorchsOpsAndOurCopy) {
  const OpTraits other = plan_for("(Tensor a) -> Tensor");
  EXPECT_EQ(rerun_rule(other.handle, other), kOtherLibrary);
  const OpTraits copy(c10::Dispatcher::singleton().findSchemaOrThrow(
      "chameleon::copy_within_", ""));
  EXPECT_EQ(rerun_rule(copy.handle, copy), kMay);
}

TEST(RerunRules, ArgumentsThatCannotBeKept) {
  EXPECT_EQ(rule_for("made_up_device", "(Tensor a, Device b) -> Tensor"),
            kArguments);
  EXPECT_EQ(rule_for("made_up_stream", "(Tensor a, Stream b) -> Tensor"),
            kArguments);
  EXPECT_EQ(rule_for("made_up_object",
                     "(Tensor a, __torch__.torch.classes.quantized."
                     "LinearPackedParamsBase b) -> Tensor"),
            kArguments);
}

TEST(RerunRules, ResultsThatAreNotTensors) {
  EXPECT_EQ(rule_for("made_up_nothing", "(Tensor(a!) a) -> ()"), kResults);
  EXPECT_EQ(rule_for("made_up_number", "(Tensor a) -> (Tensor, int)"),
            kResults);
  EXPECT_EQ(rule_for("made_up_list", "(Tensor a) -> Tensor[]"), kResults);
}

TEST(RerunRules, TagsDecide) {
  const auto tagged = [](const std::string& name, at::Tag tag) {
    return rule_for(name, "(Tensor a) -> Tensor", {tag});
  };
  EXPECT_EQ(tagged("made_up_shape", at::Tag::dynamic_output_shape),
            kDependsOnValues);
  EXPECT_EQ(tagged("made_up_values", at::Tag::data_dependent_output),
            kDependsOnValues);
  EXPECT_EQ(tagged("made_up_bits", at::Tag::nondeterministic_bitwise),
            kNondeterministic);
  EXPECT_EQ(tagged("made_up_view", at::Tag::inplace_view), kHiddenState);
  // The generator's state is kept with the call.
  EXPECT_EQ(tagged("made_up_random", at::Tag::nondeterministic_seeded), kMay);
}

TEST(RerunRules, TheFirstReasonCounts) {
  EXPECT_EQ(rule_for("_foreach_made_up", "(Tensor[] a, Device b) -> int"),
            kListOp);
  EXPECT_EQ(rule_for("made_up_two", "(Tensor a, Device b) -> int",
                     {at::Tag::dynamic_output_shape}),
            kArguments);
  EXPECT_EQ(rule_for("made_up_three", "(Tensor a) -> int",
                     {at::Tag::dynamic_output_shape}),
            kResults);
}

TEST(RerunRules, ListOpsAreOutInEachForm) {
  for (const char* const op :
       {"_foreach_add.List", "_foreach_add_.List", "_fused_adam",
        "_fused_adam_", "_fused_sgd_", "_amp_update_scale_"}) {
    EXPECT_EQ(rule_of_aten(op), kListOp) << op;
  }
}

TEST(RerunRules, UninitializedMemoryAndTheTable) {
  EXPECT_EQ(rule_for("empty_made_up", "(Tensor a) -> Tensor"), kUninitialized);
  EXPECT_EQ(rule_for("new_empty_made_up", "(Tensor a) -> Tensor"),
            kUninitialized);
  EXPECT_EQ(rule_for("made_up_empty", "(Tensor a) -> Tensor"), kMay);
  // The first and the last row, and a name that continues one.
  EXPECT_EQ(rule_of_aten("_adaptive_avg_pool2d_backward"), kNondeterministic);
  EXPECT_EQ(rule_of_aten("_upsample_nearest_exact3d_backward"),
            kNondeterministic);
  EXPECT_EQ(rule_of_aten("cumsum"), kNondeterministic);
  EXPECT_EQ(rule_of_aten("cumsum.out"), kNondeterministic);
  EXPECT_EQ(rule_of_aten("cumprod"), kMay);
}

TEST(RerunRules, WhatIsWrittenInSilenceHidesUnlessNoResultDependsOnIt) {
  EXPECT_EQ(rule_of_aten("_cudnn_rnn"), kHiddenState);
  EXPECT_EQ(rule_of_aten("batch_norm_update_stats"), kHiddenState);
  EXPECT_EQ(rule_of_aten("native_batch_norm"), kMay);
  EXPECT_TRUE(is_side_effect("aten::native_batch_norm", "running_mean"));
  EXPECT_FALSE(is_side_effect("aten::native_batch_norm", "weight"));
  EXPECT_FALSE(is_side_effect("aten::batch_norm_update_stats", "running_mean"));
}

TEST(RerunRules, ThePlanTellsTheProfiler) {
  const OpTraits may = plan_of_aten("mm");
  EXPECT_TRUE(may.may_rerun);
  EXPECT_TRUE(profiler::op_names().mayRerun(may.number));
  const OpTraits may_not = plan_of_aten("cumsum");
  EXPECT_FALSE(may_not.may_rerun);
  EXPECT_FALSE(profiler::op_names().mayRerun(may_not.number));
}

TEST(RerunRules, EachHasAName) {
  EXPECT_EQ(rerun_rule_name(kMay), "may");
  EXPECT_EQ(rerun_rule_name(kHiddenState), "hidden state");
  EXPECT_EQ(rerun_rule_name(static_cast<RerunRule>(200)), "?");
}

} // namespace
} // namespace chameleon::kernels
