#include "kernels/lists/deferral_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "backend/torch/storage.h"
#include "kernels/call_arguments.h"
#include "kernels/lists/list_ops.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {

using torch::jit::Stack;

namespace {

// What torch.optim is made of. Each has kernels for all of kTypes, and no
// condition on its operands but those that are checked here.
constexpr std::array<std::string_view, 20> kOps = {
    "abs",       "add",   "addcdiv", "addcmul", "clamp_max",
    "clamp_min", "copy_", "div",     "lerp",    "maximum",
    "minimum",   "mul",   "neg",     "pow",     "reciprocal",
    "rsqrt",     "sign",  "sqrt",    "sub",     "zero_"};

// "aten::_foreach_add_.List" is "add", "aten::_foreach_copy_" is "copy_".
bool is_known(const OpTraits& traits) {
  constexpr std::string_view kPrefix = "aten::_foreach_";
  std::string_view name = traits.name;
  if (!name.starts_with(kPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  const std::string_view overload =
      name.substr(std::min(name.find('.'), name.size()));
  if (overload.ends_with("out")) return false;
  name.remove_suffix(overload.size());
  const auto listed = [](std::string_view each) {
    return std::find(kOps.begin(), kOps.end(), each) != kOps.end();
  };
  return listed(name) ||
         (name.ends_with('_') && listed(name.substr(0, name.size() - 1)));
}

constexpr std::array<std::string_view, 3> kFusedOps = {
    "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_sgd_"};

// Of any overload that works in place.
bool is_fused_optimizer(const OpTraits& traits) {
  const std::string_view name = traits.name;
  return std::ranges::any_of(kFusedOps, [&](std::string_view each) {
    return name == each ||
           (name.starts_with(each) && name.substr(each.size()) == ".tensor_lr");
  });
}

// 0: not a type that all of kOps compute in.
double largest(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    case at::kHalf:
      return std::numeric_limits<c10::Half>::max();
    case at::kBFloat16:
      return std::numeric_limits<c10::BFloat16>::max();
    default:
      return 0;
  }
}

// A kernel converts it without an error.
bool fits(const c10::IValue& value, double most) {
  if (!value.isDouble() && !value.isInt()) return false;
  return std::abs(value.toScalar().toDouble()) <= most; // not so for NaN
}

bool all_fit(const c10::IValue& list, std::size_t length, double most) {
  if (!list.isList()) return false;
  const c10::ArrayRef<c10::IValue> scalars = list.toListRef();
  return scalars.size() == length &&
         std::all_of(scalars.begin(), scalars.end(),
                     [&](const c10::IValue& each) { return fits(each, most); });
}

class Check {
 public:
  Check(const OpTraits& traits, const Stack& stack,
        const backend::DeviceContext& device)
      : traits_(traits),
        arguments_(stack.data() + stack.size() - traits.argument_count),
        device_(device) {}

  bool passes() {
    is_fused_ = is_fused_optimizer(traits_);
    return traits_.results.size() <= 1 && (is_fused_ || is_known(traits_)) &&
           !c10::InferenceMode::is_enabled() && findSelf() && shapesMatch() &&
           othersFit();
  }

 private:
  // The first argument; results are like it.
  bool findSelf() {
    if (traits_.arguments.empty() || traits_.arguments[0].index != 0 ||
        traits_.arguments[0].kind != ArgumentKind::kTensorList) {
      return false;
    }
    self_ = arguments_[0].toListRef();
    if (self_.empty() || !isOrdinary(self_[0])) return false;
    type_ = self_[0].toTensor().scalar_type();
    most_ = largest(type_);
    return most_ > 0;
  }

  bool isOrdinary(const c10::IValue& value) const {
    if (!value.isTensor()) return false;
    const c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
    return TensorAccess::isPlain(tensor, TensorAccess::outerKeys()) &&
           tensor.device().index() == device_.index && tensor.numel() > 0 &&
           tensor.is_non_overlapping_and_dense() && !isPinned(tensor);
  }

  // A result that was deferred itself has no block yet.
  static bool isPinned(const c10::TensorImpl& tensor) {
    const memory::Block* const block =
        backend::block_of(*tensor.unsafe_storage().unsafeGetStorageImpl());
    return block != nullptr && block->pins() > 0;
  }

  bool shapesMatch() {
    index_bytes_.assign(self_.size(), 0);
    for (const ArgumentTraits& argument : traits_.arguments) {
      if (argument.kind == ArgumentKind::kTensorList && !listMatches(argument))
        return false;
    }
    if (!traits_.results.empty()) {
      for (std::size_t i = 0; i < self_.size(); ++i) {
        const at::Tensor& self = self_[i].toTensor();
        if (!keepsStrides(self)) return false;
        index_bytes_[i] += memory::ExtentMap::round(self.nbytes());
      }
    }
    // Each index has to find room by itself, whatever else is pinned then.
    return *std::ranges::max_element(index_bytes_) <=
           device_.pager->hbmBudget() / 2;
  }

  bool listMatches(const ArgumentTraits& argument) {
    const auto list = arguments_[argument.index].toListRef();
    const std::string_view name =
        is_fused_ ? std::string_view(nameOf(argument)) : "";
    if (is_fused_ && isUnused(name)) return list.empty();
    if (list.size() != self_.size()) return false;
    const bool counts_steps = name == "state_steps";
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!isOrdinary(list[i])) return false;
      const at::Tensor& self = self_[i].toTensor();
      const at::Tensor& tensor = list[i].toTensor();
      const bool fits = counts_steps ? tensor.scalar_type() == at::kFloat &&
                                           tensor.numel() == 1
                                     : tensor.scalar_type() == type_ &&
                                           tensor.sizes() == self.sizes() &&
                                           tensor.strides() == self.strides();
      if (!fits) return false;
      index_bytes_[i] += memory::ExtentMap::round(tensor.storage().nbytes());
    }
    return true;
  }

