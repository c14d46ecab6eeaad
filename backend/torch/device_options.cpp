#include "backend/torch/device_options.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include <c10/util/Exception.h>

#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"

namespace chameleon::backend {

namespace {

constexpr double kDefaultOversubscription = 4.0;

struct Fraction {
  std::atomic<double> value{1};
};
std::array<Fraction, kMaxDevices> fractions; // by device

double oversubscription_from_options() {
  return runtime::option_number("oversubscription")
      .value_or(kDefaultOversubscription);
}

} // namespace

std::size_t total_memory_bytes(std::size_t hbm_budget_bytes) {
  return memory::logical_limit_bytes(oversubscription_from_options(),
                                     hbm_budget_bytes);
}

double memory_fraction(c10::DeviceIndex index) {
  return fractions.at(static_cast<std::size_t>(index)).value;
}

void set_memory_fraction(c10::DeviceIndex index, double fraction) {
  try_finish_deferred_work();
  if (DeviceContext* const used = context_if_used(index)) {
    const auto error = used->pager->budgets().setOversubscription(
        oversubscription_from_options(), fraction);
    TORCH_CHECK_VALUE(error.ok(), "set_per_process_memory_fraction(", fraction,
                      "): more than that is live on chameleon:",
                      static_cast<int>(index), " already; free tensors first");
  }
  fractions.at(static_cast<std::size_t>(index)).value = fraction;
}

memory::Limits limits_from_options(const runtime::DeviceRuntime& device,
                                   c10::DeviceIndex index) {
  const runtime::MemorySharers sharers =
      runtime::memory_sharers(device, local_ranks(), device_count());
  memory::Limits limits;
  limits.hbm_budget_bytes = runtime::option_bytes("hbm_budget")
                                .value_or(runtime::default_hbm_budget_bytes(
                                    device, sharers.of_device_memory));
  if (const auto given = runtime::option_bytes("host_budget")) {
    limits.host_budget_bytes = *given;
  } else {
    limits.host_budget_bytes = runtime::default_host_budget_bytes(
        device, limits.hbm_budget_bytes, sharers.of_host_memory);
    limits.host_growth_share =
        runtime::kDefaultHostShare / sharers.of_host_memory;
  }
  limits.oversubscription = oversubscription_from_options();
  limits.live_fraction = memory_fraction(index);
  limits.recompute = runtime::option_text("recompute") == "auto";
  return limits;
}

void set_option(std::string_view key, std::optional<std::string_view> text) {
  try_finish_deferred_work();
  const std::optional<std::string> before = runtime::option_text(key);
  throw_if(runtime::set_option(key, text));
  runtime::Error applied;
  for (c10::DeviceIndex i = 0; i < device_count() && applied.ok(); ++i) {
    DeviceContext* used = context_if_used(i);
    if (used == nullptr) continue;
    const memory::Limits limits = limits_from_options(*used->runtime, i);
    if (key == "hbm_budget") {
      applied = used->pager->budgets().setHbmBudget(limits.hbm_budget_bytes);
    } else if (key == "host_budget") {
      applied = used->pager->budgets().setHostBudget(limits.host_budget_bytes,
                                                     limits.host_growth_share);
    } else if (key == "oversubscription") {
      applied = used->pager->budgets().setOversubscription(
          limits.oversubscription, limits.live_fraction);
    } else if (key == "recompute") {
      applied = used->pager->policy().setRecompute(limits.recompute);
    } else if (key == "max_slowdown") {
      used->pager->meter().setMaxSlowdown(runtime::option_number(key));
    } else if (key == "policy") {
      applied = used->pager->policy().set(
          runtime::option_text("policy").value_or("forecast"));
    }
  }
  if (!applied.ok()) {
    throw_if(runtime::set_option(
        key, before ? std::optional<std::string_view>(*before) : std::nullopt));
    throw_error(applied);
  }
}

} // namespace chameleon::backend
