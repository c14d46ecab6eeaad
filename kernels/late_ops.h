// Ops of other libraries (torchvision, C++ extensions, torch.library): their
// schemas and kernels come, change and go while the process runs.
//
// The backend fallback runs them: their traits are made at the first call, and
// forgotten when the schema is taken back. It is what PyTorch finds for an op
// that has device kernels and nothing else. An op with a device-agnostic kernel
// beside its CPU or CUDA kernel would find the former; redirect_new_kernels()
// registers the same code for it, so that the target's kernel runs, as it does
// natively.
//
//  op has a kernel for                        | runs on chameleon tensors
//  the target (CPU, CUDA)                     | that kernel, on alias tensors
//  the target, and CompositeExplicitAutograd  | that kernel, on alias tensors
//  CompositeExplicitAutograd                  | that one, on the tensors
//  CompositeImplicitAutograd, whatever else   | that one, on the tensors
//  none of these                              | one sentence
//
// Tests: test_custom_ops.py, test_custom_ops_in_cpp.py.
//
// Thread safety: any thread; two locks of its own.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "kernels/op_traits.h"

namespace chameleon::kernels {

// The fallback and the listener; called once, when the extension is loaded.
void register_late_ops();

// Looks for device kernels that were registered since, of one op ("ns::op" or
// "ns::op.overload") or of all, and lets go of those whose op is gone.
// Must not be called from a registration.
void redirect_new_kernel(const std::string& op);
void redirect_new_kernels();

// The traits of an op that redirect.h has none for; made at the first call.
std::shared_ptr<const OpTraits> traits_of(const c10::OperatorHandle& op);

// Set when a schema was registered: its kernels follow.
extern std::atomic<bool> schemas_are_new;

inline void redirect_new_kernels_if_any() {
  if (schemas_are_new.load(std::memory_order_relaxed)) [[unlikely]]
    redirect_new_kernels();
}

} // namespace chameleon::kernels
