#include "python/csrc/mirror_bindings.h"

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <pybind11/stl.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "backend/torch/storage.h"
#include "backend/torch/stream.h"
#include "memory/pager.h"
#include "python/csrc/pagers.h"

namespace py = pybind11;

namespace chameleon::python {

namespace {

using Value = std::pair<std::uint64_t, std::uint64_t>; // a BlockValue

std::optional<Value> mirror(const at::Tensor& tensor, std::uintptr_t address,
                            const Value& had) {
  TORCH_CHECK_VALUE(tensor.device().type() == backend::kChameleon &&
                        tensor.is_contiguous() && !tensor.is_neg() &&
                        !tensor.is_conj(),
                    "mirror: a contiguous chameleon tensor is needed");
  backend::refuse_after_fork();
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  memory::Block* block = backend::block_of(storage);
  if (block == nullptr && storage.nbytes() > 0) { // a result that was deferred
    backend::finish_deferred_work_on(storage);
    block = backend::block_of(storage);
  }
  const std::size_t offset =
      static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  if (block == nullptr || offset + tensor.nbytes() > storage.nbytes()) {
    return std::nullopt;
  }
  const memory::BlockValue value = backend::value_or_throw(block->pager->mirror(
      {block, offset, tensor.nbytes(), reinterpret_cast<std::byte*>(address)},
      {had.first, had.second},
      backend::current_stream(tensor.device().index())));
  return Value{value.identity, value.version};
}

bool finish_mirror() {
  bool all = true;
  for (c10::DeviceIndex i = 0; i < backend::device_count(); ++i) {
    if (auto* const used = backend::context_if_used(i)) {
      all = backend::value_or_throw(used->pager->finishMirror()) && all;
    }
  }
  return all;
}

// Nobody else would run them soon.
void finish_awaited_by_mirror() {
  for (c10::DeviceIndex i = 0; i < backend::device_count(); ++i) {
    auto* const used = backend::context_if_used(i);
    if (used == nullptr || !used->pager->mirrorAwaitsOps()) continue;
    finish_deferred_work();
    return;
  }
}

void pin_memory(c10::DeviceIndex index, std::uintptr_t address,
                std::size_t bytes) {
  backend::context(index, "pin_memory()")
      .runtime->pin(reinterpret_cast<std::byte*>(address), bytes);
}

void unpin_memory(c10::DeviceIndex index, std::uintptr_t address,
                  std::size_t bytes) {
  if (auto* const used = backend::context_if_used(index)) {
    used->runtime->unpin(reinterpret_cast<std::byte*>(address), bytes);
  }
}

} // namespace

void bind_mirror(py::module_& m) {
  m.def("mirror", &mirror, py::call_guard<py::gil_scoped_release>());
  m.def("finish_mirror", &finish_mirror,
        py::call_guard<py::gil_scoped_release>());
  m.def("finish_awaited_by_mirror", &finish_awaited_by_mirror,
        py::call_guard<py::gil_scoped_release>());
  m.def("pin_memory", &pin_memory, py::call_guard<py::gil_scoped_release>());
  m.def("unpin_memory", &unpin_memory,
        py::call_guard<py::gil_scoped_release>());
}

} // namespace chameleon::python
