#include "kernels/native_view.h"

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/alias_tensors.h"

namespace chameleon::kernels {

NativeView::NativeView(const std::vector<at::Tensor>& tensors,
                       memory::Access access, std::string_view purpose)
    : outers_(tensors) {
  if (tensors.empty()) return;
  backend::finish_deferred_work();
  const c10::DeviceIndex index = tensors.front().device().index();
  backend::context(index, purpose); // fixes the target
  TORCH_CHECK(backend::target().holds_data, purpose,
              ": a simulated device holds no bytes that native code could "
              "work on; set torch_chameleon.config.physical_device to \"cpu\"");
  AliasTensorSet alias_tensors;
  std::vector<std::size_t> entries;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(
        backend::is_chameleon(*tensor.unsafeGetTensorImpl()) &&
            tensor.has_storage() && tensor.device().index() == index,
        purpose,
        ": all tensors must be dense chameleon tensors of one device (of a "
        "sparse one, its indices and values); got a ",
        tensor.layout(), " one on ", tensor.device());
    entries.push_back(alias_tensors.add(*tensor.unsafeGetTensorImpl(),
                                        access == memory::Access::kWrite));
  }
  pager_ = backend::context(index, purpose).pager;
  const auto operands = alias_tensors.operands();
  auto call = std::make_unique<memory::Call>();
  backend::throw_if(pager_->begin(*call, backend::current_stream(index),
                                  {operands.data(), operands.size()}, nullptr,
                                  purpose, true));
  pager_->keepPins(*call);
  call_ = std::move(call);

  alias_tensors.bind();
  for (const AliasTensorSet::Entry& entry : alias_tensors.entries()) {
    entry.alias->set_resizable(false); // growing would leave the block behind
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    c10::TensorImpl& outer = *tensors[i].unsafeGetTensorImpl();
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
