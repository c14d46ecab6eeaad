// Copies between a device and the CPU, inside a device and across. Where both
// sides have the same dense layout the bytes go straight between the CPU and
// whatever place the block has, without a fault; everything else goes through
// a dense tensor on one side. On CUDA, tensors of "cuda" and copies that need
// not be waited for are native's business, on pinned bytes.
//
// Tests: test_copy_order.py, test_storage.py.
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "kernels/native_view.h"
#include "kernels/simulated/facts.h"
#include "kernels/simulated/reads.h"

namespace chameleon::kernels {
namespace {

bool is_ours(const at::Tensor& tensor) {
  return backend::is_chameleon(*tensor.unsafeGetTensorImpl());
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// The bytes of `from` may be copied as one piece into `to`.
bool one_piece(const at::Tensor& from, const at::Tensor& to) {
  // mutant: transposed-copy
  return from.scalar_type() == to.scalar_type() && same_bits(from, to) &&
         from.sizes() == to.sizes() && from.strides() == to.strides() &&
         from.is_non_overlapping_and_dense();
}

struct Place {
  memory::Block* block;
  std::size_t offset;
  std::size_t bytes;
  runtime::Stream stream;
};
Place place_of(const at::Tensor& tensor) {
  backend::refuse_after_fork();
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  backend::finish_deferred_work_on(storage);
  memory::Block* block = backend::block_of(storage);
  TORCH_CHECK(block != nullptr,
              "chameleon: this tensor's memory was not allocated by the device "
              "(a slice of a storage, from_blob, a raw pointer, or the result "
              "of a list op that did not take place), so it cannot be "
              "copied");
  const std::size_t needed_bytes = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.element_size(),
      static_cast<std::size_t>(tensor.storage_offset()));
  TORCH_CHECK(needed_bytes <= storage.nbytes(), "chameleon: this tensor shows ",
              needed_bytes, " bytes of a storage of ", storage.nbytes(),
              ", so it cannot be copied; give the storage its bytes back with "
              "resize_()");
  return {
      block,
      static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size(),
      tensor.nbytes(), backend::current_stream(tensor.device().index())};
}

void write_piece(const at::Tensor& from_cpu, const at::Tensor& to) {
  const Place place = place_of(to);
  backend::throw_if(place.block->pager->write(
      *place.block, place.offset,
      static_cast<const std::byte*>(from_cpu.const_data_ptr()), place.bytes,
      place.stream));
}

void read_piece(const at::Tensor& from, const at::Tensor& to_cpu) {
  const Place place = place_of(from);
  backend::throw_if(place.block->pager->read(
      *place.block, place.offset,
      static_cast<std::byte*>(to_cpu.mutable_data_ptr()), place.bytes,
      place.stream));
}

at::Tensor cpu_like(const at::Tensor& tensor, at::ScalarType dtype) {
  at::Tensor result =
      at::empty_strided(tensor.sizes(), tensor.strides(),
                        at::TensorOptions().dtype(dtype).device(at::kCPU));
  result._set_conj(tensor.is_conj());
  result._set_neg(tensor.is_neg());
  return result;
}

// Without data only the way counts: all of the tensor's span over the link.
std::size_t span_bytes(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                          tensor.element_size());
}

void simulate_write(const at::Tensor& to) {
  const Place place = place_of(to);
  backend::throw_if(place.block->pager->write(
      *place.block, place.offset, nullptr, span_bytes(to), place.stream));
}

void simulate_copy_from_cpu(const at::Tensor& from, const at::Tensor& to) {
  simulate_write(to);
  simulated::note_upload(from, to);
}

void simulate_copy_to_cpu(const at::Tensor& from, const at::Tensor& to) {
  simulated::read_zeros("a copy to the CPU");
  const Place place = place_of(from);
  backend::throw_if(place.block->pager->read(
      *place.block, place.offset, nullptr, span_bytes(from), place.stream));
  if (simulated::fill_known(from, to)) return;
  to.zero_();
  simulated::read_unknown();
}

void copy_from_cpu(const at::Tensor& from, const at::Tensor& to) {
  if (!backend::target().holds_data) {
    return simulate_copy_from_cpu(from, to);
  }
  if (one_piece(from, to)) return write_piece(from, to);
  if (to.is_non_overlapping_and_dense()) {
    at::Tensor staged = cpu_like(to, to.scalar_type());
    staged.copy_(from);
    return write_piece(staged, to);
  }
  // A strided part of a storage: only its own elements may change.
  NativeView view({to}, memory::Access::kWrite, "aten::copy_");
  at::Tensor native = view.natives().front();
  native.copy_(from);
}

void copy_to_cpu(const at::Tensor& from, const at::Tensor& to) {
  if (!backend::target().holds_data) return simulate_copy_to_cpu(from, to);
  if (one_piece(from, to)) return read_piece(from, to);
  if (from.is_non_overlapping_and_dense()) {
    at::Tensor staged = cpu_like(from, from.scalar_type());
    read_piece(from, staged);
    to.copy_(staged);
    return;
  }
  NativeView view({from}, memory::Access::kRead, "aten::copy_");
  to.copy_(view.natives().front());
}

// A copy that native makes, on the current stream.
void copy_natively(const at::Tensor& from, const at::Tensor& to,
                   bool non_blocking) {
  if (is_ours(from)) {
    const NativeView view({from}, memory::Access::kRead, "aten::copy_");
    to.copy_(view.natives().front(), non_blocking);
  } else {
    const NativeView view({to}, memory::Access::kWrite, "aten::copy_");
    at::Tensor native = view.natives().front();
    native.copy_(from, non_blocking);
  }
}

// `other`: what is not ours.
bool copies_natively(const at::Tensor& other, bool non_blocking) {
  if (backend::target().type != c10::DeviceType::CUDA) return false;
  return other.is_cuda() ||
         (non_blocking && other.device().is_cpu() && other.is_pinned());
}

// Inside the device a copy is an op like any other.
void copy_within(const at::Tensor& from, const at::Tensor& to) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("chameleon::copy_within_", "")
          .typed<at::Tensor&(at::Tensor&, const at::Tensor&)>();
  at::Tensor destination = to;
  // Straight to the redirect: the fallbacks for lazy conjugation and negation
  // would resolve them by a copy, and so for ever.
  op.redispatch(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), destination,
                from);
}

