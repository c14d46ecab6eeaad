#include "kernels/direct_call.h"

#include "backend/torch/deferred_work.h"
#include "backend/torch/storage.h"
#include "kernels/adoption.h"
#include "kernels/deferred_lists.h"
#include "kernels/list_ops.h"
#include "kernels/op_token.h"
#include "kernels/tensor_access.h"
#include "kernels/twins.h"

namespace chameleon::kernels {

using memory::Access;

namespace {

// As NativeCall::checkStray() allows it.
bool stays_on_cpu(const at::Tensor& tensor, const ArgumentPlan& argument) {
  return tensor.defined() && tensor.device().is_cpu() &&
         (argument.cpu == CpuRule::kAny ||
          (argument.cpu == CpuRule::kScalar && tensor.dim() == 0));
}

} // namespace

DirectCall::Slot DirectCall::add(const at::Tensor& outer,
                                 const ArgumentPlan& argument) noexcept {
  const c10::TensorImpl& impl = *outer.unsafeGetTensorImpl();
  if (!TensorAccess::isPlain(impl)) {
    return stays_on_cpu(outer, argument) ? kNone : kRefused;
  }
  const bool writes = argument.writes;
  memory::Block* const block =
      backend::block_of(*impl.unsafe_storage().unsafeGetStorageImpl());
  if (block == nullptr) return kRefused;
  for (std::size_t i = 0; i < count_; ++i) {
    if (operands_[i].block != block) continue;
    if (outers_[i]->unsafeGetTensorImpl() != &impl) return kRefused;
    if (writes || operands_[i].access != Access::kRead) {
      operands_[i].access = Access::kWrite; // and perhaps reads
    }
    writes_ = writes_ || writes;
    return static_cast<Slot>(i); // one tensor twice is one operand
  }
  if (count_ == kMaxOperands ||
      (count_ > 0 && block->pager != operands_[0].block->pager)) {
    return kRefused;
  }
  Access access = writes ? Access::kWrite : Access::kRead;
  if (argument.overwrites && is_all_of_storage(impl)) {
    access = Access::kOverwrite;
  }
  operands_[count_] = {block, access};
  outers_[count_] = &outer;
  add_to_token(quick_, impl);
  writes_ = writes_ || writes;
  return static_cast<Slot>(count_++);
}

bool DirectCall::begin() {
  // Without data the general way keeps the time.
  // (The general way keeps the time, where it is modelled.)
  if (count_ == 0 || backend::target().models_time) return false;
  TwinStack& twins = TwinStack::ofThread();
  if (!twins.hasRoomFor(count_)) return false;
  const c10::DeviceIndex index = outers_[0]->device().index();
  device_ = &backend::context(index, plan_.name);
  const std::span<const memory::Operand> operands(operands_.data(), count_);
  if (plan_.is_list_op && (needs_chunks(*device_, operands) ||
                           is_under_pressure(*device_->pager))) {
    return false;
  }
  backend::finish_deferred_work();
  pin(plan_, *device_, call_, operands, quick_.token(), &tokenOf, this);
  held_ = true;
  // Unless a caller above has counted, which keeps the kernel from it.
  counts_versions_ =
      plan_.counts_versions && !c10::impl::tls_is_dispatch_key_excluded(
                                   c10::DispatchKey::ADInplaceOrView);
  twins_ = &twins;
  first_ = twins.depth();
  const c10::Device target = backend::target_device(index);
  for (std::size_t i = 0; i < count_; ++i) {
    twins.push(*outers_[i]->unsafeGetTensorImpl(),
               operands_[i].block->device_address, target);
  }
  return true;
}

profiler::Token DirectCall::tokenOf(const void* call) {
  const auto& self = *static_cast<const DirectCall*>(call);
  profiler::TokenHasher token(self.plan_.number);
  for (std::size_t i = 0; i < self.count_; ++i) {
    add_to_token(token, *self.outers_[i]->unsafeGetTensorImpl());
  }
  return profiler::whole_token(token.token(), self.quick_.token());
}

void DirectCall::finishWrites() {
  if (!writes_) return;
  call_.overwritten();
  const Adoption adoption{*device_->pager, call_, device_->index};
  for (std::size_t i = 0; i < count_; ++i) {
    const Access access = operands_[i].access;
    if (!memory::writes(access)) continue;
    c10::TensorImpl& outer = *outers_[i]->unsafeGetTensorImpl();
    const c10::TensorImpl& twin =
        *this->twin(static_cast<Slot>(i)).unsafeGetTensorImpl();
    if (access == Access::kOverwrite && outer.sizes() != twin.sizes()) {
      keep_rest(call_, *operands_[i].block, twin);
    }
    adoption.storage(*outer.unsafe_storage().unsafeGetStorageImpl(),
                     *twin.unsafe_storage().unsafeGetStorageImpl(),
                     operands_[i].block->device_address);
    Adoption::shape(outer, twin);
    if (counts_versions_ && !outer.is_inference()) outer.bump_version();
  }
}

void DirectCall::finish(at::Tensor& result) {
  if (!is_native_result(result, plan_)) return;
  const Adoption adoption{*device_->pager, call_, device_->index};
  if (!adoption.fresh(result)) [[unlikely]]
    finishOther(result, adoption);
}

// Not fresh: it may be (a view of) an operand that the kernel returned.
void DirectCall::finishOther(at::Tensor& result, const Adoption& adoption) {
  const c10::TensorImpl& impl = *result.unsafeGetTensorImpl();
  for (std::size_t i = 0; i < count_; ++i) {
    const c10::Storage& alias =
        twin(static_cast<Slot>(i)).unsafeGetTensorImpl()->unsafe_storage();
    if (!alias.is_alias_of(impl.unsafe_storage())) continue;
    result = at::Tensor(
        make_outer(impl, outers_[i]->storage(),
                   c10::Device(backend::kChameleon, device_->index)));
    return;
  }
  result = adoption.tensor(std::move(result));
}

DirectCall::~DirectCall() {
  if (!held_) return;
  twins_->popTo(first_);
  device_->pager->end(call_);
  sample_memory(*device_);
}

} // namespace chameleon::kernels
