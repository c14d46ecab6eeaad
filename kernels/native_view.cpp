#include "kernels/native_view.h"

#include <utility>

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensors.h"
#include "kernels/op_token.h"
#include "kernels/simulated/facts.h"

namespace chameleon::kernels {
namespace {

using Uses = c10::ArrayRef<NativeView::Use>;

// What the profiler knows the work by.
struct Identified {
  std::uint32_t op;
  Uses uses;

  profiler::QuickToken quick() const {
    profiler::QuickHasher quick(op);
    for (const NativeView::Use& use : uses) {
      add_to_token(quick, *use.tensor->unsafeGetTensorImpl());
    }
    return quick.token();
  }
  static profiler::Token token(const void* self) {
    const auto& work = *static_cast<const Identified*>(self);
    profiler::TokenHasher token(work.op);
    for (const NativeView::Use& use : work.uses) {
      add_to_token(token, *use.tensor->unsafeGetTensorImpl());
    }
    return profiler::whole_token(token.token(), work.quick());
  }
};

c10::SmallVector<NativeView::Use, 4> all_used(at::TensorList tensors,
                                              memory::Access access) {
  c10::SmallVector<NativeView::Use, 4> uses;
  for (const at::Tensor& tensor : tensors) uses.push_back({&tensor, access});
  return uses;
}

} // namespace

NativeView::NativeView(at::TensorList tensors, memory::Access access,
                       std::string_view purpose)
    : NativeView(all_used(tensors, access),
                 {.name = purpose, .may_retry = true}, std::nullopt) {}

NativeView::NativeView(Uses uses, const memory::OpKind& kind,
                       std::optional<std::uint32_t> op_number) {
  if (uses.empty()) return;
  const c10::DeviceIndex index = uses.front().tensor->device().index();
  backend::DeviceContext& device = backend::context(index, kind.name);
  // A collective's may be without: its time alone is modelled.
  TORCH_CHECK(backend::target().holds_data || op_number, kind.name,
              ": a simulated device holds no bytes that native code could "
              "work on; set torch_chameleon.config.physical_device to \"cpu\"");
  AliasTensorSet alias_tensors;
  c10::SmallVector<std::size_t, 8> entries;
  for (const auto [operand, access] : uses) {
    const at::Tensor& tensor = *operand;
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
  const auto operands = alias_tensors.operands();
  const Identified work{op_number.value_or(0), uses};
  std::optional<memory::OpIdentity> identity;
  if (op_number) {
    identity = {*op_number, work.quick(), &Identified::token, &work};
  }
  backend::throw_if(device.pager->begin(
      call_, {.kind = kind,
              .stream = backend::current_stream(index),
              .operands = {operands.data(), operands.size()},
              .identity = identity ? &*identity : nullptr}));
  pager_ = device.pager;
  pager_->keepPins(call_);

  alias_tensors.bind();
  for (AliasTensorSet::Entry& entry : alias_tensors.entries()) {
    entry.alias->set_resizable(false); // growing would leave the block behind
    aliases_.push_back(std::move(entry.alias));
  }
  natives_.reserve(uses.size());
  for (std::size_t i = 0; i < uses.size(); ++i) {
    c10::TensorImpl& outer = *outers_[i].unsafeGetTensorImpl();
    // Writes to it are writes to the tensor: autograd has to notice.
    natives_.emplace_back(make_outer(outer, c10::Storage(aliases_[entries[i]]),
                                     backend::target_device(index),
                                     outer.version_counter()));
  }
}

NativeView::~NativeView() {
  end();
  natives_.clear();
  for (const auto& alias : aliases_) {
    if (alias.use_count() > 1) close(*alias);
  }
}

void NativeView::end() noexcept {
  if (pager_ == nullptr) return;
  for (const auto& alias : aliases_) let_go(*alias);
  std::exchange(pager_, nullptr)->end(call_);
  outers_.clear();
}

} // namespace chameleon::kernels