// The target's own copy_; runs on alias tensors, redirected like every other
// op.
at::Tensor& native_copy(at::Tensor& to, const at::Tensor& from) {
  return to.copy_(from);
}

// Between two devices, as one piece, since neither's kernels may use the
// other's arena: what has another layout is made dense first, and again at the
// end. One of the devices waits with its operand pinned for room on the other,
// so only one thread at a time may.
void copy_across(const at::Tensor& from, const at::Tensor& to) {
  if (!backend::target().holds_data) { // through the host
    const Place source = place_of(from);
    backend::throw_if(source.block->pager->read(*source.block, source.offset,
                                                nullptr, span_bytes(from),
                                                source.stream));
    return simulate_write(to);
  }
  if (!one_piece(from, to)) {
    const at::Tensor dense = at::empty(from.sizes(), from.options());
    copy_within(from, dense);
    const at::Tensor there =
        at::empty(from.sizes(), from.options().device(to.device()));
    copy_across(dense, there);
    return copy_within(there, to);
  }
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  const NativeView source({from}, memory::Access::kRead, "aten::copy_");
  const NativeView destination({to}, memory::Access::kWrite, "aten::copy_");
  at::Tensor native = destination.natives().front();
  native.copy_(source.natives().front());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to,
                     bool non_blocking) {
  const bool broadcasts = from.sizes() != to.sizes();
  if (broadcasts) {
    const auto shape = at::infer_size(to.sizes(), from.sizes());
    TORCH_CHECK(to.sizes() == shape, "output with shape ", to.sizes(),
                " doesn't match the broadcast shape ", at::IntArrayRef(shape));
  }
  if (to.numel() == 0) return to;
  const at::Tensor source = broadcasts ? from.expand(to.sizes()) : from;
  if (is_ours(source) && is_ours(to)) {
    const bool within = source.device() == to.device();
    within ? copy_within(source, to) : copy_across(source, to);
  } else if (copies_natively(is_ours(to) ? source : to, non_blocking)) {
    copy_natively(source, to, non_blocking);
  } else if (is_ours(to)) {
    TORCH_CHECK(source.device().is_cpu(), "chameleon: cannot copy from ",
                source.device(), " to ", to.device());
    copy_from_cpu(source, to);
  } else {
    TORCH_CHECK(to.device().is_cpu(), "chameleon: cannot copy from ",
                source.device(), " to ", to.device());
    copy_to_cpu(source, to);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_output(to, from.sizes());
  return copy_from(from, to, false);
}

// Reads one element without a fault where a host copy is valid. The host
// waits, as it does natively.
at::Scalar local_scalar_dense(const at::Tensor& self) {
  const Place place = place_of(self);
  at::Tensor value = at::empty(
      {}, at::TensorOptions().dtype(self.scalar_type()).device(at::kCPU));
  if (!backend::target().holds_data) {
    simulated::read_zeros("item()");
    if (!simulated::fill_known(self, value)) {
      value.zero_();
      simulated::read_unknown();
    }
  }
  backend::throw_if(place.block->pager->read(
      *place.block, place.offset,
      static_cast<std::byte*>(value.mutable_data_ptr()), self.element_size(),
      place.stream));
  value._set_conj(self.is_conj());
  value._set_neg(self.is_neg());
  return value.item();
}

// Native's copy is lazy: it shares the bytes until somebody writes. Bytes that
// move have no one to tell, so the copy is made at once; of the whole storage,
// as native's is, since views beside this one can be made of the result.
at::Tensor lazy_clone(const at::Tensor& self) {
  const at::Tensor whole =
      at::empty({0}, self.options().dtype(at::kByte)).set_(self.storage());
  return at::empty({0}, self.options())
      .set_(whole.clone().storage(), self.storage_offset(), self.sizes(),
            self.strides());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_lazy_clone", TORCH_FN(lazy_clone));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
}

// As copy_ itself: lazy conjugation and negation are resolved while copying.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY(chameleon, m) {
  m.def("copy_within_(Tensor(a!) to, Tensor from) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(chameleon, CPU, m) {
  m.impl("copy_within_", TORCH_FN(native_copy));
}
TORCH_LIBRARY_IMPL(chameleon, CUDA, m) {
  m.impl("copy_within_", TORCH_FN(native_copy));
}
TORCH_LIBRARY_IMPL(chameleon, Meta, m) {
  m.impl("copy_within_", TORCH_FN(native_copy));
}

} // namespace
} // namespace chameleon::kernels
