#include "backend/runtime/physical_device.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <utility>

#include "backend/runtime/simulated/clocked_cpu_runtime.h"
#ifdef CHAMELEON_WITH_CUDA
#include "backend/runtime/cuda/cuda_driver.h"
#endif
#include "backend/runtime/options.h"
#include "backend/runtime/ranked_mutex.h"
#include "backend/runtime/simulated/simulated_runtime.h"

namespace chameleon::runtime {

namespace {

struct CpuDefaults {
  RankedMutex<LockRank::kRuntimeChoice> mutex;
  CpuRuntimeOptions options; // guarded by mutex
};

CpuDefaults& cpu_defaults() {
  static CpuDefaults* const instance = new CpuDefaults; // leaked, as options
  return *instance;
}

struct CudaChoice {
  RankedMutex<LockRank::kRuntimeChoice> mutex;
  std::optional<CudaSupport> support; // guarded by mutex
};

CudaChoice& cuda_choice() {
  static CudaChoice* const instance = new CudaChoice; // leaked, as options
  return *instance;
}

// Nothing: this build, or what it is part of, has no CUDA.
std::optional<CudaSupport> cuda_support() {
#ifdef CHAMELEON_WITH_CUDA
  CudaChoice& choice = cuda_choice();
  const std::lock_guard lock(choice.mutex);
  return choice.support;
#else
  return std::nullopt;
#endif
}

Result<std::unique_ptr<DeviceRuntime>> make_cuda(
    [[maybe_unused]] const CudaSupport& support,
    [[maybe_unused]] int device_index) {
#ifdef CHAMELEON_WITH_CUDA
  const CudaDriver* driver = support.driver;
  if (driver == nullptr) {
    Result<const CudaDriver*> found = cuda_driver();
    if (!found.ok()) return found.takeError();
    driver = *found;
  }
  Result<std::unique_ptr<CudaRuntime>> made =
      make_cuda_runtime(*driver, device_index, support.options);
  if (!made.ok()) return made.takeError();
  return std::unique_ptr<DeviceRuntime>(std::move(*made));
#else
  return Error(ErrorCode::kUnavailable, "this build has no CUDA");
#endif
}

constexpr std::size_t kCpuHbmBudgetBytes = std::size_t{1} << 30;

std::size_t percent_of(std::size_t bytes, std::size_t percent) {
  return bytes / 100 * percent;
}

bool shares_host_memory(const DeviceRuntime& runtime) {
  return runtime.name() == "cpu";
}

} // namespace

int physical_device_count(const LocalRanks& ranks) noexcept {
  const std::string kind = option_text("physical_device").value_or("auto");
  const std::optional<CudaSupport> support = cuda_support();
  if (support && (kind == "cuda" || kind == "auto")) {
    return support->device_count == nullptr
               ? 1
               : std::max(1, support->device_count());
  }
  if (kind == "simulated") return ranks.count;
  CpuDefaults& defaults = cpu_defaults();
  const std::lock_guard lock(defaults.mutex);
  return std::max(ranks.count, defaults.options.devices);
}

std::uint64_t debug_interval() {
  return static_cast<std::uint64_t>(
      std::ceil(option_number("debug").value_or(0)));
}

Result<std::unique_ptr<DeviceRuntime>> make_runtime(int device_index,
                                                    const LocalRanks& ranks) {
  const int count = physical_device_count(ranks);
  if (device_index < 0 || device_index >= count) {
    return Error(
        ErrorCode::kInvalidArgument,
        "there is no device chameleon:" + std::to_string(device_index) +
            "; there " + (count == 1 ? "is " : "are ") + std::to_string(count));
  }
  const std::string kind = option_text("physical_device").value();
  const std::optional<CudaSupport> support = cuda_support();
  if (support && (kind == "auto" || kind == "cuda")) {
    auto made = make_cuda(*support, device_index);
    if (made.ok() || kind == "cuda") return made;
  }
  if (kind == "auto" || kind == "cpu") {
    CpuDefaults& defaults = cpu_defaults();
    const std::lock_guard lock(defaults.mutex);
    if (defaults.options.clock) {
      return make_clocked_cpu_runtime(*defaults.options.clock);
    }
    CpuRuntimeOptions options = defaults.options;
    if (debug_interval() > 0 && !options.adversary.active()) {
      options.adversary = {.copies = CopyTiming::kReordered,
                           .compute_delay_ops = 8,
                           .poison = true};
    }
    return make_cpu_runtime(options);
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

void set_cuda_support(std::optional<CudaSupport> support) {
  CudaChoice& choice = cuda_choice();
  const std::lock_guard lock(choice.mutex);
  choice.support = std::move(support);
}

MemorySharers memory_sharers(const DeviceRuntime& runtime,
                             const LocalRanks& ranks, int devices) {
  MemorySharers sharers;
  sharers.of_host_memory = ranks.count > 1 ? ranks.count : devices;
  if (shares_host_memory(runtime)) {
    sharers.of_device_memory = ranks.count;
  } else if (runtime.holdsData()) {
    sharers.of_device_memory = ranks_on_a_card(ranks, devices);
  }
  return sharers;
}

std::size_t default_hbm_budget_bytes(const DeviceRuntime& runtime,
                                     int sharers) {
  const auto parts = static_cast<std::size_t>(sharers);
  if (shares_host_memory(runtime)) return kCpuHbmBudgetBytes / parts;
  const MemoryInfo memory = runtime.deviceMemory();
  if (!runtime.holdsData()) return memory.total_bytes / parts;
  return percent_of(memory.free_bytes, 90) / parts;
}

std::size_t default_host_budget_bytes(const DeviceRuntime& runtime,
                                      std::size_t hbm_budget_bytes,
                                      int sharers) {
  const std::size_t available =
      runtime.hostMemory().free_bytes / static_cast<std::size_t>(sharers);
  const std::size_t share = percent_of(available, 80);
  if (!shares_host_memory(runtime)) return share;
  const std::size_t left = share - std::min(share, hbm_budget_bytes);
  return std::max(left, percent_of(available, 10));
}

} // namespace chameleon::runtime
