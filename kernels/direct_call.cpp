#include "kernels/direct_call.h"

#include <string>
#include <type_traits>

#include <ATen/core/jit_type.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "backend/torch/autocast.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/adoption.h"
#include "kernels/op_token.h"

namespace chameleon::kernels {

bool DirectCall::add(const at::Tensor& outer) noexcept {
  const c10::TensorImpl& impl = *outer.unsafeGetTensorImpl();
  if (count_ == kMaxOperands || !is_plain(impl)) return false;
  memory::Block* block =
      backend::block_of(*impl.unsafe_storage().unsafeGetStorageImpl());
  if (block == nullptr) return false;
  for (std::size_t i = 0; i < count_; ++i) {
    if (operands_[i].block == block) return false;
  }
  operands_[count_] = {block, memory::Access::kRead};
  outers_[count_] = &outer;
  ++count_;
  return true;
}

void DirectCall::begin(const OpPlan& plan) {
  const c10::DeviceIndex index = outers_[0]->device().index();
  device_ = &backend::context(index, plan.name);
  profiler::TokenHasher token(plan.number);
  for (std::size_t i = 0; i < count_; ++i) {
    add_to_token(token, *outers_[i]->unsafeGetTensorImpl());
  }
  const memory::OpIdentity identity{plan.number, token.token()};
  backend::throw_if(pager().begin(call_, backend::current_stream(index),
                                  {operands_.data(), count_}, &plan.memory,
                                  plan.name, plan.mayRetry(), &identity));
  held_ = true;
  shells_ = &shells_of_thread();
  for (std::size_t i = 0; i < count_; ++i) {
    twins_[i] = take_single_twin(*shells_, *outers_[i]->unsafeGetTensorImpl(),
                                 operands_[i].block->device_address);
  }
}

at::Tensor DirectCall::finish(at::Tensor native) {
  c10::StorageImpl* storage = native.storage().unsafeGetStorageImpl();
  const c10::DeviceIndex index = device_->index;
  for (std::size_t i = 0; i < count_; ++i) {
    if (twins_[i].storage().unsafeGetStorageImpl() != storage) continue;
    return at::Tensor(make_outer(*native.unsafeGetTensorImpl(),
                                 outers_[i]->storage(),
                                 c10::Device(backend::kChameleon, index)));
  }
  at::Tensor result = Adoption{pager(), call_, index}.tensor(std::move(native));
  sample_memory(*device_);
  return result;
}

DirectCall::~DirectCall() {
  for (std::size_t i = 0; i < count_; ++i) {
    if (twins_[i].defined())
      give_back_single_twin(*shells_, std::move(twins_[i]));
  }
  if (held_) pager().end(call_);
}

namespace {

template <typename Argument>
inline constexpr bool kIsTensor = std::is_same_v<Argument, const at::Tensor&>;

template <typename Signature>
class DirectKernel;

// Boxed callers reach it through the dispatcher's own unboxing.
template <typename... Arguments>
class DirectKernel<at::Tensor(Arguments...)> {
 public:
  DirectKernel(const c10::OperatorHandle& op, const OpPlan* plan)
      : op_(op), typed_(op.typed<at::Tensor(Arguments...)>()), plan_(plan) {}

  at::Tensor operator()(Arguments... arguments) const {
    std::optional<at::Tensor> result = direct(arguments...);
    if (result) [[likely]]
      return *std::move(result);
    torch::jit::Stack stack;
    torch::jit::push(stack, arguments...);
    call_native(*plan_, op_, &stack);
    return torch::jit::pop(stack).toTensor();
  }

 private:
  // Nothing: not for the short way, or out of memory inside the kernel.
  std::optional<at::Tensor> direct(Arguments... arguments) const {
    if (!backend::target().holds_data) [[unlikely]]
      return std::nullopt; // the general way keeps the time
    DirectCall call;
    if (!(add<Arguments>(call, arguments) && ...)) return std::nullopt;
    call.begin(*plan_);
    return run(call, std::index_sequence_for<Arguments...>(), arguments...);
  }

