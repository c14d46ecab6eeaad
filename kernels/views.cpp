// Views and metadata: they run on the outer tensor and never make anything
// resident. native:: functions look at sizes, strides and the storage object
// only, so they fit our tensors as they are.
//
// Tests: test_views.py.
#include <ATen/Context.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <torch/library.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/device_allocator.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"

namespace chameleon::kernels {
namespace {

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size,
                      at::IntArrayRef stride,
                      std::optional<int64_t> storage_offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, storage_offset);
}

// Puts a tensor's storage and shape back where making room for others fails.
class OldShape {
 public:
  explicit OldShape(c10::TensorImpl& tensor)
      : tensor_(tensor),
        storage_(tensor.unsafe_storage()),
        sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        offset_(tensor.storage_offset()) {}
  ~OldShape() {
    if (isReplaced_) return;
    tensor_.set_storage_keep_dtype(std::move(storage_));
    tensor_.set_sizes_and_strides(sizes_, strides_, offset_);
  }
  OldShape(const OldShape&) = delete;
  OldShape& operator=(const OldShape&) = delete;

  void replaced() noexcept { isReplaced_ = true; }

 private:
  c10::TensorImpl& tensor_;
  c10::Storage storage_;
  const c10::DimVector sizes_;
  const c10::DimVector strides_;
  const std::int64_t offset_;
  bool isReplaced_ = false;
};

// Grows the storage (never shrinks it) to hold what the tensor shows.
void ensure_storage(const at::Tensor& self) {
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  if (tensor.numel() == 0) return;
  const std::size_t needed = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.dtype().itemsize(),
      static_cast<std::size_t>(tensor.storage_offset()));
  c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  if (needed <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(),
              "Trying to resize storage that is not resizable");
  backend::resize_storage(storage, needed);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  OldShape old(tensor);
  if (tensor.sizes() != size) tensor.set_sizes_contiguous(size);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve,
                "Unsupported memory format", *memory_format);
    tensor.empty_tensor_restride(*memory_format);
  }
  const auto bytes_before =
      static_cast<int64_t>(tensor.unsafe_storage().nbytes());
  ensure_storage(self);
  old.replaced();
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() &&
      context.deterministicFillUninitializedMemory()) [[unlikely]] {
    at::native::fill_resize_deterministic_(self, bytes_before);
  }
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source,
                               int64_t offset, at::IntArrayRef size,
                               at::IntArrayRef stride) {
  c10::TensorImpl& tensor = *self.unsafeGetTensorImpl();
  OldShape old(tensor);
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  tensor.set_storage_offset(offset);
  if (stride.data() != nullptr) {
    tensor.set_sizes_and_strides(size, stride);
  } else {
    tensor.set_sizes_contiguous(size);
  }
  ensure_storage(self);
  old.replaced();
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements =
      static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_offset(self, std::move(source), 0, elements, {});
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage_offset(
      self, backend::make_storage(0, self.device().index()), 0, {0}, {});
}

// Asked by `x.data = y`, which gives the tensor object y's storage, shape and
// device: what optimizers, hooks and ties hold then shows other bytes. Sound
// for dense tensors of all devices, as PyTorch has it for those that it knows.
bool has_compatible_shallow_copy_type(const at::Tensor& self,
                                      const at::Tensor& from) {
  constexpr c10::DispatchKeySet kDevices(
      {c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit,
       c10::BackendComponent::PrivateUse1Bit});
  const auto is_dense = [&](const at::Tensor& tensor) {
    const c10::DispatchKeySet keys = tensor.key_set();
    return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) &&
           keys.has_any(kDevices) && tensor.has_storage();
  };
  return (is_dense(self) && is_dense(from)) || self.key_set() == from.key_set();
}

void record_stream(at::Tensor& self, at::Stream stream) {
  const c10::StorageImpl& storage = *self.storage().unsafeGetStorageImpl();
  backend::finish_deferred_work_on(storage);
  if (memory::Block* block = backend::block_of(storage)) {
    block->pager->recordUse(*block, backend::to_runtime(stream));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset));
  m.impl("_has_compatible_shallow_copy_type",
         TORCH_FN(has_compatible_shallow_copy_type));
  m.impl("record_stream", TORCH_FN(record_stream));
}

} // namespace
} // namespace chameleon::kernels
