#include "kernels/simulated/simulated_call.h"

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "kernels/simulated/op_costs.h"
#include "kernels/simulated/shape_functions.h"
#include "kernels/simulated/workspaces.h"

namespace chameleon::kernels::simulated {

namespace {

// Not PyTorch's fallback, which only raises.
bool has_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (const DispatchKey key :
       {DispatchKey::Meta, DispatchKey::CompositeExplicitAutograd,
        DispatchKey::CompositeExplicitAutogradNonFunctional,
        DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

} // namespace

void run_kernel(const OpTraits& traits, const c10::OperatorHandle& op,
                torch::jit::Stack& stack) {
  if (const ShapeFunction shape = find_shape_function(traits.name)) {
    shape(traits, stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_meta_kernel(op), traits.name,
      ": a simulated device needs to know the shape of its result, and PyTorch "
      "has no Meta kernel for it; run it on CPU tensors instead");
  op.redispatchBoxed(backend::target().dispatch_key, &stack);
}

void use_workspace(const CallView& call, memory::Pager& pager,
                   memory::Call& running) {
  if (const std::size_t bytes = workspace_bytes(call)) {
    pager.free(&running,
               backend::value_or_throw(pager.allocate(running, bytes)));
  }
}

void charge(const CallView& call, runtime::DeviceRuntime& device,
            runtime::Stream stream) {
  backend::throw_if(device.computed(stream, cost_of(call)));
}

} // namespace chameleon::kernels::simulated
