#include "kernels/call_arguments.h"

#include <ATen/core/List.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "backend/torch/device.h"
#include "backend/torch/generator.h"
#include "kernels/device_rules.h"
#include "kernels/layouts/nested_parts.h"
#include "kernels/layouts/sparse_parts.h"
#include "kernels/op_token.h"

namespace chameleon::kernels {

using backend::kChameleon;

// ---- before pinning -------------------------------------------------------

void CallArguments::collect() {
  c10::DeviceIndex named = -1;
  for (const ArgumentTraits& argument : traits_.arguments) {
    const c10::IValue& value = stack_[base_ + argument.index];
    switch (argument.kind) {
      case ArgumentKind::kTensor:
        if (value.isTensor()) collectTensor(value, argument, argument.writes);
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kOptionalList:
        if (value.isNone()) break;
        collectList(value, argument);
        break;
      case ArgumentKind::kGenerator:
        has_generator_ = value.isGenerator() &&
                         value.toGenerator().device().type() == kChameleon;
        break;
      case ArgumentKind::kDevice:
        if (value.isDevice()) {
          const c10::Device device = value.toDevice();
          if (device.type() == kChameleon)
            named = device.index();
          else
            names_other_device_ = true;
        }
        break;
      default:
        break;
    }
  }
  if (index_ == -1) index_ = backend::resolve_index(named);
  for (const CrossDeviceOperand& cross_device : cross_device_operands_)
    checkCrossDevice(cross_device);
}

void CallArguments::collectList(const c10::IValue& list,
                                const ArgumentTraits& argument) {
  const bool writes =
      argument.writes && (argument.written_with < 0 ||
                          !stack_[base_ + argument.written_with].isNone());
  for (const c10::IValue& element : list.toListRef()) {
    if (element.isTensor()) collectTensor(element, argument, writes);
  }
}

void CallArguments::collectTensor(const c10::IValue& value,
                                  const ArgumentTraits& argument, bool writes) {
  c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
  if (backend::is_chameleon(tensor)) [[likely]] {
    if (is_sparse(tensor)) [[unlikely]] {
      return collectSparse(tensor, argument);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.has_storage(), traits_.name,
        ": chameleon works on dense (strided) tensors; this one has layout ",
        tensor.layout());
    checkIndex(tensor.device().index());
    const bool nested = is_nested(tensor);
    nested_ = nested_ || nested;
    slots_.push_back(static_cast<std::uint32_t>(
        alias_tensors_.add(tensor, writes, argument.overwrites && !nested)));
    if (argument.kind == ArgumentKind::kTensor) add_to_token(quick_, tensor);
  } else if (&tensor != c10::UndefinedTensorImpl::singleton()) {
    cross_device_operands_.push_back({&tensor, &argument});
  }
}

void CallArguments::checkIndex(c10::DeviceIndex index) {
  if (index_ != -1 && index_ != index) {
    refuse_mixed_devices(index_, c10::Device(kChameleon, index), traits_.name,
                         {});
  }
  index_ = index;
}

// Its parts are the operands.
void CallArguments::collectSparse(const c10::TensorImpl& tensor,
                                  const ArgumentTraits& argument) {
  checkIndex(tensor.device().index());
  sparse_ = true;
  compressed_ = compressed_ || is_compressed(tensor);
  for (const at::Tensor& part : parts_of(tensor)) {
    const c10::TensorImpl& impl = *part.unsafeGetTensorImpl();
    slots_.push_back(
        static_cast<std::uint32_t>(alias_tensors_.add(impl, argument.writes)));
    if (argument.kind == ArgumentKind::kTensor) add_to_token(quick_, impl);
  }
}

void CallArguments::checkCrossDevice(
    const CrossDeviceOperand& cross_device) const {
  const c10::TensorImpl& tensor = *cross_device.tensor;
  // Only the generator is ours, so the op meant another device.
  TORCH_CHECK(!has_generator_ || !slots_.empty(), "Expected a '",
              tensor.device().type(),
              "' device type for generator but found 'chameleon'");
  const ArgumentTraits& argument = *cross_device.argument;
  if (stays_on_cpu(tensor, argument.cpu)) return;
  refuse_mixed_devices(index_, tensor.device(), traits_.name,
                       op_.schema().arguments()[argument.index].name());
}

// While the arguments are the caller's.
profiler::Token CallArguments::tokenOf(const void* call) {
  const auto& self = *static_cast<const CallArguments*>(call);
  profiler::TokenHasher token(self.traits_.number);
  const auto add = [&token](const c10::IValue& value) {
    if (!is_device_tensor(value)) return;
    const c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
    if (!is_sparse(tensor)) return add_to_token(token, tensor);
    for (const at::Tensor& part : parts_of(tensor)) {
      add_to_token(token, *part.unsafeGetTensorImpl());
    }
  };
  for (const ArgumentTraits& argument : self.traits_.arguments) {
    const c10::IValue& value = self.stack_[self.base_ + argument.index];
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) add(element);
    } else {
      add(value);
    }
  }
  // Which results are wanted (output_mask): the others are not computed.
  for (std::size_t i = 0; i < self.traits_.argument_count; ++i) {
    const c10::IValue& value = self.stack_[self.base_ + i];
    if (!value.isBoolList()) continue;
    for (const bool wanted : value.toBoolList()) token.add(wanted ? 1U : 0U);
  }
  return profiler::whole_token(token.token(), self.quickToken());
}

