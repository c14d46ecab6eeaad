#include "tests/cpp/support/test_runtime.h"

#include <cstdlib>
#include <string_view>

#include "backend/runtime/check.h"
#include "backend/runtime/cpu/cpu_runtime.h"
#ifdef CHAMELEON_WITH_CUDA
#include "tests/cpp/support/emulated_runtime.h"
#endif

namespace chameleon::support {

using runtime::CopyTiming;
using runtime::CpuAdversary;
using runtime::DeviceRuntime;

bool tests_run_on_cuda() {
  const char* const device = std::getenv("CHAMELEON_TEST_DEVICE");
  return device != nullptr && std::string_view(device) == "cuda";
}

#ifdef CHAMELEON_WITH_CUDA
namespace {

std::unique_ptr<DeviceRuntime> make_emulated(const CpuAdversary& adversary) {
  EmulatedRuntimeOptions options;
  options.driver.seed = adversary.seed;
  options.driver.lateness =
      adversary.copies == CopyTiming::kPrompt    ? Lateness::kPrompt
      : adversary.copies == CopyTiming::kOnAwait ? Lateness::kLate
                                                 : Lateness::kRandom;
  // Slabs are pinned before or while they are used.
  options.register_in_background = adversary.copies == CopyTiming::kLate;
  return std::make_unique<EmulatedRuntime>(std::move(options));
}

} // namespace
#endif

std::unique_ptr<DeviceRuntime> make_test_runtime(
    const CpuAdversary& adversary) {
  if (tests_run_on_cuda()) {
#ifdef CHAMELEON_WITH_CUDA
    return make_emulated(adversary);
#else
    CHAMELEON_CHECK(false, "this build has no cuda runtime");
#endif
  }
  return runtime::make_cpu_runtime({adversary, {}});
}

CpuAdversary random_adversary(std::mt19937_64& random) {
  CpuAdversary result;
  do {
    result.seed = random();
    result.copies = static_cast<CopyTiming>(random() % 4);
    result.compute_delay_ops = static_cast<unsigned>(random() % 3 * 5);
    result.poison = random() % 2 == 0;
  } while (!result.active());
  return result;
}

std::unique_ptr<QueuedRuntime> make_queued_runtime() {
#ifdef CHAMELEON_WITH_CUDA
  EmulatedRuntimeOptions options;
  options.driver.lateness = Lateness::kLate;
  options.inline_kernels = false;
  return std::make_unique<EmulatedRuntime>(std::move(options));
#else
  CHAMELEON_CHECK(false, "this build has no cuda runtime");
  return nullptr;
#endif
}

} // namespace chameleon::support
