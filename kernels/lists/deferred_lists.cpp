#include "kernels/lists/deferred_lists.h"

#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/stream.h"
#include "kernels/lists/deferral_rules.h"
#include "kernels/lists/list_ops.h"
#include "kernels/lists/list_run.h"

namespace chameleon::kernels {
namespace {

using torch::jit::Stack;

memory::WaitHooks wait_hooks;

struct Pending {
  std::mutex mutex;
  std::unique_ptr<ListRun> run;
  std::thread::id owner; // who records
  // A step ends after the run, as seen on this stream.
  std::optional<runtime::Stream> step_ends;
};

// Leaked: a run may be left when the process exits.
Pending& pending() {
  static auto* const instance = new Pending;
  return *instance;
}

// Executing is the calling thread: its ops must not wait for themselves.
thread_local bool is_executing = false;

// First of all locks. Whoever has it may need the GIL, so nobody waits for it
// with the GIL.
class Lock {
 public:
  Lock() : lock_(pending().mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    void* const state =
        wait_hooks.before == nullptr ? nullptr : wait_hooks.before();
    lock_.lock();
    if (wait_hooks.after != nullptr) wait_hooks.after(state);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

void drop_run() {
  Pending& now = pending();
  memory::Pager& pager = *now.run->device().pager;
  now.run.reset();
  backend::set_work_deferred(false);
  if (const auto stream = std::exchange(now.step_ends, {})) {
    pager.meter().step(*stream);
  }
}

// REQUIRES: the lock.
void execute_run() {
  ListRun* const run = pending().run.get();
  if (run == nullptr) return;
  struct Executing {
    Executing() { is_executing = true; }
    ~Executing() { is_executing = false; }
  } const executing;
  try {
    run->execute();
  } catch (c10::Error& error) {
    if (run->isBroken()) {
      drop_run();
      error.add_context(
          "The op was deferred and executed later, in chunks; the list ops "
          "after it did not take place.");
    } else {
      error.add_context(
          "The op was deferred to be executed here. Nothing is lost: it is "
          "tried again before the next op.");
    }
    throw;
  } catch (...) {
    // Of a kernel in Python: its own exception, to which nothing can be added.
    if (run->isBroken()) {
      drop_run();
      TORCH_WARN(
          "torch_chameleon: a list op was deferred, executed later in chunks, "
          "and failed; the list ops after it did not take place");
    }
    throw;
  }
  drop_run();
}

bool may_wait() { return !is_executing && !backend::InKernelScope::isActive(); }

void finish() {
  // What was deferred before a fork is the parent's.
  if (!may_wait() || backend::is_in_bad_fork()) return;
  const Lock lock;
  execute_run();
}

bool goes_with(const ListRun& run, const backend::DeviceContext& device,
               std::size_t length) {
  return pending().owner == std::this_thread::get_id() &&
         !pending().step_ends && &run.device() == &device &&
         run.length() == length && run.isOnStreamOfThread() &&
         run.opCount() < ListRun::kMaxOps;
}

} // namespace

bool defer_list_op(const OpTraits& traits, const c10::OperatorHandle& op,
                   Stack& stack) {
  backend::DeviceContext* const device = device_of_lists(traits, stack);
  if (device == nullptr) return false;
  // What is deferred takes no room yet: it says nothing of what is to come.
  if (!backend::has_deferred_work() &&
      !is_short(*device->pager, result_bytes(traits, stack))) {
    return false;
  }
  if (!may_wait() || !is_deferrable(traits, stack, *device)) return false;
  const std::size_t length = list_length(traits, stack);
  const Lock lock;
  Pending& now = pending();
  if (now.run && !goes_with(*now.run, *device, length)) execute_run();
  for (const bool first : {true, false}) {
    if (!now.run) {
      now.run = std::make_unique<ListRun>(*device, length);
      now.owner = std::this_thread::get_id();
    }
    if (now.run->add(traits, op, stack)) {
      backend::set_work_deferred(true);
      return true;
    }
    const bool was_new = now.run->opCount() == 0;
    execute_run(); // of no ops: nothing happens
    if (was_new || !first) break;
  }
  return false;
}

void end_step(const backend::DeviceContext& device) {
  const runtime::Stream stream = backend::current_stream(device.index);
  if (may_wait()) { // else what is deferred may be running just now
    const Lock lock;
    Pending& now = pending();
    if (now.run && &now.run->device() == &device) {
      now.step_ends = stream;
      return;
    }
  }
  device.pager->meter().step(stream);
}

std::size_t deferred_op_count() {
  const Lock lock;
  return pending().run ? pending().run->opCount() : 0;
}

void register_deferred_lists(memory::WaitHooks hooks) {
  wait_hooks = hooks;
  backend::set_deferred_work_finisher(&finish);
}

} // namespace chameleon::kernels
