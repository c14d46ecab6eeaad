// List ops that wait for each other, and for their bytes. What torch.optim
// issues by default is a dozen `_foreach_*` ops in a row over the whole
// optimizer state: one after another, each sweeps through all of it, and where
// it does not fit, moves all of it. So, while the device is short of memory,
// such ops are only recorded (list_run.h), and executed together, chunk by
// chunk through all of them.
//
// When a chunk is executed: before anybody reads or writes one of its storages
// (finish_deferred_work_on() of backend/torch). So an optimizer's step goes on
// through the next forward pass: each parameter is updated when the model
// comes to it, and what its update needs moves beside the model's own work.
// All of it: before anybody waits for the device, records an event, asks for
// statistics or changes a limit (finish_deferred_work()); where so much is live
// that ops may find no room. Views, metadata, the death of
// tensors, new ones and the end of a step do not matter to it.
//
// What the caller sees is what he would have seen: version counters, results
// and their metadata are there when the call returns; an op that could fail
// for its arguments is not deferred, so exceptions come from the op that is at
// fault, after the effects of those before it. Five things differ.
//   - A result's data_ptr(), a logical address that nobody can read from, is
//     another one after the run was executed.
//   - Gradients that the program drops after the step are freed when their
//     parameters are updated; so are bytes of a storage that is resized to 0.
//   - Running out of memory, and a device that fails, are reported by whoever
//     needs the bytes; statistics and options report nothing. The message names
//     the list op. Where memory is short, the op was first tried on fewer and
//     fewer indices at a time. What was executed stays executed; what was not
//     stays deferred, and the next op on it tries it again. Each op of the run
//     is admitted on its own, each index needs at most half the budget, and no
//     op begins that cannot be pinned. So the run fails only where others hold
//     pins, the host is full or the device fails. Should a kernel that writes
//     fail on the inside, the rest of the run is dropped.
//   - A thread that is inside a kernel does not record: such an op runs at
//     once. It executes only what is on a storage that it uses.
//   - Where an operand is pinned, as in a block of torch_chameleon.resident(),
//     or in inference mode, nothing is deferred.
//
// Tests: test_deferred_lists.py, test_deferred_updates.py.
//
// Thread safety: any thread; one lock, and one list of runs for the process.
// Whoever comes to the bytes executes what any thread recorded, on the
// recorder's stream.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "backend/torch/device.h"
#include "kernels/op_traits.h"
#include "memory/call/admission.h"

namespace chameleon::kernels {

// True: `op` is deferred, and its results are on the stack. False: it is to be
// run as usual. Throws what finish_deferred_work() throws.
bool defer_list_op(const OpTraits& traits, const c10::OperatorHandle& op,
                   torch::jit::Stack& stack);

// How many are deferred just now. For tests.
std::size_t deferred_op_count();

// Once, when the extension is loaded. `hooks`: around waits for another
// thread that executes.
void register_deferred_lists(memory::WaitHooks hooks);

} // namespace chameleon::kernels
