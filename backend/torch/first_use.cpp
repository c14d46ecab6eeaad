#include "backend/torch/first_use.h"

#include <atomic>
#include <mutex>
#include <pthread.h>
#include <string_view>

#include "backend/runtime/options.h"
#include "backend/runtime/physical_device.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_options.h"
#include "backend/torch/error.h"
#include "backend/torch/generator.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/native_cuda.h"
#include "backend/torch/stream.h"

namespace chameleon::backend {

namespace {

std::mutex first_use_mutex; // guards who writes contexts, and what is below
std::string first_use_text;

std::atomic<FirstUseHook> first_use_hook{nullptr};

} // namespace

namespace detail {
namespace {

DeviceContext& make_context(c10::DeviceIndex index, std::string_view what) {
  refuse_after_fork();
  index = resolve_index(index);
  // Before the lock: it takes the GIL.
  if (!is_used() && chooses_cuda()) native_cuda()->initialise();
  const std::lock_guard lock(first_use_mutex);
  if (DeviceContext* const there = context_if_used(index)) return *there;

  if (!is_used()) ranks = value_or_throw(runtime::read_local_ranks());
  auto device = value_or_throw(runtime::make_runtime(index, ranks));
  const std::string policy =
      runtime::option_text("policy").value_or("forecast");
  auto pager = value_or_throw(memory::Pager::create(
      *device, limits_from_options(*device, index), policy, index));
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

std::optional<std::string> first_use() {
  const std::lock_guard lock(first_use_mutex);
  if (first_use_text.empty()) return std::nullopt;
  return first_use_text;
}

} // namespace chameleon::backend
