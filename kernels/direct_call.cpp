#include "kernels/direct_call.h"

#include "backend/torch/deferred_work.h"
#include "backend/torch/storage.h"
#include "kernels/adoption.h"
#include "kernels/algorithm_choice.h"
#include "kernels/alias_tensors.h"
#include "kernels/device_rules.h"
#include "kernels/lists/deferred_lists.h"
#include "kernels/lists/list_ops.h"
#include "kernels/op_token.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {

using memory::Access;

// The number of the operand on a block; `count`, the next one's, where there is
// none so far: it has it from now on.
template <std::size_t kMaxListed>
inline std::size_t DirectCall<kMaxListed>::numberOf(
    const memory::Block* block, std::size_t count) noexcept {
  if (kMaxListed == 0 || collected_count_ <= kFew) {
    std::size_t at = 0;
    while (at < count && operands_[at].block != block) ++at;
    return at;
  }
  constexpr std::size_t kMask = std::tuple_size_v<decltype(by_block_)> - 1;
  for (std::size_t i = std::hash<const void*>()(block) / sizeof(memory::Block);;
       ++i) {
    Slot& entry = by_block_[i & kMask];
    if (entry == 0) {
      entry = static_cast<Slot>(count + 1);
      return count;
    }
    if (operands_[entry - 1].block == block) return entry - 1;
  }
}

// False: one of the tensors is not for the short way.
template <std::size_t kMaxListed>
inline bool DirectCall<kMaxListed>::findOperands() noexcept {
  const c10::DispatchKeySet plain = TensorAccess::outerKeys();
  profiler::QuickHasher quick(traits_.quick);
  std::size_t count = 0;
  if (kMaxListed > 0 && collected_count_ > kFew) by_block_.fill(0);
  for (std::size_t i = 0; i < collected_count_; ++i) {
    const auto [outer, argument] = collected_[i];
    c10::TensorImpl& impl = *outer->unsafeGetTensorImpl();
    const bool listed =
        kMaxListed > 0 && argument->kind == ArgumentKind::kTensorList;
    if (!TensorAccess::isPlain(impl, plain)) [[unlikely]] {
      if (listed || !outer->defined() || !stays_on_cpu(impl, argument->cpu)) {
        return false;
      }
      operand_of_[i] = kNone;
      continue;
    }
    memory::Block* const block =
        backend::block_of(*impl.unsafe_storage().unsafeGetStorageImpl());
    if (block == nullptr) return false;
    const bool writes = argument->writes;
    writes_ |= writes;
    const std::size_t at = numberOf(block, count);
    operand_of_[i] = static_cast<Slot>(at);
    // The alias tensors of a list lie in a row.
    if (listed && i > 0 && collected_[i - 1].argument == argument &&
        at != operand_of_[i - 1] + std::size_t{1}) [[unlikely]] {
      return false;
    }
    if (at < count) [[unlikely]] {
      if (outers_[at] != &impl) return false;
      if (writes || operands_[at].access != Access::kRead) {
        operands_[at].access = Access::kWrite; // and perhaps reads
      }
      continue;
    }
    if (at > 0 && block->pager != operands_[0].block->pager) return false;
    Access access = writes ? Access::kWrite : Access::kRead;
    // mutant: partial-overwrite
    if (argument->overwrites && is_all_of_storage(impl)) {
      access = Access::kOverwrite;
    }
    operands_[at] = {block, access};
    outers_[at] = &impl;
    if (!listed) quick.add(TensorAccess::numel(impl)); // as add_to_token()
    ++count;
  }
  quick_ = quick.token();
  count_ = count;
  return count > 0;
}

template <std::size_t kMaxListed>
bool DirectCall<kMaxListed>::writesInference() const noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (memory::writes(operands_[i].access) && outers_[i]->is_inference()) {
      return true;
    }
  }
  return false;
}

// The general way knows what the results take.
template <std::size_t kMaxListed>
bool DirectCall<kMaxListed>::mayGoInChunks(
    std::span<const memory::Operand> operands) const noexcept {
  std::size_t bytes = 0;
  for (const memory::Operand& operand : operands) {
    bytes += operand.block->rounded_bytes;
  }
  const std::size_t most_result_bytes = traits_.writes ? 0 : bytes;
  return bytes > chunk_bytes_of(*device_) || backend::has_deferred_work() ||
         is_short(*device_->pager, most_result_bytes);
}

template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finishDeferredWork() const {
  backend::finish_deferred_work_if_full(*device_);
  for (std::size_t i = 0; i < count_; ++i) {
    // mutant: deferred-direct
    backend::finish_deferred_work_on(
        *outers_[i]->unsafe_storage().unsafeGetStorageImpl());
  }
}

