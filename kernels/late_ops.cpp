#include "kernels/late_ops.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "backend/torch/device.h"
#include "kernels/op_call.h"
#include "kernels/op_set.h"
#include "kernels/op_traits.h"

namespace chameleon::kernels {

std::atomic<bool> schemas_are_new{false};

namespace {

using c10::DispatchKey;
using torch::jit::Stack;

// A slot that nobody fills: there the dispatcher holds the device-agnostic
// kernel of an op whose PrivateUse1 slot is ours.
constexpr auto kAgnosticSlot = DispatchKey::PrivateUse3;

struct LateOp {
  explicit LateOp(const c10::OperatorHandle& op);

  OpTraits traits;
  // Results that the schema calls views, with the argument they look at.
  std::vector<std::pair<std::size_t, std::size_t>> views;
};

LateOp::LateOp(const c10::OperatorHandle& op) : traits(op) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  for (std::size_t i = 0; i < returns.size(); ++i) {
    const auto* alias = returns[i].alias_info();
    if (alias == nullptr || alias->isWrite()) continue;
    for (std::size_t a = 0; a < arguments.size(); ++a) {
      const auto* other = arguments[a].alias_info();
      if (other != nullptr && *other == *alias) views.emplace_back(i, a);
    }
  }
}

// What is known about other libraries' ops. Two locks: `table_mutex` is also
// taken by the listener, which runs under the dispatcher's lock, so nobody
// holds it while calling the dispatcher; `scan_mutex` serialises those who do.
struct State {
  std::mutex scan_mutex;
  std::mutex table_mutex;
  std::unordered_map<c10::OperatorHandle, std::shared_ptr<const LateOp>> ops;
  std::unordered_map<c10::OperatorHandle, c10::RegistrationHandleRAII>
      redirects;
  std::vector<c10::RegistrationHandleRAII> dead; // dropped at the next scan
};

State& state() {
  static auto* instance = new State;
  return *instance;
}

std::shared_ptr<const LateOp> known(const c10::OperatorHandle& op) {
  State& all = state();
  const std::lock_guard lock(all.table_mutex);
  std::shared_ptr<const LateOp>& slot = all.ops[op];
  if (!slot) slot = std::make_shared<const LateOp>(op);
  return slot;
}

// The result as PyTorch's own views are: base, version counter and derivative
// shared with what it looks at.
at::Tensor as_view_of(const at::Tensor& base, const at::Tensor& result) {
  if (!base.defined() || !result.defined() ||
      base.scalar_type() != result.scalar_type() ||
      base.is_conj() != result.is_conj() || base.is_neg() != result.is_neg() ||
      !base.is_alias_of(result)) {
    return result;
  }
  return at::as_strided(base, result.sizes(), result.strides(),
                        result.storage_offset());
}

c10::IValue as_view_of(const at::Tensor& base, const c10::IValue& result) {
  if (result.isTensor()) return as_view_of(base, result.toTensor());
  if (!result.isTensorList()) return result;
  c10::List<at::Tensor> views;
  for (const at::Tensor& tensor : result.toTensorVector()) {
    views.push_back(as_view_of(base, tensor));
  }
  return views;
}

// In-place ops inside a kernel count the versions of alias tensors, which
// nobody sees.
void count_writes(const LateOp& op, const Stack& stack) {
  if (!op.traits.writes ||
      c10::impl::tls_is_dispatch_key_excluded(DispatchKey::ADInplaceOrView)) {
    return; // whoever excluded it has counted
  }
  const std::size_t first = stack.size() - op.traits.argument_count;
  const auto count = [](const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined() &&
        !value.toTensor().is_inference()) {
      value.toTensor().unsafeGetTensorImpl()->bump_version();
    }
  };
  for (const ArgumentTraits& argument : op.traits.arguments) {
    if (!argument.writes) continue;
    const c10::IValue& value = stack[first + argument.index];
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) count(element);
    } else {
      count(value);
    }
  }
}

