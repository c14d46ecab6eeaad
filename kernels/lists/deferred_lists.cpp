#include "kernels/lists/deferred_lists.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/in_kernel_allocator.h"
#include "backend/torch/storage.h"
#include "kernels/lists/deferral_rules.h"
#include "kernels/lists/list_ops.h"
#include "kernels/lists/list_run.h"

namespace chameleon::kernels {
namespace {

using torch::jit::Stack;

// A program may begin runs for ever of which it never uses the bytes.
constexpr std::size_t kMaxRuns = 64;

memory::WaitHooks wait_hooks;

// No two runs use one storage, so their order does not matter.
struct Pending {
  std::mutex mutex;
  std::vector<std::unique_ptr<ListRun>> runs;  // the last one takes ops
  std::thread::id owner;                       // who recorded the last one
  std::vector<std::unique_ptr<ListRun>> ended; // die without the lock
  // Of each device, when a run was last begun on it: more live bytes than that
  // are near the limit.
  std::array<std::atomic<std::size_t>, backend::kMaxDevices> most_live_bytes{};
};

// Leaked: runs may be left when the process exits.
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
    // Whoever has it may wait for room that the calling kernel's pins take.
    TORCH_CHECK(
        !backend::InKernelScope::isActive(),
        "torch_chameleon: a kernel uses a tensor that is not among its "
        "operands while another thread runs deferred list ops on it; give "
        "the op that tensor as an argument, or use it once before the op");
    void* const state =
        wait_hooks.before == nullptr ? nullptr : wait_hooks.before();
    lock_.lock();
    if (wait_hooks.after != nullptr) wait_hooks.after(state);
  }
  // What dies with a run may call Python, and that use what is deferred.
  ~Lock() {
    const auto ended = std::exchange(pending().ended, {});
    lock_.unlock();
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
};

// REQUIRES: the lock.
void forget(ListRun& run) {
  run.end();
  auto& runs = pending().runs;
  const auto it = std::ranges::find(runs, &run, &std::unique_ptr<ListRun>::get);
  pending().ended.push_back(std::move(*it));
  runs.erase(it);
  backend::set_work_deferred(!runs.empty());
}

// What is on `storage`; null: all of the run. REQUIRES: the lock.
void execute(ListRun& run, const c10::StorageImpl* storage) {
  struct Executing {
    Executing() { is_executing = true; }
    ~Executing() { is_executing = false; }
  } const executing;
  try {
    if (storage != nullptr) {
      run.executeOn(*storage);
    } else {
      run.execute();
    }
  } catch (c10::Error& error) {
    if (run.isBroken()) {
      forget(run);
      error.add_context(
          "The op was deferred and executed later, in chunks; the list ops "
          "after it did not take place.");
    } else {
      error.add_context(
          "The op was deferred to be executed here. Nothing is lost: it is "
          "tried again before the next op on its tensors.");
    }
    throw;
  } catch (...) {
    // Of a kernel in Python: its own exception, to which nothing can be added.
    if (run.isBroken()) {
      forget(run);
      TORCH_WARN(
          "torch_chameleon: a list op was deferred, executed later in chunks, "
          "and failed; the list ops after it did not take place");
    }
    throw;
  }
  if (run.isDone()) forget(run);
}

// The only one that uses `storage`; null: none. REQUIRES: the lock.
ListRun* run_on(const c10::StorageImpl& storage) {
  for (const auto& run : pending().runs) {
    if (run->uses(storage)) return run.get();
  }
  return nullptr;
}

// REQUIRES: the lock. But for `keeps`, which has `storage` as an operand.
void execute_on(const c10::StorageImpl& storage, const ListRun* keeps) {
  ListRun* const run = run_on(storage);
  if (run != nullptr && run != keeps) execute(*run, &storage);
}

// REQUIRES: the lock.
void execute_all() {
  while (!pending().runs.empty()) execute(*pending().runs.front(), nullptr);
}

bool may_wait() { return !is_executing && !backend::InKernelScope::isActive(); }

// What was deferred before a fork is the parent's.
void finish() {
  if (!may_wait() || backend::is_in_bad_fork()) return;
  const Lock lock;
  execute_all();
}

bool has_deferred_op(const c10::StorageImpl& storage) {
  const memory::Block* const block = backend::block_of(storage);
  // A result that was deferred itself has no block yet.
  return block == nullptr
             ? storage.nbytes() > 0
             : block->has_deferred_op.load(std::memory_order_acquire);
}

// No lock for what is not among the operands.
void finish_on(const c10::StorageImpl& storage) {
  if (!has_deferred_op(storage)) return;
  if (is_executing || backend::is_in_bad_fork()) return;
  const Lock lock;
  execute_on(storage, nullptr);
}

void take_bytes(c10::StorageImpl& storage) {
  if (!has_deferred_op(storage)) return;
  if (is_executing || backend::is_in_bad_fork()) return;
  const Lock lock;
  if (ListRun* const run = run_on(storage)) run->takeBytes(storage);
}

bool goes_with(const ListRun& run, const backend::DeviceContext& device,
               std::size_t length) {
  return pending().owner == std::this_thread::get_id() &&
         &run.device() == &device && run.length() == length &&
         run.isOnStreamOfThread() && run.takesOps();
}

// What other runs than `keeps` do to the op's operands comes before it.
void execute_operands(const OpTraits& traits, const Stack& stack,
                      const ListRun* keeps) {
  const auto before = [&](const c10::IValue& value) {
    execute_on(*value.toTensor().storage().unsafeGetStorageImpl(), keeps);
  };
  const std::size_t base = stack.size() - traits.argument_count;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[base + argument.index];
    if (value.isTensor()) {
      before(value);
    } else if (argument.kind == ArgumentKind::kTensorList) {
      for (const c10::IValue& element : value.toListRef()) before(element);
    }
  }
}

