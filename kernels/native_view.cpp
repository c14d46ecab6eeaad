#include "kernels/native_view.h"

#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/twins.h"

namespace chameleon::kernels {

NativeView::NativeView(const std::vector<at::Tensor>& tensors,
                       memory::Access access, std::string_view purpose)
    : outers_(tensors) {
  if (tensors.empty()) return;
  const c10::DeviceIndex index = tensors.front().device().index();
  std::vector<memory::Operand> operands;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(
        backend::is_chameleon(*tensor.unsafeGetTensorImpl()) &&
            tensor.has_storage() && tensor.device().index() == index,
        purpose,
        ": all tensors must be dense chameleon tensors of one device; "
        "got one on ",
        tensor.device());
    if (memory::Block* block =
            backend::block_of(*tensor.storage().unsafeGetStorageImpl())) {
      operands.push_back({block, access});
    }
  }
  pager_ = backend::context(index, purpose).pager;
  auto call = std::make_unique<memory::Call>();
  backend::throw_if(pager_->begin(*call, backend::current_stream(index),
                                  operands, nullptr, purpose, true));
  pager_->hold(*call);
  call_ = std::move(call);

  TwinSet twins;
  std::vector<std::size_t> entries;
  for (const at::Tensor& tensor : tensors) {
    entries.push_back(twins.add(*tensor.unsafeGetTensorImpl(), true));
  }
  twins.bind();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    natives_.push_back(
        at::Tensor(make_outer(*tensors[i].unsafeGetTensorImpl(),
                              c10::Storage(twins.entries()[entries[i]].alias),
                              backend::target_device(index))));
  }
}

NativeView::~NativeView() {
  for (const at::Tensor& native : natives_) {
    c10::StorageImpl& storage = *native.storage().unsafeGetStorageImpl();
    storage.set_data_ptr_noswap(c10::DataPtr(nullptr, backend::target().type));
    storage.set_nbytes(0);
  }
  if (call_) pager_->end(*call_);
}

} // namespace chameleon::kernels
