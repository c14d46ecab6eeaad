#include "kernels/reruns/recorded_op.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include "backend/torch/device.h"
#include "backend/torch/generator.h"
#include "backend/torch/storage.h"
#include "kernels/alias_tensors.h"
#include "kernels/layouts/nested_parts.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {

using backend::kChameleon;
using memory::Block;

namespace {

constexpr std::int64_t kMostCpuElements = 1024; // kept as a copy

// What shells have for memory.
const c10::Storage& no_memory() {
  static const auto* storage = new c10::Storage(
      c10::Storage::use_byte_size_t(), 0,
      c10::DataPtr(nullptr, c10::Device(kChameleon, 0)), nullptr, false);
  return *storage;
}

// A small tensor on the CPU as it is now; its elements may change later.
at::Tensor copy_of(const at::Tensor& tensor) {
  at::Tensor copy = at::detail::empty_cpu(
      tensor.sizes(), tensor.scalar_type(), at::kStrided, at::kCPU,
      /*pin_memory_opt=*/false, at::MemoryFormat::Contiguous);
  std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(),
              tensor.nbytes());
  return copy;
}

} // namespace

std::shared_ptr<const RecordedCall::Surroundings> RecordedCall::surroundings(
    c10::DeviceIndex index) {
  thread_local std::shared_ptr<const Surroundings> last;
  const Surroundings now{BitSettings::now(), index};
  if (last == nullptr || !(*last == now)) {
    last = std::make_shared<const Surroundings>(now);
  }
  return last;
}

// Takes a call's arguments.
class RecordedCall::Taker {
 public:
  Taker(RecordedCall& call, std::span<const memory::Operand> operands)
      : call_(call), operands_(operands) {}

  // False: it may not run again.
  bool take(at::ArrayRef<c10::IValue> arguments);

 private:
  bool takeTensor(const c10::IValue& value, const ArgumentTraits& argument);
  bool keep(const c10::IValue& value, std::size_t index);
  void takeGenerator();

  c10::DeviceIndex index() const { return call_.surroundings_->index; }

  RecordedCall& call_;
  const std::span<const memory::Operand> operands_;
  std::vector<Shown> shown_;
  at::Generator generator_;
};

std::unique_ptr<RecordedCall> RecordedCall::make(
    const OpTraits& traits, at::ArrayRef<c10::IValue> arguments,
    std::span<const memory::Operand> operands, c10::DeviceIndex index) {
  static_assert(sizeof(RecordedCall) <=
                64); // see memory/recompute/recompute_records.h
  if (!traits.may_rerun) return nullptr;
  std::unique_ptr<RecordedCall> record(new RecordedCall(traits));
  record->surroundings_ = surroundings(index);
  if (!Taker(*record, operands).take(arguments)) return nullptr;
  return record;
}

bool RecordedCall::Taker::take(at::ArrayRef<c10::IValue> arguments) {
  const OpTraits& traits = call_.traits_;
  TORCH_INTERNAL_ASSERT(arguments.size() == traits.argument_count);
  call_.arguments_ = std::make_unique<c10::IValue[]>(arguments.size());
  auto next = traits.arguments.begin();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (next == traits.arguments.end() || next->index != i) {
      if (!keep(value, i)) return false;
      continue;
    }
    const ArgumentTraits& argument = *next++;
    switch (argument.kind) {
      case ArgumentKind::kTensor:
        if (!takeTensor(value, argument)) return false;
        break;
      case ArgumentKind::kTensorList:
      case ArgumentKind::kOptionalList: {
        if (value.isNone()) break;
        const c10::ArrayRef<c10::IValue> list = value.toListRef();
        call_.arguments_[i] = static_cast<std::int64_t>(list.size());
        for (const c10::IValue& element : list) {
          if (!takeTensor(element, argument)) return false;
        }
        break;
      }
      case ArgumentKind::kGenerator:
        if (value.isGenerator()) generator_ = value.toGenerator();
        break;
      default:
        return false;
    }
  }
  call_.shown_ = memory::FixedArray<Shown>(std::move(shown_));
  // mutant: re-run-generator
  if (traits.random || generator_.defined()) takeGenerator();
  return true;
}