// Room for a chunk is left below what can be live at once.
std::size_t most_live_bytes(const backend::DeviceContext& device) {
  const memory::Limits limits = device.pager->budgets().limits();
  const std::size_t most =
      std::min(limits.hbm_budget_bytes + limits.host_budget_bytes,
               memory::logical_limit_bytes(limits, limits.hbm_budget_bytes));
  const std::size_t chunk_bytes = chunk_bytes_of(device);
  return most - std::min(most, chunk_bytes);
}

void finish_if_full(const backend::DeviceContext& device) {
  const std::size_t most_live_bytes =
      pending().most_live_bytes[static_cast<std::size_t>(device.index)].load(
          std::memory_order_relaxed);
  if (most_live_bytes > 0 &&
      device.pager->levels().logical_rounded_bytes > most_live_bytes) {
    finish();
  }
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
  ListRun* const last = now.runs.empty() ? nullptr : now.runs.back().get();
  const bool goes = last != nullptr && goes_with(*last, *device, length);
  execute_operands(traits, stack, goes ? last : nullptr);
  if (goes) {
    if (last->add(traits, op, stack)) return true;
    execute(*last, nullptr);
  }
  if (now.runs.size() == kMaxRuns) execute(*now.runs.front(), nullptr);
  auto run = std::make_unique<ListRun>(*device, length);
  if (!run->add(traits, op, stack)) return false;
  now.runs.push_back(std::move(run));
  now.owner = std::this_thread::get_id();
  now.most_live_bytes[static_cast<std::size_t>(device->index)] =
      most_live_bytes(*device);
  backend::set_work_deferred(true);
  return true;
}

std::size_t deferred_op_count() {
  const Lock lock;
  std::size_t count = 0;
  for (const auto& run : pending().runs) count += run->opCount();
  return count;
}

void register_deferred_lists(memory::WaitHooks hooks) {
  wait_hooks = hooks;
  backend::set_deferred_work(
      {&finish, &finish_on, &take_bytes, &finish_if_full});
}

} // namespace chameleon::kernels