c10::DispatchKeySet CallArguments::kernelKey() const {
  if (nested_) return nested_dispatch_key();
  if (!sparse_) return backend::target().dispatch_key;
  return sparse_dispatch_key(compressed_);
}

// ---- while operands are pinned --------------------------------------------

// Moves the caller's arguments into saved_ and leaves alias tensors on the
// stack.
void CallArguments::replace() {
  saved_.clear();
  saved_.reserve(traits_.argument_count);
  std::size_t slot = 0;
  auto next = traits_.arguments.begin();
  for (std::size_t i = 0; i < traits_.argument_count; ++i) {
    c10::IValue& value = stack_[base_ + i];
    if (next == traits_.arguments.end() || next->index != i) {
      saved_.push_back(value);
      continue;
    }
    const ArgumentTraits& argument = *next++;
    if (argument.kind == ArgumentKind::kTensor) {
      saved_.push_back(std::move(value));
      const c10::IValue& outer = saved_.back();
      if (is_device_tensor(outer)) [[likely]] {
        value = aliasTensorOf(outer, argument, slot);
      } else {
        value = outer;
      }
    } else {
      saved_.push_back(value);
      replaceOther(value, argument, slot);
    }
  }
}

void CallArguments::replaceOther(c10::IValue& value,
                                 const ArgumentTraits& argument,
                                 std::size_t& slot) {
  switch (argument.kind) {
    case ArgumentKind::kTensorList:
      if (!value.isNone()) replaceList<at::Tensor>(value, argument, slot);
      break;
    case ArgumentKind::kOptionalList:
      if (!value.isNone()) {
        replaceList<std::optional<at::Tensor>>(value, argument, slot);
      }
      break;
    case ArgumentKind::kGenerator:
      if (value.isGenerator()) {
        value = backend::inner_generator(value.toGenerator());
      }
      break;
    case ArgumentKind::kDevice:
      if (value.isNone() ? slots_.empty()
                         : value.toDevice().type() == kChameleon) {
        value = backend::target_device(index_);
      }
      break;
    case ArgumentKind::kTensor:
    case ArgumentKind::kStream:
    case ArgumentKind::kOtherList:
      break;
  }
}

at::Tensor CallArguments::aliasTensorOf(const c10::IValue& value,
                                        const ArgumentTraits& argument,
                                        std::size_t& slot) {
  c10::TensorImpl* outer = value.unsafeToTensorImpl();
  at::Tensor alias_tensor =
      is_sparse(*outer) ? sparseAliasTensor(*outer, argument.writes, slot)
                        : denseAliasTensor(*outer, argument.writes, slot);
  // sparse_mm_reduce keeps more where a derivative will be asked for.
  if (sparse_ && outer->requires_grad()) [[unlikely]] {
    alias_tensor.unsafeGetTensorImpl()->set_requires_grad(true);
  }
  return alias_tensor;
}

at::Tensor CallArguments::denseAliasTensor(c10::TensorImpl& outer, bool writes,
                                           std::size_t& slot) {
  const std::uint32_t entry = slots_[slot++];
  auto alias_tensor = alias_tensors_.alias_tensor(outer, entry);
  if (writes) written_.push_back({&outer, alias_tensor.get(), entry});
  return at::Tensor(std::move(alias_tensor));
}

at::Tensor CallArguments::sparseAliasTensor(c10::TensorImpl& outer, bool writes,
                                            std::size_t& slot) {
  SparseParts parts;
  for (const at::Tensor& part : parts_of(outer)) {
    parts.push_back(
        denseAliasTensor(*part.unsafeGetTensorImpl(), writes, slot));
  }
  for (SparseOperand& known : sparse_operands_) {
    if (known.outer != &outer) continue;
    known.writes = known.writes || writes;
    return known.alias_tensor;
  }
  sparse_operands_.push_back({&outer, make_sparse(outer, parts), writes, {}});
  for (const at::Tensor& part : parts) {
    sparse_operands_.back().given.push_back(part.unsafeGetTensorImpl());
  }
  return sparse_operands_.back().alias_tensor;
}

template <typename Element>
void CallArguments::replaceList(c10::IValue& value,
                                const ArgumentTraits& argument,
                                std::size_t& slot) {
  const c10::ArrayRef<c10::IValue> elements = value.toListRef();
  c10::List<Element> alias_tensors;
  alias_tensors.reserve(elements.size());
  for (const c10::IValue& element : elements) {
    if (is_device_tensor(element)) {
      alias_tensors.push_back(aliasTensorOf(element, argument, slot));
    } else if (element.isTensor()) {
      alias_tensors.push_back(element.toTensor());
    } else {
      alias_tensors.push_back(Element());
    }
  }
  value = std::move(alias_tensors);
}

void CallArguments::restore() {
  stack_.resize(base_);
  for (c10::IValue& value : saved_) stack_.push_back(std::move(value));
  saved_.clear();
  written_.clear();
  sparse_operands_.clear();
}

} // namespace chameleon::kernels