bool RecordedCall::Taker::takeTensor(const c10::IValue& value,
                                     const ArgumentTraits& argument) {
  Shown& shown = shown_.emplace_back();
  shown.written = argument.writes;
  if (!value.isTensor() || !value.toTensor().defined()) return true;
  const at::Tensor& tensor = value.toTensor();
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!backend::is_chameleon(impl)) {
    // A Python number is nobody's.
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided) return false;
    const bool is_number = impl.is_wrapped_number();
    if (!is_number &&
        (tensor.numel() > kMostCpuElements || !tensor.is_contiguous() ||
         tensor.is_conj() || tensor.is_neg())) {
      return false;
    }
    shown.shell = is_number ? tensor : copy_of(tensor);
    return true;
  }
  if (is_nested(impl)) return false;
  const c10::StorageImpl& storage =
      *impl.unsafe_storage().unsafeGetStorageImpl();
  const Block* const block = backend::block_of(storage);
  if (block != nullptr) {
    const auto at =
        std::find_if(operands_.begin(), operands_.end(),
                     [=](const auto& each) { return each.block == block; });
    if (at == operands_.end()) return false;
    shown.operand = static_cast<std::int32_t>(at - operands_.begin());
    shown.storage_bytes = storage.nbytes();
    shown.side_effect = argument.side_effect;
  }
  shown.shell = at::Tensor(
      make_outer(impl, no_memory(), c10::Device(kChameleon, index())));
  return true;
}

// An argument without tensors. False: it may change, or nobody knows what it
// is.
bool RecordedCall::Taker::keep(const c10::IValue& value, std::size_t index) {
  if (value.isList()) {
    call_.arguments_[index] = value.deepcopy(); // of numbers
    return true;
  }
  // Batch norm: its statistics are results of what it is given otherwise.
  const OpTraits& traits = call_.traits_;
  const bool has_side_effects =
      std::any_of(traits.arguments.begin(), traits.arguments.end(),
                  [](const auto& each) { return each.side_effect; });
  if (has_side_effects &&
      traits.handle.schema().arguments()[index].name() == "training" &&
      !value.toBool()) {
    return false;
  }
  if (!value.isNone() && !value.isScalar() && !value.isString() &&
      !value.isDevice()) {
    return false;
  }
  call_.arguments_[index] = value;
  return true;
}

void RecordedCall::Taker::takeGenerator() {
  call_.drawn_ = std::make_unique<Drawn>(Drawn{generator_, {}});
  if (!call_.traits_.random || !backend::target().holds_data) return;
  at::Generator inner = backend::inner_generator(
      generator_.defined() ? generator_ : backend::default_generator(index()));
  const std::lock_guard lock(inner.mutex());
  call_.drawn_->state = inner.get_state();
}

bool RecordedCall::isSideEffect(std::size_t operand) const {
  return std::any_of(shown_.begin(), shown_.end(), [=](const Shown& shown) {
    return shown.side_effect && std::cmp_equal(shown.operand, operand);
  });
}

bool RecordedCall::leftOperandsInPlace(
    at::ArrayRef<c10::IValue> arguments) const {
  std::size_t next = 0;
  const auto same = [&](const c10::IValue& value) {
    const Shown& shown = shown_[next++];
    if (!shown.written || !shown.shell.defined()) return true;
    const at::Tensor& tensor = value.toTensor();
    const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    return TensorAccess::sameShape(*tensor.unsafeGetTensorImpl(),
                                   *shown.shell.unsafeGetTensorImpl()) &&
           storage.nbytes() == shown.storage_bytes;
  };
  for (const ArgumentTraits& argument : traits_.arguments) {
    const c10::IValue& value = arguments[argument.index];
    if (argument.kind == ArgumentKind::kTensor) {
      if (!same(value)) return false;
    } else if (argument.kind != ArgumentKind::kGenerator && !value.isNone()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (!same(element)) return false;
      }
    }
  }
  return true;
}

bool add_created(const at::Tensor& result, std::span<Block* const> operands,
                 std::vector<Block*>& created) {
  if (!result.defined() ||
      !backend::is_chameleon(*result.unsafeGetTensorImpl()))
    return false;
  Block* const block =
      backend::block_of(*result.storage().unsafeGetStorageImpl());
  const auto is_among = [=](std::span<Block* const> blocks) {
    return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
  };
  if (block == nullptr || is_among(operands) || is_among(created)) return false;
  created.push_back(block);
  return true;
}

void finish_record(std::unique_ptr<RecordedCall> record,
                   at::ArrayRef<c10::IValue> arguments,
                   at::ArrayRef<at::Tensor> results,
                   std::span<const memory::Operand> operands,
                   memory::Pager& pager, memory::Call& call) {
  if (record == nullptr || !record->leftOperandsInPlace(arguments)) return;
  std::vector<Block*> blocks;
  for (const memory::Operand& operand : operands) {
    blocks.push_back(operand.block);
  }
  std::vector<Block*> created;
  for (const at::Tensor& result : results) add_created(result, blocks, created);
  pager.record(call, std::move(record), created);
}

} // namespace chameleon::kernels
