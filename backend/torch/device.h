// The devices of this process: how many there are, which one is current, and
// the pager behind each. Everything that needs a pager asks here; the first
// to ask fixes the physical device ("first use").
//
// Tests: test_device_module.py.
//
// Thread safety: all functions may be called from any thread. Singletons are
// leaked on purpose: storages may die after interpreter finalisation.
#pragma once

#include <array>
#include <atomic>
#include <string_view>

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include "backend/runtime/device_runtime.h"
#include "backend/runtime/local_ranks.h"
#include "memory/pager.h"
#include "profiler/memory_history.h"

namespace chameleon::backend {

inline constexpr c10::DeviceType kChameleon = c10::DeviceType::PrivateUse1;

// What the device is made of, fixed at first use.
struct Target {
  c10::DeviceType type;             // where native kernels run: CPU, CUDA, Meta
  c10::DispatchKeySet dispatch_key; // the slot they are registered in
  bool holds_data = true;   // false: Meta kernels, on bytes that do not exist
  bool models_time = false; // ops tell the runtime what they cost
};

// One device index. Never destroyed.
struct DeviceContext {
  c10::DeviceIndex index;
  runtime::DeviceRuntime* runtime;
  memory::Pager* pager;
  profiler::MemoryHistory* history;
};

inline constexpr std::size_t kMaxDevices = 64;

namespace detail {
extern std::array<std::atomic<DeviceContext*>, kMaxDevices> contexts; // in use
extern std::atomic<bool> used;                    // one of them
extern std::atomic<bool> forked;                  // since then
extern std::atomic<c10::DeviceIndex> known_count; // 0: there was no use yet
extern Target target;                             // valid once in use
extern runtime::LocalRanks ranks;                 // valid once in use
// first_use.cpp
DeviceContext& context_slow(c10::DeviceIndex index, std::string_view what);
} // namespace detail

// Number of devices, as the options and the launcher's variables now in force
// or the first use have it; variables that make no sense say nothing here, and
// why in the message of the first use. Not a use, though "auto" looks for a
// driver.
c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device() noexcept;
// Throws when there is no such device.
void set_current_device(c10::DeviceIndex index);
// An index of -1 means the current device.
c10::DeviceIndex resolve_index(c10::DeviceIndex index);

// Null: there is no such device, or it was not used yet, or in a process that
// this one was forked from.
inline DeviceContext* context_if_used(c10::DeviceIndex index) noexcept {
  const auto slot = static_cast<std::size_t>(index); // -1 is too many, too
  return slot < kMaxDevices
             ? detail::contexts[slot].load(std::memory_order_acquire)
             : nullptr;
}
// The context of a device; `what` names this use if it is the first one.
inline DeviceContext& context(c10::DeviceIndex index, std::string_view what) {
  if (DeviceContext* const used = context_if_used(index)) [[likely]]
    return *used;
  return detail::context_slow(index, what);
}
// The context of the device whose arena this address lies in; null: of none.
DeviceContext* context_of(const void* address) noexcept;

// REQUIRES: the device was used.
inline const Target& target() noexcept { return detail::target; }

// The native device under chameleon:`index`.
inline c10::Device target_device(c10::DeviceIndex index) noexcept {
  const c10::DeviceType type = target().type;
  return {type, type == c10::DeviceType::CUDA ? index : c10::DeviceIndex{-1}};
}

// The same type before the first use too: what it would be by the options now
// in force. Not a use.
c10::DeviceType likely_target_type();

// By the options now in force the device is, or would be, on CUDA. Not a use,
// though "auto" looks for a driver.
bool chooses_cuda();
// The same where the answer binds: where it is yes, `use` is a use.
bool targets_cuda(std::string_view use);

// Called where a thread meets the device or a stream for the first time: lets
// the target's libraries take what they keep for it. Cheap when called again.
void prepare_thread(c10::DeviceIndex index) noexcept;

// How many processes share this machine, fixed at first use. Not a use. Throws
// ValueError where the launcher's variables make no sense.
runtime::LocalRanks local_ranks();

bool is_used() noexcept;
// The process was forked after the device was used: only the parent may use it.
bool is_in_bad_fork() noexcept;
void refuse_after_fork(); // throws there

} // namespace chameleon::backend
