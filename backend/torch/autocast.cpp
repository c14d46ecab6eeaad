// torch.autocast("chameleon"): CUDA's op lists where the target is CUDA, the
// CPU's where it is the CPU. Registration happens at import and the target is
// known at first use, so one boxed kernel an op has both policies and takes
// one at the call. What a policy does is torch's own (WrapFunction_ in
// ATen/autocast_mode.h); the arguments are walked here, boxed.
#include "backend/torch/autocast.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/autocast_mode.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "backend/torch/device.h"

namespace chameleon::backend {
namespace {

enum class Cast : std::uint8_t {
  kNone,        // not in the target's lists
  kLower,       // every operand to the autocast dtype
  kFloat,       // every operand to float32
  kSetDtype,    // result dtype float32 where the caller gave none
  kAppendDtype, // the overload that takes a result dtype, with float32
  kPromote,     // every operand to the widest dtype among them
  kForbidden,   // raises
};

struct Entry {
  std::string_view op;
  Cast cast;
};

// CUDA's lists, as torch keeps them for backends; an overload follows a comma.
constexpr Entry kCudaEntries[] = {
    {"binary_cross_entropy", Cast::kForbidden},
    // There the cuDNN layer inside casts all that goes into it; here layers
    // enter as a whole.
    {"lstm.input", Cast::kLower},
    {"lstm.data", Cast::kLower},
    {"gru.input", Cast::kLower},
    {"gru.data", Cast::kLower},
    {"rnn_tanh.input", Cast::kLower},
    {"rnn_tanh.data", Cast::kLower},
    {"rnn_relu.input", Cast::kLower},
    {"rnn_relu.data", Cast::kLower},
#define CHAMELEON_LOWER(...) {#__VA_ARGS__, Cast::kLower},
#define CHAMELEON_FLOAT(...) {#__VA_ARGS__, Cast::kFloat},
#define CHAMELEON_SET_DTYPE(...) {#__VA_ARGS__, Cast::kSetDtype},
#define CHAMELEON_PROMOTE(...) {#__VA_ARGS__, Cast::kPromote},
#define CHAMELEON_APPEND_DTYPE(function, op, ...) {op, Cast::kAppendDtype},
    AT_FORALL_LOWER_PRECISION_FP(CHAMELEON_LOWER)     //
    AT_FORALL_FP32(CHAMELEON_FLOAT)                   //
    AT_FORALL_FP32_SET_OPT_DTYPE(CHAMELEON_SET_DTYPE) //
    AT_FORALL_PROMOTE(CHAMELEON_PROMOTE)              //
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(CHAMELEON_APPEND_DTYPE)
#undef CHAMELEON_LOWER
#undef CHAMELEON_FLOAT
#undef CHAMELEON_SET_DTYPE
#undef CHAMELEON_PROMOTE
#undef CHAMELEON_APPEND_DTYPE
};

// The CPU's lists are in no header. Which ops are in them the dispatcher
// tells; all are cast to float32 but for these.
constexpr Entry kCpuExceptions[] = {
    {"conv1d", Cast::kLower},
    {"conv1d.padding", Cast::kLower},
    {"conv2d", Cast::kLower},
    {"conv2d.padding", Cast::kLower},
    {"conv3d", Cast::kLower},
    {"conv3d.padding", Cast::kLower},
    {"conv_tbc", Cast::kLower},
    {"conv_transpose1d", Cast::kLower},
    {"conv_transpose2d.input", Cast::kLower},
    {"conv_transpose3d.input", Cast::kLower},
    {"_convolution.deprecated", Cast::kLower},
    {"mm", Cast::kLower},
    {"bmm", Cast::kLower},
    {"matmul", Cast::kLower},
    {"linear", Cast::kLower},
    {"addmm", Cast::kLower},
    {"addbmm", Cast::kLower},
    {"baddbmm", Cast::kLower},
    {"linalg_vecdot", Cast::kLower},
    {"prelu", Cast::kLower},
    {"_addmm_activation", Cast::kLower},
    {"mkldnn_rnn_layer", Cast::kLower},
    {"scaled_dot_product_attention", Cast::kLower},
    {"_native_multi_head_attention", Cast::kLower},
    {"cat", Cast::kPromote},
    {"stack", Cast::kPromote},
    {"index_copy", Cast::kPromote},
    {"index_copy.dimname", Cast::kPromote},
};

constexpr c10::DispatchKey kKey = c10::DispatchKey::AutocastPrivateUse1;

void cast_tensor(at::ScalarType to, c10::IValue& value) {
  value = at::autocast::cached_cast(to, value.toTensor(), kChameleon);
}

void cast_operands(at::ScalarType to, at::ArrayRef<c10::Argument> arguments,
                   c10::IValue* values) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (values[i].isTensor()) {
      cast_tensor(to, values[i]);
    } else if (values[i].isTensorList()) {
      const std::vector<at::Tensor> tensors = values[i].toTensorVector();
      values[i] =
          at::autocast::cached_cast(to, at::TensorList(tensors), kChameleon);
    }
  }
}

