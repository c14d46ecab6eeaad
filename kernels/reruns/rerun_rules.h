// Which ops may be run again in place of keeping what they made: the same op on
// the same operands, with the same generator state and under the same settings
// (recorded_op.h), makes the same bits and does nothing else.
//
// What an op is excluded for follows from its schema and its tags, or from one
// table in the .cpp; tests run every op of PyTorch's databases again.
//
// Thread safety: any thread; tables that never change.
#pragma once

#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

namespace chameleon::kernels {

struct OpTraits;

enum class RerunRule : std::uint8_t {
  kMay,
  kOtherLibrary,     // nobody knows what its kernel does
  kListOp,           // works in chunks, on what has values already
  kArguments,        // takes a device, a stream or an object
  kResults,          // returns no tensor, or one that is not on the device
  kDependsOnValues,  // its shapes, or what it does, depend on values
  kNondeterministic, // on some device: atomic additions, choices by timing
  kUninitialized,    // returns memory as it is
  kHiddenState,      // writes what its schema does not say
};

RerunRule rerun_rule(const c10::OperatorHandle& op, const OpTraits& traits);
// "may", "other library", ...
std::string_view rerun_rule_name(RerunRule rule) noexcept;

// The op writes this argument and its results do not depend on it, if its
// argument `training` is true or missing.
bool is_side_effect(std::string_view base, std::string_view argument);

} // namespace chameleon::kernels
