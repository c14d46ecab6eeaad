// List ops in chunks. torch.optim hands the whole optimizer state to one
// `_foreach_*` or `_fused_*` call; element i of each list depends on elements
// i of the others only, so the call may run as several calls over slices, and
// the bytes that must be resident at once stay bounded.
//
// Thread safety: each call belongs to the thread that makes it.
#pragma once

#include <span>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "backend/torch/device.h"
#include "kernels/op_traits.h"
#include "memory/pager_call.h"

namespace chameleon::kernels {

// Operand bytes of a chunk, at most, unless it is one element.
std::size_t chunk_bytes_of(const backend::DeviceContext& device);

// Elements [first, end) of a list.
c10::IValue slice_of(const c10::IValue& list, std::size_t first,
                     std::size_t end);

// True: more than a chunk's bytes.
bool needs_chunks(const backend::DeviceContext& device,
                  std::span<const memory::Operand> operands);

// Runs `op` in chunks of at most budget / 8 operand bytes (at least one
// element each) and leaves its results on the stack. `_foreach_*` lists with
// elements on several devices run element by element, as on CUDA. False: one
// chunk is enough, or the lists do not match (native says what is wrong with
// them); nothing was done.
bool run_in_chunks(const OpTraits& traits, const c10::OperatorHandle& op,
                   torch::jit::Stack& stack);

} // namespace chameleon::kernels
