// One op call, straight through: find the operands, pin them, run the native
// kernel on alias tensors, adopt what it made, unpin. A call knows its op
// traits, its pins and its alias tensors, and nothing else.
//
// Tests: conformance.
//
// Thread safety: belongs to the thread of its call.
#pragma once

#include <span>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels {

// Runs `op` with its arguments on top of `stack` and leaves its results there.
// Throws what the native kernel throws, OutOfMemoryError where the operands do
// not fit, RuntimeError where devices mix that CUDA would not mix. `started`
// becomes true when the kernel starts: before that nothing has changed. With it
// an op that writes its operands can be held back (memory::OpRequest).
void call_native(const OpTraits& traits, const c10::OperatorHandle& op,
                 torch::jit::Stack* stack, bool* started = nullptr);

// The same for an op whose `call` ran out of memory inside the kernel and has
// ended: it goes on with what that remembers, and the profiler sees one op.
// REQUIRES: call.worthRetrying().
void retry_native(const OpTraits& traits, const c10::OperatorHandle& op,
                  torch::jit::Stack& stack, memory::Call& call);

// The same for an op that runs again (recorded_op.h). Its results are blocks of
// nobody's yet (memory::OpRequest::rerun).
void rerun_native(const OpTraits& traits, const c10::OperatorHandle& op,
                  torch::jit::Stack* stack);

// An error that PyTorch heard of from a GPU, maybe of an op before this one:
// says where it came to light. The runtime learns it too, so that later calls
// say no more than that it was told.
[[gnu::cold]] void report_late_error(backend::DeviceContext& device,
                                     std::string_view op,
                                     c10::AcceleratorError& error);

// What native kernels run below: autograd and the target's autocast have taken
// place on the outer tensors.
inline constexpr c10::DispatchKeySet kKeysAboveKernels =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet(c10::DispatchKey::AutocastCPU);

// There while it lives. As c10's guard for excluding keys, inline.
class BelowAutograd {
 public:
  explicit BelowAutograd(c10::impl::PODLocalDispatchKeySet& keys =
                             c10::impl::raw_local_dispatch_key_set) noexcept
      : keys_(keys), before_(keys.excluded_) {
    keys_.set_excluded(keys_.excluded() | kKeysAboveKernels);
  }
  ~BelowAutograd() { keys_.excluded_ = before_; }
  BelowAutograd(const BelowAutograd&) = delete;
  BelowAutograd& operator=(const BelowAutograd&) = delete;

  c10::DispatchKeySet excluded() const noexcept { return keys_.excluded(); }

 private:
  c10::impl::PODLocalDispatchKeySet& keys_; // the thread's
  std::uint64_t before_;
};

// Where every op call enters the pager, direct or not; on success pager.end()
// is the caller's to call. Throws OutOfMemoryError; nothing changed then.
// `token` of `caller` is what the profiler knows the call by, `quick` its quick
// half.
inline void pin(const OpTraits& traits, backend::DeviceContext& device,
                runtime::Stream stream, memory::Call& call,
                std::span<const memory::Operand> operands,
                profiler::QuickToken quick,
                profiler::Token (*token)(const void* caller),
                const void* caller,
                memory::Algorithm algorithm = memory::Algorithm::kAny,
                bool can_be_held_back = false) {
  const memory::OpIdentity identity{traits.number, quick, token, caller};
  backend::throw_if(
      device.pager->begin(call, {.kind = traits.kind,
                                 .stream = stream,
                                 .operands = operands,
                                 .identity = &identity,
                                 .algorithm = algorithm,
                                 .can_be_held_back = can_be_held_back}));
}

// A point of the memory history, when one is being recorded.
void add_memory_sample(backend::DeviceContext& device);
inline void sample_memory(backend::DeviceContext& device) {
  if (device.history->recording()) [[unlikely]]
    add_memory_sample(device);
}

} // namespace chameleon::kernels
