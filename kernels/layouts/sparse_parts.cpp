#include "kernels/layouts/sparse_parts.h"

#include <utility>

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/TensorOptions.h>

#include "backend/torch/device.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {
namespace {

using at::SparseCsrTensorImpl;
using at::SparseTensorImpl;

c10::DispatchKeySet keys_of(c10::Layout layout, c10::Device device) {
  return c10::DispatchKeySet(
      c10::computeDispatchKey(std::nullopt, layout, device));
}

at::Tensor new_like(const c10::TensorImpl& like, c10::Device device) {
  const c10::DispatchKeySet keys = keys_of(like.layout(), device);
  if (is_compressed(like)) {
    return at::detail::make_tensor<SparseCsrTensorImpl>(
        keys, device, like.layout(), like.dtype());
  }
  return at::detail::make_tensor<SparseTensorImpl>(keys, like.dtype());
}

} // namespace

c10::DispatchKeySet sparse_dispatch_key(bool compressed) {
  return keys_of(compressed ? c10::kSparseCsr : c10::kSparse,
                 c10::Device(backend::target().type));
}

SparseParts parts_of(const c10::TensorImpl& sparse) {
  if (is_compressed(sparse)) {
    const auto& csr = static_cast<const SparseCsrTensorImpl&>(sparse);
    return {csr.crow_indices_, csr.col_indices_, csr.values_};
  }
  const auto& coo = static_cast<const SparseTensorImpl&>(sparse);
  return {coo.indices_, coo.values_};
}

SparseParts take_parts(c10::TensorImpl& sparse) {
  SparseParts parts;
  if (is_compressed(sparse)) {
    auto& csr = static_cast<SparseCsrTensorImpl&>(sparse);
    parts.push_back(std::move(csr.crow_indices_));
    parts.push_back(std::move(csr.col_indices_));
    parts.push_back(std::move(csr.values_));
  } else {
    auto& coo = static_cast<SparseTensorImpl&>(sparse);
    parts.push_back(std::move(coo.indices_));
    parts.push_back(std::move(coo.values_));
  }
  return parts;
}

void show_sparse(const c10::TensorImpl& like, c10::TensorImpl& sparse,
                 const SparseParts& parts) {
  if (is_compressed(like)) {
    auto& csr = static_cast<SparseCsrTensorImpl&>(sparse);
    csr.set_layout(like.layout());
    csr.set_member_tensors(parts[0], parts[1], parts[2], like.sizes());
    return;
  }
  const auto& from = static_cast<const SparseTensorImpl&>(like);
  auto& coo = static_cast<SparseTensorImpl&>(sparse);
  coo.raw_resize_(from.sparse_dim(), from.dense_dim(), from.sizes());
  coo.indices_ = parts[0];
  coo.values_ = parts[1];
  coo.set_coalesced(from.coalesced());
}

at::Tensor make_sparse(const c10::TensorImpl& like, const SparseParts& parts) {
  const c10::Device device = parts.back().device();
  at::Tensor made = new_like(like, device);
  c10::TensorImpl& impl = *made.unsafeGetTensorImpl();
  TensorAccess::retarget(impl, impl.key_set(), device); // with its index
  show_sparse(like, impl, parts);
  return made;
}

void copy_sparse(const c10::TensorImpl& from, c10::TensorImpl& to) {
  TensorAccess::show(from, to, {}, from.device());
  show_sparse(from, to, parts_of(from));
}

} // namespace chameleon::kernels