  const std::string& nameOf(const ArgumentTraits& argument) const {
    return traits_.handle.schema().arguments()[argument.index].name();
  }
  const c10::IValue& named(const char* name) const {
    return arguments_[static_cast<std::size_t>(
        *traits_.handle.schema().argumentIndexWithName(name))];
  }

  // A fused optimizer's list that must be empty.
  bool isUnused(std::string_view list) const {
    if (list == "max_exp_avg_sqs") return !named("amsgrad").toBool();
    return list == "momentum_buffer_list" && named("momentum").toDouble() == 0;
  }

  // A result of the same strides: an ordinary layout, in its ordinary strides.
  static bool keepsStrides(const at::Tensor& self) {
    if (self.is_contiguous()) {
      return self.strides() ==
             at::IntArrayRef(c10::contiguous_strides(self.sizes()));
    }
    return self.dim() == 4 && self.is_contiguous(at::MemoryFormat::ChannelsLast)
               ? self.strides() ==
                     at::IntArrayRef(
                         c10::get_channels_last_strides_2d(self.sizes()))
               : false;
  }

  bool othersFit() const {
    auto next = traits_.arguments.begin();
    for (std::size_t i = 0; i < traits_.argument_count; ++i) {
      const c10::IValue& value = arguments_[i];
      if (next == traits_.arguments.end() || next->index != i) {
        // A flag such as copy_'s non_blocking, or a scalar.
        if (!isFlag(i) && !fits(value, most_)) return false;
        continue;
      }
      const ArgumentTraits& argument = *next++;
      switch (argument.kind) {
        case ArgumentKind::kTensorList:
          break;
        case ArgumentKind::kOtherList:
          if (!all_fit(value, self_.size(), most_)) return false;
          break;
        case ArgumentKind::kTensor:
          if (!fitsAll(argument, value)) return false;
          break;
        default:
          return false;
      }
    }
    return true;
  }

  // Not a scalar that is a bool: some ops refuse it.
  bool isFlag(std::size_t index) const {
    return traits_.handle.schema().arguments()[index].type()->kind() ==
           c10::TypeKind::BoolType;
  }

  // One tensor for all elements, not one of a scalar for each.
  bool fitsAll(const ArgumentTraits& argument, const c10::IValue& value) const {
    if (is_fused_ && value.isNone()) return true;
    if (argument.writes || nameOf(argument) == "scalars" || !isOrdinary(value))
      return false;
    const at::Tensor& tensor = value.toTensor();
    return is_fused_ ? tensor.scalar_type() == at::kFloat && tensor.numel() == 1
                     : tensor.scalar_type() == type_ && tensor.dim() == 0;
  }

  const OpTraits& traits_;
  const c10::IValue* const arguments_;
  const backend::DeviceContext& device_;
  bool is_fused_ = false;
  std::vector<std::size_t> index_bytes_; // of all lists and results
  c10::ArrayRef<c10::IValue> self_;
  at::ScalarType type_ = at::ScalarType::Undefined;
  double most_ = 0;
};

} // namespace

bool is_deferrable(const OpTraits& traits, const Stack& stack,
                   const backend::DeviceContext& device) {
  return Check(traits, stack, device).passes();
}

std::size_t list_length(const OpTraits& traits, const Stack& stack) {
  const std::size_t base = stack.size() - traits.argument_count;
  for (const ArgumentTraits& argument : traits.arguments) {
    const c10::IValue& value = stack[base + argument.index];
    if (argument.kind != ArgumentKind::kTensorList || !value.isList()) continue;
    return value.toListRef().size();
  }
  return 0;
}

backend::DeviceContext* device_of_lists(const OpTraits& traits,
                                        const Stack& stack) {
  backend::DeviceContext* device = nullptr;
  each_listed(traits, stack, [&](const c10::IValue& element) {
    if (!is_device_tensor(element)) return true;
    device = &backend::context(element.unsafeToTensorImpl()->device().index(),
                               traits.name);
    return false;
  });
  return device;
}

} // namespace chameleon::kernels
