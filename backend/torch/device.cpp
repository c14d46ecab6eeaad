#include "backend/torch/device.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <pthread.h>

#include <c10/util/Exception.h>

#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/error.h"
#include "backend/torch/first_use.h"
#include "backend/torch/generator.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/native_cuda.h"
#include "backend/torch/stream.h"

namespace chameleon::backend {

namespace detail {
std::array<std::atomic<DeviceContext*>, kMaxDevices> contexts{};
std::atomic<bool> used{false};
Target target{c10::DeviceType::CPU, c10::DispatchKeySet(c10::DispatchKey::CPU)};
} // namespace detail

namespace {

constexpr double kDefaultOversubscription = 4.0;

std::mutex first_use_mutex; // guards who writes contexts, and what is below
std::string first_use_text;

std::atomic<FirstUseHook> first_use_hook{nullptr};

std::atomic<c10::DeviceIndex> known_count{0}; // 0: there was no use yet

std::atomic<bool> forked{false};
thread_local c10::DeviceIndex current_index = 0;

memory::Limits limits_from_options(const runtime::DeviceRuntime& device) {
  memory::Limits limits;
  limits.hbm_budget_bytes =
      runtime::option_bytes("hbm_budget")
          .value_or(runtime::default_hbm_budget_bytes(device));
  if (const auto given = runtime::option_bytes("host_budget")) {
    limits.host_budget_bytes = *given;
  } else {
    const auto devices = static_cast<std::size_t>(device_count());
    limits.host_budget_bytes =
        runtime::default_host_budget_bytes(device, limits.hbm_budget_bytes) /
        devices;
    limits.host_growth_share =
        runtime::kDefaultHostShare / static_cast<double>(devices);
  }
  limits.oversubscription = runtime::option_number("oversubscription")
                                .value_or(kDefaultOversubscription);
  return limits;
}

} // namespace

c10::DeviceIndex device_count() noexcept {
  const c10::DeviceIndex known = known_count.load(std::memory_order_relaxed);
  if (known != 0) [[likely]]
    return known;
  const int count = chooses_cuda() ? native_cuda()->device_count()
                                   : runtime::physical_device_count();
  return static_cast<c10::DeviceIndex>(
      std::clamp(count, 1, static_cast<int>(kMaxDevices)));
}
c10::DeviceIndex current_device() noexcept { return current_index; }

namespace {
void check_index(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count(), "chameleon: device index ",
              static_cast<int>(index), " does not exist; there are ",
              static_cast<int>(device_count()), " devices");
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

namespace detail {
namespace {

DeviceContext& make_context(c10::DeviceIndex index, std::string_view what) {
  refuse_after_fork();
  index = resolve_index(index);
  // Before the lock: it takes the GIL.
  if (!is_used() && chooses_cuda()) native_cuda()->initialise();
  const std::lock_guard lock(first_use_mutex);
  if (DeviceContext* const there = context_if_used(index)) return *there;

  auto device = value_or_throw(runtime::make_runtime(index));
  const std::string policy =
      runtime::option_text("policy").value_or("forecast");
  auto pager = value_or_throw(memory::Pager::create(
      *device, limits_from_options(*device), policy, index));
  throw_if(pager->policy().setRecompute(runtime::option_text("recompute") ==
                                        "auto"));
  pager->invariants().checkEvery(runtime::debug_interval());
  pager->meter().setMaxSlowdown(runtime::option_number("max_slowdown"));
  const bool is_cuda = device->name() == "cuda";
  if (!device->holdsData()) {
    detail::target = {c10::DeviceType::Meta,
                      c10::DispatchKeySet(c10::DispatchKey::Meta), false};
  } else if (is_cuda) {
    detail::target = {c10::DeviceType::CUDA,
                      c10::DispatchKeySet(c10::DispatchKey::CUDA)};
    use_native_streams(native_cuda()->current_stream);
  }
  detail::target.models_time = device->modelsTime();
  runtime::freeze_options(what);
  if (first_use_text.empty()) first_use_text = what;
  // Meta kernels allocate nothing but what they read themselves.
  if (is_cuda) {
    native_cuda()->install_in_kernel_allocator();
    native_cuda()->prepare_thread(index);
  } else if (detail::target.holds_data) {
    install_in_kernel_allocator();
  }
  if (!is_used()) {
    known_count.store(device_count());
    pthread_atfork(nullptr, nullptr, [] {
      forked.store(true);
      set_work_deferred(false); // its locks may be held for ever
      used.store(false);
      for (auto& slot : contexts) slot.store(nullptr);
    });
  }
  // Leaked: storages may outlive every static destructor.
  auto* const made = new DeviceContext{index, device.release(), pager.release(),
                                       new profiler::MemoryHistory};
  contexts[static_cast<std::size_t>(index)].store(made,
                                                  std::memory_order_release);
  used.store(true, std::memory_order_release);
  if (is_cuda) hand_on_seed(index);
  return *made;
}

} // namespace

DeviceContext& context_slow(c10::DeviceIndex index, std::string_view what) {
  DeviceContext& made = make_context(index, what);
  if (const auto hook = first_use_hook.exchange(nullptr)) hook();
  return made;
}

} // namespace detail

void set_first_use_hook(FirstUseHook hook) { first_use_hook.store(hook); }

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

bool is_used() noexcept { return detail::used.load(std::memory_order_acquire); }
bool is_in_bad_fork() noexcept { return forked.load(); }

void set_option(std::string_view key, std::optional<std::string_view> text) {
  try_finish_deferred_work();
  const std::optional<std::string> before = runtime::option_text(key);
  throw_if(runtime::set_option(key, text));
  runtime::Error applied;
  for (c10::DeviceIndex i = 0; i < device_count() && applied.ok(); ++i) {
    DeviceContext* used = context_if_used(i);
    if (used == nullptr) continue;
    const memory::Limits limits = limits_from_options(*used->runtime);
    if (key == "hbm_budget") {
      applied = used->pager->budgets().setHbmBudget(limits.hbm_budget_bytes);
    } else if (key == "host_budget") {
      applied = used->pager->budgets().setHostBudget(limits.host_budget_bytes,
                                                     limits.host_growth_share);
    } else if (key == "oversubscription") {
      applied =
          used->pager->budgets().setOversubscription(limits.oversubscription);
    } else if (key == "recompute") {
      applied = used->pager->policy().setRecompute(runtime::option_text(key) ==
                                                   "auto");
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

std::optional<std::string> first_use() {
  const std::lock_guard lock(first_use_mutex);
  if (first_use_text.empty()) return std::nullopt;
  return first_use_text;
}

} // namespace chameleon::backend