  template <std::size_t... I>
  std::optional<at::Tensor> run(DirectCall& call, std::index_sequence<I...>,
                                Arguments... arguments) const {
    const c10::impl::ExcludeDispatchKeyGuard below(keys_above_kernels());
    const backend::TargetAutocast autocast;
    const backend::InKernelScope scope(&call.pager(), &call.call());
    try {
      at::Tensor native =
          typed_.redispatch(backend::target().dispatch_key,
                            forward<I, Arguments>(call, arguments)...);
      scope.throwIfFailed();
      if (!native.defined() || native.layout() != c10::kStrided) {
        return std::nullopt; // as rare as it is odd: run it again, in general
      }
      return call.finish(std::move(native));
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
  }

  template <typename Argument>
  static bool add(DirectCall& call, Argument argument) {
    if constexpr (kIsTensor<Argument>) {
      return call.add(argument);
    } else {
      return true;
    }
  }

  // Argument number I, tensors replaced by their twins.
  template <std::size_t I, typename Argument>
  static decltype(auto) forward(DirectCall& call, Argument argument) {
    if constexpr (kIsTensor<Argument>) {
      constexpr std::array<bool, sizeof...(Arguments)> is_tensor{
          kIsTensor<Arguments>...};
      constexpr std::size_t position = [&] {
        std::size_t before = 0;
        for (std::size_t i = 0; i < I; ++i) before += is_tensor[i] ? 1 : 0;
        return before;
      }();
      return call.twin(position);
    } else {
      return static_cast<Argument>(argument);
    }
  }

  c10::OperatorHandle op_;
  c10::TypedOperatorHandle<at::Tensor(Arguments...)> typed_;
  const OpPlan* plan_;
};

using Tensor = const at::Tensor&;
using Scalar = const at::Scalar&;

template <typename Signature>
void install(torch::Library& library, const char* name,
             const c10::OperatorHandle& op, const OpPlan* plan) {
  library.impl(name, torch::CppFunction(DirectKernel<Signature>(op, plan)));
}

struct Row {
  std::string_view types; // of the schema, as type_text() spells them
  void (*install)(torch::Library&, const char*, const c10::OperatorHandle&,
                  const OpPlan*);
};

constexpr Row kSignatures[] = {
    {"Tensor", &install<at::Tensor(Tensor)>},
    {"Tensor,Scalar", &install<at::Tensor(Tensor, Scalar)>},
    {"Tensor,Tensor", &install<at::Tensor(Tensor, Tensor)>},
    {"Tensor,Tensor,Scalar", &install<at::Tensor(Tensor, Tensor, Scalar)>},
    {"Tensor,Tensor,Tensor", &install<at::Tensor(Tensor, Tensor, Tensor)>},
    {"Tensor,Tensor,Tensor,Scalar",
     &install<at::Tensor(Tensor, Tensor, Tensor, Scalar)>},
    {"Tensor,Tensor,Tensor,Scalar,Scalar",
     &install<at::Tensor(Tensor, Tensor, Tensor, Scalar, Scalar)>},
};

std::string type_text(const c10::FunctionSchema& schema) {
  std::string text;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!text.empty()) text += ',';
    const c10::TypePtr& type = argument.real_type();
    text += type->kind() == c10::TypeKind::NumberType ? "Scalar" : type->str();
  }
  return text;
}

} // namespace

bool register_direct(torch::Library& library, const char* name,
                     const c10::OperatorHandle& op, const OpPlan* plan) {
  if (plan->writes || plan->random || plan->results.size() != 1 ||
      plan->results[0].kind != ResultKind::kTensor ||
      plan->results[0].stays_on_cpu || plan->results[0].written_argument >= 0) {
    return false;
  }
  const std::string types = type_text(op.schema());
  for (const Row& row : kSignatures) {
    if (row.types != types) continue;
    row.install(library, name, op, plan);
    return true;
  }
  return false;
}

} // namespace chameleon::kernels
