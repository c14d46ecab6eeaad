#include "memory/policy/make_policy.h"

#include <string>

#include "memory/policy/forecast_policy.h"
#include "memory/policy/lru.h"

namespace chameleon::memory {

std::vector<std::string_view> policy_names() { return {"forecast", "lru"}; }

runtime::Result<std::unique_ptr<Policy>> make_policy(
    std::string_view name, const PolicyInputs& inputs) {
  using Made = std::unique_ptr<Policy>;
  if (name == "forecast") return Made(std::make_unique<ForecastPolicy>(inputs));
  if (name == "lru") return Made(std::make_unique<LruPolicy>());
  std::string known;
  for (const std::string_view each : policy_names()) {
    known += (known.empty() ? "" : ", ") + std::string(each);
  }
  return runtime::Error(runtime::ErrorCode::kInvalidArgument,
                        "torch_chameleon.config.policy = \"" +
                            std::string(name) +
                            "\" is not known; allowed: " + known);
}

} // namespace chameleon::memory