at::ScalarType widest(at::ArrayRef<c10::Argument> arguments,
                      const c10::IValue* values) {
  at::ScalarType type = at::autocast::get_autocast_dtype(kChameleon);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (values[i].isTensorList()) {
      type = at::autocast::prioritize(
          type, at::TensorList(values[i].toTensorVector()), kChameleon);
    } else if (values[i].isTensor() &&
               arguments[i].type()->kind() == c10::TypeKind::TensorType) {
      type = at::autocast::prioritize(type, values[i].toTensor(), kChameleon);
    } // optional operands are cast, but have no say
  }
  return type;
}

bool takes_optional_dtype(const c10::Argument& argument) {
  return argument.name() == "dtype" &&
         argument.type()->kind() == c10::TypeKind::OptionalType;
}

// "norm.Scalar" and its like, with the result dtype as a last argument.
c10::OperatorHandle overload_with_dtype(const c10::OperatorName& name) {
  const std::string overload =
      name.overload_name == "Scalar" ? "ScalarOpt" : name.overload_name;
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.name.c_str(), (overload + "_dtype").c_str());
}

// The kernel of one op.
class Autocast final : public c10::OperatorKernel {
 public:
  Autocast(Cast on_cuda, Cast on_cpu) : on_cuda_(on_cuda), on_cpu_(on_cpu) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const Cast cast =
        likely_target_type() == c10::DeviceType::CPU ? on_cpu_ : on_cuda_;
    if (cast == Cast::kNone) { // as if nothing were registered
      op.redispatchBoxed(
          keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey),
          stack);
      return;
    }
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
    const at::ArrayRef<c10::Argument> arguments = op.schema().arguments();
    c10::IValue* values = stack->data() + (stack->size() - arguments.size());
    switch (cast) {
      case Cast::kLower:
        cast_operands(at::autocast::get_autocast_dtype(kChameleon), arguments,
                      values);
        break;
      case Cast::kPromote:
        cast_operands(widest(arguments, values), arguments, values);
        break;
      case Cast::kSetDtype:
        if (!at::autocast::is_eligible(values[0].toTensor(), kChameleon)) break;
        for (std::size_t i = 0; i < arguments.size(); ++i) {
          if (values[i].isNone() && takes_optional_dtype(arguments[i])) {
            values[i] = at::kFloat;
          }
        }
        break;
      case Cast::kAppendDtype: {
        const at::ScalarType dtype = at::autocast::type_from_firstarg(
            kChameleon, at::kFloat, values[0].toTensor());
        stack->emplace_back(dtype);
        overload_with_dtype(op.operator_name()).callBoxed(stack);
        return;
      }
      case Cast::kForbidden:
        TORCH_CHECK(false,
                    "torch.nn.functional.binary_cross_entropy and "
                    "torch.nn.BCELoss are unsafe to autocast; use "
                    "torch.nn.functional.binary_cross_entropy_with_"
                    "logits or torch.nn.BCEWithLogitsLoss instead");
      default:
        cast_operands(at::kFloat, arguments, values);
    }
    op.callBoxed(stack);
  }

 private:
  Cast on_cuda_;
  Cast on_cpu_;
};

std::string full_name(std::string_view op) {
  std::string name = "aten::" + std::string(op);
  const std::size_t comma = name.find(", ");
  if (comma != std::string::npos) name.replace(comma, 2, ".");
  return name;
}

struct Casts {
  Cast on_cuda = Cast::kNone;
  Cast on_cpu = Cast::kNone;
};

std::map<std::string, Casts> collect_casts() {
  std::map<std::string, Casts> all;
  for (const Entry& entry : kCudaEntries) {
    all[full_name(entry.op)].on_cuda = entry.cast;
  }
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(
           c10::DispatchKey::AutocastCPU)) {
    if (!name.name.starts_with("aten::")) continue;
    all[c10::toString(name)].on_cpu = Cast::kFloat;
  }
  for (const Entry& entry : kCpuExceptions) {
    all[full_name(entry.op)].on_cpu = entry.cast;
  }
  return all;
}

} // namespace

void TargetAutocast::enter() {
  if (!target().holds_data) return; // Meta kernels calculate nothing
  const c10::DeviceType type = target().type;
  enabled_before_ = at::autocast::is_autocast_enabled(type);
  dtype_before_ = at::autocast::get_autocast_dtype(type);
  at::autocast::set_autocast_dtype(
      type, at::autocast::get_autocast_dtype(kChameleon));
  at::autocast::set_autocast_enabled(type, true);
  entered_ = true;
}

void TargetAutocast::leave() {
  const c10::DeviceType type = target().type;
  at::autocast::set_autocast_enabled(type, enabled_before_);
  at::autocast::set_autocast_dtype(type, dtype_before_);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const auto& [name, casts] : collect_casts()) {
    m.impl(name.c_str(),
           torch::CppFunction::makeFromBoxedKernel(
               c10::BoxedKernel::makeFromFunctor(
                   std::make_unique<Autocast>(casts.on_cuda, casts.on_cpu))));
  }
}

} // namespace chameleon::backend
