#include "memory/policy/policy.h"

#include "memory/policy/forecast_policy.h"
#include "memory/policy/lru.h"

namespace chameleon::memory {

std::vector<std::string_view> policy_names() { return {"forecast", "lru"}; }

std::unique_ptr<Policy> make_policy(std::string_view name,
                                    const PolicyInputs& inputs) {
  if (name == "forecast") return std::make_unique<ForecastPolicy>(inputs);
  if (name == "lru") return std::make_unique<LruPolicy>();
  return nullptr;
}

} // namespace chameleon::memory