void call_target(const c10::OperatorHandle& op, Stack& stack) {
  const std::shared_ptr<const LateOp> late = known(op);
  count_writes(*late, stack);
  if (late->views.empty()) return call_native(late->traits, op, &stack);

  const std::size_t first = stack.size() - late->traits.argument_count;
  std::vector<c10::IValue> bases;
  for (const auto& [result, argument] : late->views) {
    bases.push_back(stack[first + argument]);
  }
  call_native(late->traits, op, &stack);
  for (std::size_t i = 0; i < bases.size(); ++i) {
    c10::IValue& value = stack[first + late->views[i].first];
    if (bases[i].isTensor()) value = as_view_of(bases[i].toTensor(), value);
  }
}

// Above the kernels of other libraries: which of them, is asked at every call,
// because they come and go.
void call_late_op(const c10::OperatorHandle& op, c10::DispatchKeySet,
                  Stack* stack) {
  const DispatchKey target =
      backend::target().dispatch_key.highestPriorityTypeId();
  if (op.hasKernelForDispatchKey(target)) {
    if (!op.isKernelFallthroughKernel(target)) return call_target(op, *stack);
  } else if (op.hasComputedKernelForDispatchKey(kAgnosticSlot)) {
    return op.redispatchBoxed(c10::DispatchKeySet(kAgnosticSlot), stack);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), " has no kernel for ", target,
      ", which computes chameleon tensors here: register one for it with "
      "torch.library, or make the op of PyTorch's own ops");
}

class Listener final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {
    schemas_are_new.store(true, std::memory_order_relaxed);
  }
  void onOperatorDeregistered(const c10::OperatorHandle& op) override {
    State& all = state();
    const std::lock_guard lock(all.table_mutex);
    all.ops.erase(op); // calls in flight hold theirs
    if (const auto found = all.redirects.find(op);
        found != all.redirects.end()) {
      all.dead.push_back(std::move(found->second));
      all.redirects.erase(found);
    }
  }
};

bool has_agnostic_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(
             DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// REQUIRES: scan_mutex is held.
void drop_dead(State& all) {
  std::vector<c10::RegistrationHandleRAII> dead; // dies after the lock
  const std::lock_guard lock(all.table_mutex);
  dead.swap(all.dead);
}

// REQUIRES: scan_mutex is held.
void redirect_if_new(State& all, const c10::OperatorName& name) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchema(name);
  // Without a device-agnostic kernel the fallback is found.
  if (!op || !has_agnostic_kernel(*op) || !is_redirectable(*op)) return;
  if (!op->hasKernelForDispatchKey(DispatchKey::CPU) &&
      !op->hasKernelForDispatchKey(DispatchKey::CUDA)) {
    return;
  }
  c10::RegistrationHandleRAII handle = dispatcher.registerImpl(
      name, DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunction<&call_late_op>(), std::nullopt,
      nullptr, "chameleon: redirected after it was loaded");
  const std::lock_guard lock(all.table_mutex);
  all.redirects.emplace(*op, std::move(handle));
}

} // namespace

std::shared_ptr<const OpTraits> traits_of(const c10::OperatorHandle& op) {
  std::shared_ptr<const LateOp> late = known(op);
  const OpTraits* traits = &late->traits;
  return {std::move(late), traits};
}

void redirect_new_kernel(const std::string& op) {
  State& all = state();
  const std::lock_guard scan(all.scan_mutex);
  drop_dead(all);
  const std::size_t dot = op.find('.', op.find("::"));
  redirect_if_new(
      all, {op.substr(0, dot),
            dot == std::string::npos ? std::string() : op.substr(dot + 1)});
}

void redirect_new_kernels() {
  State& all = state();
  const std::lock_guard scan(all.scan_mutex);
  schemas_are_new.store(false, std::memory_order_relaxed);
  drop_dead(all);
  for (const auto key : {DispatchKey::CPU, DispatchKey::CUDA}) {
    for (const c10::OperatorName& name :
         c10::Dispatcher::singleton().getRegistrationsForDispatchKey(key)) {
      redirect_if_new(all, name);
    }
  }
}

void register_late_ops() {
  static auto* fallback = new torch::Library(
      torch::Library::IMPL, "_", DispatchKey::PrivateUse1, __FILE__, __LINE__);
  fallback->fallback(
      torch::CppFunction::makeFromBoxedFunction<&call_late_op>());
  static auto* listener = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Listener>()));
  (void)listener;
  redirect_new_kernels(); // of libraries that were loaded before
}

} // namespace chameleon::kernels
