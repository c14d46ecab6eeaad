// List ops in chunks. torch.optim hands the whole optimizer state to one
// `_foreach_*` or `_fused_*` call; element i of each list depends on elements
// i of the others only, so the call may run as several calls over slices, and
// the bytes that must be resident at once stay bounded. Where all fits, the
// call runs as it is: the steps are those of a device without a limit.
//
// Thread safety: each call belongs to the thread that makes it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "backend/torch/device.h"
#include "kernels/op_traits.h"
#include "memory/pager.h"

namespace chameleon::kernels {

// True: `visit` said so of each element of the op's lists of tensors; where it
// says false, the rest is not looked at.
template <typename Visit>
bool each_listed(const OpTraits& traits, const torch::jit::Stack& stack,
                 Visit visit) {
  const std::size_t base = stack.size() - traits.argument_count;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[base + argument.index];
    if (argument.kind != ArgumentKind::kTensorList || !value.isList()) continue;
    for (const c10::IValue& element : value.toListRef()) {
      if (!visit(element)) return false;
    }
  }
  return true;
}

// Operand bytes of a chunk, at most, unless it is one element.
std::size_t chunk_bytes_of(const backend::DeviceContext& device);

// Elements [first, end) of a list.
c10::IValue slice_of(const c10::IValue& list, std::size_t first,
                     std::size_t end);

// A chunk is this part of the budget.
inline constexpr std::size_t kChunksPerBudget = 8;

// HBM is short: more than a chunk has left it, or some must for so many bytes
// more. Else list ops run at once and whole, as any op does: what little is on
// the host, perhaps for good, is not worth a step of other ops.
inline bool is_short(const memory::Pager& pager, std::size_t more_bytes) {
  const auto levels = pager.levels();
  const std::size_t budget_bytes = pager.hbmBudget();
  const bool much_left =
      levels.host_bytes > 0 &&
      levels.resident_bytes + budget_bytes / kChunksPerBudget <
          levels.logical_rounded_bytes;
  return much_left || levels.logical_rounded_bytes + more_bytes > budget_bytes;
}

// Of what a list op makes beside what it writes: as much as its first list.
std::size_t result_bytes(const OpTraits& traits,
                         const torch::jit::Stack& stack);

// Where HBM is short, runs `op` in chunks of at most budget / 8 operand bytes
// (at least one element each) and leaves its results on the stack. `_foreach_*`
// lists with elements on several devices run element by element, as on CUDA.
// False: it may run as a whole, or the lists do not match (native says what is
// wrong with them); nothing was done.
bool run_in_chunks(const OpTraits& traits, const c10::OperatorHandle& op,
                   torch::jit::Stack& stack);

} // namespace chameleon::kernels
