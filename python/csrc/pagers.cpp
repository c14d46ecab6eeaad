#include "python/csrc/pagers.h"

#include <torch/csrc/Exceptions.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/storage.h"

namespace chameleon::python {

void finish_deferred_work() {
  const torch::PyWarningHandler warnings;
  backend::finish_deferred_work();
}

namespace {

void try_finish_deferred_work() {
  const torch::PyWarningHandler warnings;
  backend::try_finish_deferred_work();
}

} // namespace

memory::Pager& pager(c10::DeviceIndex index, const char* what) {
  try_finish_deferred_work();
  return *backend::context(backend::resolve_index(index), what).pager;
}

memory::Pager* pager_if_used(c10::DeviceIndex index) {
  try_finish_deferred_work();
  auto* const used = backend::context_if_used(backend::resolve_index(index));
  return used == nullptr ? nullptr : used->pager;
}

memory::Block* block_of(const at::Tensor& tensor) {
  finish_deferred_work();
  return backend::block_of(*tensor.storage().unsafeGetStorageImpl());
}

} // namespace chameleon::python
