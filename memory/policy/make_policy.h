// The policies that there are, by name.
//
// Tests: lru_test.cpp.
//
// Thread safety: any thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "backend/runtime/result.h"
#include "memory/policy/policy.h"

namespace chameleon::memory {

// "forecast", "lru".
std::vector<std::string_view> policy_names();
// kInvalidArgument: an unknown name.
runtime::Result<std::unique_ptr<Policy>> make_policy(
    std::string_view name, const PolicyInputs& inputs);

} // namespace chameleon::memory