template <std::size_t kMaxListed>
bool DirectCall<kMaxListed>::begin() {
  // The general way keeps the time, where it is modelled.
  if (!findOperands() || backend::target().models_time ||
      (traits_.searches_algorithms && searches_algorithms(traits_))) {
    return false;
  }
  ThreadState& thread = ThreadState::ofThread();
  if (!thread.alias_tensors.hasRoomFor(count_)) return false;
  const c10::DeviceIndex index = outers_[0]->device().index();
  device_ = &backend::context(index, traits_.name);
  const std::span<const memory::Operand> operands(operands_.data(), count_);
  if (traits_.is_list_op && mayGoInChunks(operands)) return false;
  // Unless a caller above has counted, which keeps the kernel from it.
  counts_versions_ =
      traits_.counts_versions &&
      !thread.keys.excluded().has(c10::DispatchKey::ADInplaceOrView);
  if (counts_versions_ && writesInference()) return false; // to be refused
  if (backend::has_deferred_work()) [[unlikely]]
    finishDeferredWork();
  thread_ = &thread;
  alias_tensors_ = thread.alias_tensors.top();
  pin(traits_, *device_, thread.stream(index), call_, operands, quick_,
      &tokenOf, this);
  held_ = true;
  const c10::Device target = backend::target_device(index);
  for (std::size_t i = 0; i < count_; ++i) {
    thread.alias_tensors.push(*outers_[i], operands_[i].block->device_address,
                              thread.alias_tensor_keys, target);
  }
  return true;
}

template <std::size_t kMaxListed>
profiler::Token DirectCall<kMaxListed>::tokenOf(const void* call) {
  const auto& self = *static_cast<const DirectCall*>(call);
  profiler::TokenHasher token(self.traits_.number);
  for (std::size_t i = 0; i < self.count_; ++i) {
    add_to_token(token, *self.outers_[i]);
  }
  return profiler::whole_token(token.token(), self.quick_);
}

template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finishWritten() {
  call_.overwritten();
  for (std::size_t i = 0; i < count_; ++i) {
    if (!memory::writes(operands_[i].access)) continue;
    c10::TensorImpl& outer = *outers_[i];
    const c10::TensorImpl& alias_tensor =
        *alias_tensors_[i].unsafeGetTensorImpl();
    const c10::StorageImpl& alias =
        *alias_tensor.unsafe_storage().unsafeGetStorageImpl();
    // Most kernels write bytes only.
    if (alias.data() != operands_[i].block->device_address ||
        alias.nbytes() !=
            outer.unsafe_storage().unsafeGetStorageImpl()->nbytes() ||
        alias_tensor.key_set() != thread_->alias_tensor_keys ||
        !TensorAccess::sameShape(outer, alias_tensor)) [[unlikely]] {
      finishWritten(i);
    }
    // mutant: version
    if (counts_versions_) outer.bump_version();
  }
}

// The kernel gave it another shape, other memory, or a lazy bit.
template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finishWritten(std::size_t operand) {
  const auto [block, access] = operands_[operand];
  c10::TensorImpl& outer = *outers_[operand];
  const c10::TensorImpl& alias_tensor =
      *alias_tensors_[operand].unsafeGetTensorImpl();
  if (access == Access::kOverwrite && outer.sizes() != alias_tensor.sizes()) {
    keep_rest(call_, *block, alias_tensor);
  }
  const Adoption adoption{*device_->pager, call_, device_->index};
  adoption.storage(*outer.unsafe_storage().unsafeGetStorageImpl(),
                   *alias_tensor.unsafe_storage().unsafeGetStorageImpl(),
                   block->device_address);
  Adoption::shape(outer, alias_tensor);
}

template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finish(at::Tensor& result) {
  if (!is_native_result(result, traits_)) return;
  const Adoption adoption{*device_->pager, call_, device_->index};
  if (!adoption.fresh(result)) [[unlikely]]
    finishOther(result, adoption);
}

// Not fresh: it may be (a view of) an operand that the kernel returned.
template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finishOther(at::Tensor& result,
                                         const Adoption& adoption) {
  const c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  for (std::size_t i = 0; i < count_; ++i) {
    const c10::Storage& alias =
        alias_tensors_[i].unsafeGetTensorImpl()->unsafe_storage();
    if (!alias.is_alias_of(impl.unsafe_storage())) continue;
    // mutant: result-operand
    result = at::Tensor(
        make_outer(impl, outers_[i]->storage(),
                   c10::Device(backend::kChameleon, device_->index)));
    return;
  }
  result = adoption.tensor(std::move(result));
}

template <std::size_t kMaxListed>
std::unique_ptr<RecordedCall> DirectCall<kMaxListed>::startRecord(
    at::ArrayRef<c10::IValue> arguments) const {
  return RecordedCall::make(traits_, arguments, {operands_.data(), count_},
                            device_->index);
}

template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::finishRecord(std::unique_ptr<RecordedCall> record,
                                          at::ArrayRef<c10::IValue> arguments,
                                          at::ArrayRef<at::Tensor> results) {
  finish_record(std::move(record), arguments, results,
                {operands_.data(), count_}, *device_->pager, call_);
}

template <std::size_t kMaxListed>
void DirectCall<kMaxListed>::retry(const c10::OperatorHandle& op,
                                   torch::jit::Stack& stack) {
  endCall();
  held_ = false;
  retry_native(traits_, op, stack, call_);
}

template <std::size_t kMaxListed>
inline void DirectCall<kMaxListed>::endCall() noexcept {
  thread_->alias_tensors.popTo(alias_tensors_);
  device_->pager->end(call_);
}

template <std::size_t kMaxListed>
DirectCall<kMaxListed>::~DirectCall() {
  if (!held_) return;
  endCall();
  sample_memory(*device_);
}

template class DirectCall<0>;
template class DirectCall<kMaxListedTensors>;

} // namespace chameleon::kernels
