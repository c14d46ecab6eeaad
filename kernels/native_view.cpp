#include "kernels/native_view.h"

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensors.h"
#include "kernels/op_token.h"
#include "kernels/simulated/facts.h"

namespace chameleon::kernels {
namespace {

profiler::Token token_of(std::uint32_t op,
                         const std::vector<NativeView::Use>& uses) {
  profiler::TokenHasher token(op);
  profiler::QuickHasher quick(op);
  for (const NativeView::Use& use : uses) {
    add_to_token(token, *use.tensor.unsafeGetTensorImpl());
    add_to_token(quick, *use.tensor.unsafeGetTensorImpl());
  }
  return profiler::whole_token(token.token(), quick.token());
}

std::vector<NativeView::Use> all_used(const std::vector<at::Tensor>& tensors,
                                      memory::Access access) {
  std::vector<NativeView::Use> uses;
  uses.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) uses.push_back({tensor, access});
  return uses;
}

} // namespace

NativeView::NativeView(const std::vector<at::Tensor>& tensors,
                       memory::Access access, std::string_view purpose)
    : NativeView(all_used(tensors, access),
                 {.name = purpose, .may_retry = true}, std::nullopt) {}

NativeView::NativeView(const std::vector<Use>& uses, const memory::OpKind& kind,
                       std::optional<std::uint32_t> op_number) {
  if (uses.empty()) return;
  backend::finish_deferred_work();
  const c10::DeviceIndex index = uses.front().tensor.device().index();
  backend::DeviceContext& device = backend::context(index, kind.name);
  // A collective's may be without: its time alone is modelled.
  TORCH_CHECK(backend::target().holds_data || op_number, kind.name,
              ": a simulated device holds no bytes that native code could "
              "work on; set torch_chameleon.config.physical_device to \"cpu\"");
  AliasTensorSet alias_tensors;
  std::vector<std::size_t> entries;
  for (const auto& [tensor, access] : uses) {
    TORCH_CHECK_VALUE(
        backend::is_chameleon(*tensor.unsafeGetTensorImpl()) &&
            tensor.has_storage() && tensor.device().index() == index,
        kind.name,
        ": all tensors must be dense chameleon tensors of one device (of a "
        "sparse one, its indices and values); got a ",
        tensor.layout(), " one on ", tensor.device());
    entries.push_back(alias_tensors.add(*tensor.unsafeGetTensorImpl(),
                                        memory::writes(access),
                                        access == memory::Access::kOverwrite));
    if (!backend::target().holds_data && memory::writes(access)) {
      simulated::forget(*tensor.unsafeGetTensorImpl());
    }
    outers_.push_back(tensor);
  }
  pager_ = device.pager;
  const auto operands = alias_tensors.operands();
  auto call = std::make_unique<memory::Call>();
  std::optional<memory::OpIdentity> identity;
  profiler::Token token = 0;
  if (op_number) {
    token = token_of(*op_number, uses);
    identity = memory::OpIdentity::of(*op_number, token);
  }
  backend::throw_if(
      pager_->begin(*call, {.kind = kind,
                            .stream = backend::current_stream(index),
                            .operands = {operands.data(), operands.size()},
                            .identity = identity ? &*identity : nullptr}));
  pager_->keepPins(*call);
  call_ = std::move(call);

  alias_tensors.bind();
  for (const AliasTensorSet::Entry& entry : alias_tensors.entries()) {
    entry.alias->set_resizable(false); // growing would leave the block behind
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    c10::TensorImpl& outer = *outers_[i].unsafeGetTensorImpl();
    auto native = make_outer(
        outer, c10::Storage(alias_tensors.entries()[entries[i]].alias),
        backend::target_device(index));
    // Writes to it are writes to the tensor: autograd has to notice.
    if (!outer.is_inference()) {
      native->set_version_counter(outer.version_counter());
    }
    natives_.emplace_back(std::move(native));
  }
}

NativeView::~NativeView() {
  for (const at::Tensor& native : natives_) {
    close(*native.storage().unsafeGetStorageImpl());
  }
  if (call_) pager_->end(*call_);
}

} // namespace chameleon::kernels
