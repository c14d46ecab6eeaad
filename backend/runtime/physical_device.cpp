#include "backend/runtime/physical_device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "backend/runtime/clocked_cpu_runtime.h"
#include "backend/runtime/options.h"
#include "backend/runtime/simulated_runtime.h"

namespace chameleon::runtime {

namespace {

struct CpuDefaults {
  std::mutex mutex;
  CpuRuntimeOptions options; // guarded by mutex
};

CpuDefaults& cpu_defaults() {
  static CpuDefaults* const instance = new CpuDefaults; // leaked, as options
  return *instance;
}

constexpr std::size_t kCpuHbmBudgetBytes = std::size_t{1} << 30;

std::size_t percent_of(std::size_t bytes, std::size_t percent) {
  return bytes / 100 * percent;
}

bool shares_host_memory(const DeviceRuntime& runtime) {
  return runtime.name() == "cpu";
}

} // namespace

int physical_device_count() noexcept { return 1; }

Result<std::unique_ptr<DeviceRuntime>> make_runtime(int device_index) {
  if (device_index < 0 || device_index >= physical_device_count()) {
    return Error(
        ErrorCode::kInvalidArgument,
        "there is no device chameleon:" + std::to_string(device_index) +
            "; there are " + std::to_string(physical_device_count()));
  }
  const std::string kind = option_text("physical_device").value();
  if (kind == "auto" || kind == "cpu") {
    CpuDefaults& defaults = cpu_defaults();
    const std::lock_guard lock(defaults.mutex);
    if (defaults.options.clock) {
      return make_clocked_cpu_runtime(*defaults.options.clock);
    }
    return make_cpu_runtime(defaults.options);
  }
  if (kind == "simulated") {
    const Result<GpuProfile> profile = chosen_gpu_profile();
    if (!profile.ok()) {
      return Error(profile.error().code(), profile.error().message());
    }
    return make_simulated_runtime(profile.value());
  }
  return Error(ErrorCode::kUnavailable,
               "physical_device = \"" + kind +
                   "\" is not in this build; set it to \"auto\", \"cpu\" or "
                   "\"simulated\"");
}

void set_cpu_runtime_options(CpuRuntimeOptions options) {
  CpuDefaults& defaults = cpu_defaults();
  const std::lock_guard lock(defaults.mutex);
  defaults.options = std::move(options);
}

std::size_t default_hbm_budget_bytes(const DeviceRuntime& runtime) {
  if (shares_host_memory(runtime)) return kCpuHbmBudgetBytes;
  const MemoryInfo memory = runtime.deviceMemory();
  if (!runtime.holdsData()) return memory.total_bytes;
  return percent_of(memory.free_bytes, 90);
}

std::size_t default_host_budget_bytes(const DeviceRuntime& runtime,
                                      std::size_t hbm_budget_bytes) {
  const std::size_t available = runtime.hostMemory().free_bytes;
  const std::size_t share = percent_of(available, 80);
  if (!shares_host_memory(runtime)) return share;
  const std::size_t left = share - std::min(share, hbm_budget_bytes);
  return std::max(left, percent_of(available, 10));
}

} // namespace chameleon::runtime
