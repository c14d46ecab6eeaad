#include "backend/torch/device.h"

#include <algorithm>
#include <atomic>

#include <c10/util/Exception.h>

#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/error.h"
#include "backend/torch/native_cuda.h"

namespace chameleon::backend {

namespace detail {
std::array<std::atomic<DeviceContext*>, kMaxDevices> contexts{};
std::atomic<bool> used{false};
std::atomic<bool> forked{false};
std::atomic<c10::DeviceIndex> known_count{0};
Target target{c10::DeviceType::CPU, c10::DispatchKeySet(c10::DispatchKey::CPU)};
runtime::LocalRanks ranks;
} // namespace detail

namespace {

using detail::forked;
using detail::known_count;

thread_local c10::DeviceIndex current_index = 0;

} // namespace

c10::DeviceIndex device_count() noexcept {
  const c10::DeviceIndex known = known_count.load(std::memory_order_relaxed);
  if (known != 0) [[likely]]
    return known;
  int count = 0;
  if (chooses_cuda()) {
    count = native_cuda()->device_count();
  } else {
    const auto ranks = runtime::read_local_ranks();
    count = runtime::physical_device_count(ranks.ok() ? ranks.value()
                                                      : runtime::LocalRanks());
  }
  return static_cast<c10::DeviceIndex>(
      std::clamp(count, 1, static_cast<int>(kMaxDevices)));
}
c10::DeviceIndex current_device() noexcept { return current_index; }

namespace {
void check_index(c10::DeviceIndex index) {
  const int count = device_count();
  if (index >= 0 && index < count) return;
  local_ranks(); // where it throws, it says why there are so few
  TORCH_CHECK(false, "chameleon: device index ", static_cast<int>(index),
              " does not exist; there ", count == 1 ? "is " : "are ", count,
              count == 1 ? " device" : " devices",
              chooses_cuda()
                  ? ""
                  : ": without a GPU there is one for each process that a "
                    "launcher has started on this machine (LOCAL_WORLD_SIZE)");
}
} // namespace

void set_current_device(c10::DeviceIndex index) {
  check_index(index);
  current_index = index;
}

c10::DeviceIndex resolve_index(c10::DeviceIndex index) {
  if (index == -1) return current_index;
  check_index(index);
  return index;
}

void refuse_after_fork() {
  TORCH_CHECK(!forked.load(),
              "chameleon: this process was forked after the device was used, "
              "and copy engines do not survive a fork; use the 'spawn' start "
              "method or touch the device in the child only");
}

DeviceContext* context_of(const void* address) noexcept {
  const c10::DeviceIndex count = known_count.load(std::memory_order_relaxed);
  for (c10::DeviceIndex index = 0; index < count; ++index) {
    DeviceContext* const used = context_if_used(index);
    if (used != nullptr && used->pager->contains(address)) return used;
  }
  return nullptr;
}

namespace {
std::string chosen_kind() {
  return runtime::option_text("physical_device").value();
}
} // namespace

bool chooses_cuda() {
  const NativeCuda* const cuda = native_cuda();
  if (cuda == nullptr) return false;
  const std::string kind = chosen_kind();
  return kind == "cuda" || (kind == "auto" && cuda->device_count() > 0);
}

bool targets_cuda(std::string_view use) {
  if (!is_used()) {
    if (!chooses_cuda()) return false;
    context(current_device(), use);
  }
  return target().type == c10::DeviceType::CUDA;
}

c10::DeviceType likely_target_type() {
  if (is_used()) [[likely]]
    return target().type;
  return chosen_kind() == "simulated" || chooses_cuda() ? c10::DeviceType::CUDA
                                                        : c10::DeviceType::CPU;
}

void prepare_thread(c10::DeviceIndex index) noexcept {
  if (is_used() && target().type == c10::DeviceType::CUDA) {
    native_cuda()->prepare_thread(index);
  }
}

runtime::LocalRanks local_ranks() {
  if (is_used()) return detail::ranks;
  return value_or_throw(runtime::read_local_ranks());
}

bool is_used() noexcept { return detail::used.load(std::memory_order_acquire); }
bool is_in_bad_fork() noexcept { return forked.load(); }

} // namespace chameleon::backend
