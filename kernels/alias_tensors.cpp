#include "kernels/alias_tensors.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorOptions.h>

#include "backend/torch/deferred_work.h"
#include "backend/torch/storage.h"
#include "kernels/layouts/nested_parts.h"
#include "kernels/tensor_access.h"

namespace chameleon::kernels {
namespace {

constexpr std::size_t kHashFrom = 16; // entries before lookup is hashed
constexpr std::size_t kMaxShells = 64;
constexpr auto kNoEntry = static_cast<std::size_t>(-1);

c10::intrusive_ptr<c10::TensorImpl> new_shell() {
  return c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta(),
      c10::Device(c10::DeviceType::CPU));
}

// An alias is of the first device until bind() says which.
c10::intrusive_ptr<c10::StorageImpl> new_alias() {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0,
      c10::DataPtr(nullptr, backend::target_device(0)),
      c10::GetAllocator(backend::target().type), /*resizable=*/true);
}

template <typename T>
c10::intrusive_ptr<T> take(std::vector<c10::intrusive_ptr<T>>& pool,
                           c10::intrusive_ptr<T> (*make)()) {
  if (pool.empty()) return make();
  c10::intrusive_ptr<T> shell = std::move(pool.back());
  pool.pop_back();
  return shell;
}

} // namespace

struct Shells {
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> tensors;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
};

namespace {

Shells& shells_of_thread() {
  thread_local Shells instance;
  return instance;
}

} // namespace

at::Tensor new_alias_tensor() {
  c10::intrusive_ptr<c10::TensorImpl> shell = new_shell();
  TensorAccess::storageOf(*shell) = c10::Storage(new_alias());
  return at::Tensor(std::move(shell));
}

void let_go(c10::StorageImpl& alias) noexcept {
  alias.set_data_ptr_noswap(c10::DataPtr(nullptr, alias.device()));
  alias.set_nbytes(0);
}

void close(c10::StorageImpl& alias) {
  let_go(alias);
  alias.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "This native tensor showed a chameleon tensor's memory during one op "
      "call or one `with torch_chameleon.resident(...)` block, which has "
      "ended: clone() it inside, or keep the chameleon tensor.");
}

c10::SmallVector<memory::Operand, 8> AliasTensorSet::operands() const {
  c10::SmallVector<memory::Operand, 8> operands;
  for (const Entry& entry : entries_) {
    if (entry.block == nullptr) continue;
    operands.push_back({entry.block, entry.overwrites
                                         ? memory::Access::kOverwrite
                                     : entry.writes ? memory::Access::kWrite
                                                    : memory::Access::kRead});
  }
  return operands;
}

void AliasTensorSet::unbind() noexcept {
  if (shells_ == nullptr) return;
  Shells& pool = *shells_;
  for (c10::intrusive_ptr<c10::TensorImpl>& alias_tensor : alias_tensors_) {
    if (pool.tensors.size() < kMaxShells && is_empty_shell(alias_tensor) &&
        !is_nested(*alias_tensor)) {
      TensorAccess::storageOf(*alias_tensor) = c10::Storage();
      pool.tensors.push_back(std::move(alias_tensor));
    }
  }
  alias_tensors_.clear();
  shared_.clear();
  for (Entry& entry : entries_) {
    if (!entry.alias) continue;
    let_go(*entry.alias);
    if (pool.storages.size() < kMaxShells && entry.alias.use_count() == 1 &&
        entry.alias->resizable()) {
      pool.storages.push_back(std::move(entry.alias));
    } else {
      close(*entry.alias);
    }
    entry.alias.reset();
  }
  shells_ = nullptr;
}

std::size_t AliasTensorSet::lookup(
    const c10::StorageImpl* outer) const noexcept {
  if (hashed_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].outer == outer) return i;
    }
    return kNoEntry;
  }
  const std::size_t mask = hashed_.size() - 1;
  for (std::size_t slot = (reinterpret_cast<std::uintptr_t>(outer) >> 4) & mask;
       ; slot = (slot + 1) & mask) {
    if (hashed_[slot] == kNoEntry) return kNoEntry;
    if (entries_[hashed_[slot]].outer == outer) return hashed_[slot];
  }
}

void AliasTensorSet::rehash() {
  std::size_t size = 64;
  while (size < entries_.size() * 3) size *= 2;
  hashed_.assign(size, kNoEntry);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t slot =
        (reinterpret_cast<std::uintptr_t>(entries_[i].outer) >> 4) & (size - 1);
    while (hashed_[slot] != kNoEntry) slot = (slot + 1) & (size - 1);
    hashed_[slot] = i;
  }
}

std::size_t AliasTensorSet::add(const c10::TensorImpl& outer, bool writes,
                                bool overwrites) {
  c10::StorageImpl* storage = outer.unsafe_storage().unsafeGetStorageImpl();
  // mutant: deferred-operand
  backend::finish_deferred_work_on(*storage);
  const std::size_t known = lookup(storage);
  if (known != kNoEntry) {
    entries_[known].writes = entries_[known].writes || writes;
    // mutant: read-and-overwritten
    entries_[known].overwrites = false; // the other operand may be read
    entries_[known].shared = true;
    return known;
  }
  memory::Block* block = backend::block_of(*storage);
  TORCH_CHECK(
      block != nullptr || storage->data() == nullptr,
      "chameleon: this tensor's memory was not allocated by the device "
      "(a slice of a storage, from_blob, a raw pointer, or the result "
      "of a list op that did not take place); copy it to the device "
      "instead, or use torch_chameleon.resident(...) to work on tensors "
      "in place");
  TORCH_CHECK(
      block != nullptr || storage->nbytes() != 0 || outer.sym_numel() == 0,
      "chameleon: this tensor's storage was resized to 0 bytes; it has "
      "no elements to work on before the storage is resized back");
  entries_.push_back({storage, block, writes,
                      overwrites && is_all_of_storage(outer), nullptr});
  const std::size_t index = entries_.size() - 1;
  if (hashed_.empty() ? entries_.size() > kHashFrom
                      : entries_.size() * 2 > hashed_.size()) {
    rehash();
  } else if (!hashed_.empty()) {
    const std::size_t mask = hashed_.size() - 1;
    std::size_t slot = (reinterpret_cast<std::uintptr_t>(storage) >> 4) & mask;
    while (hashed_[slot] != kNoEntry) slot = (slot + 1) & mask;
    hashed_[slot] = index;
  }
  return index;
}

void AliasTensorSet::bind() {
  shells_ = &shells_of_thread();
  for (Entry& entry : entries_) {
    entry.alias = take(shells_->storages, &new_alias);
    if (entry.block != nullptr) {
      entry.alias->set_data_ptr_noswap(
          c10::DataPtr(entry.block->device_address,
                       backend::target_device(entry.outer->device().index())));
    }
    entry.alias->set_nbytes(entry.outer->nbytes());
  }
}

c10::intrusive_ptr<c10::TensorImpl> AliasTensorSet::alias_tensor(
    const c10::TensorImpl& outer, std::size_t index) {
  if (entries_[index].shared) {
    for (const auto& [known, alias_tensor] : shared_) {
      if (known == &outer) {
        return c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(alias_tensor);
      }
    }
  }
  const c10::Device device = backend::target_device(outer.device().index());
  c10::Storage alias(entries_[index].alias);
  c10::intrusive_ptr<c10::TensorImpl> alias_tensor;
  if (is_nested(outer)) [[unlikely]] {
    alias_tensor = make_nested(outer, std::move(alias), device);
  } else {
    alias_tensor = take(shells_->tensors, &new_shell);
    TensorAccess::show(outer, *alias_tensor, std::move(alias), device);
  }
  alias_tensors_.push_back(alias_tensor);
  if (entries_[index].shared) shared_.emplace_back(&outer, alias_tensor.get());
  return alias_tensor;
}

const AliasTensorSet::Entry* AliasTensorSet::find(
    const c10::StorageImpl& alias) const noexcept {
  for (const Entry& entry : entries_) {
    if (entry.alias.get() == &alias) return &entry;
  }
  return nullptr;
}

c10::intrusive_ptr<c10::TensorImpl> make_outer(const c10::TensorImpl& like,
                                               c10::Storage storage,
                                               c10::Device device,
                                               c10::VariableVersion version) {
  c10::intrusive_ptr<c10::TensorImpl> outer;
  if (is_nested(like)) {
    outer = make_nested(like, std::move(storage), device);
  } else {
    // Born without keys, and so without a version counter.
    outer = c10::make_intrusive<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(storage), c10::DispatchKeySet(),
        like.dtype());
    TensorAccess::show(like, *outer, std::move(storage), device);
  }
  if (!outer->is_inference()) outer->set_version_counter(std::move(version));
  return outer;
}

namespace {

at::Tensor metadata_tensor_on(const at::Tensor& outer, c10::Device device) {
  return at::Tensor(
      make_outer(*outer.unsafeGetTensorImpl(),
                 c10::Storage(c10::make_intrusive<c10::StorageImpl>(
                     c10::StorageImpl::use_byte_size_t(), 0,
                     c10::DataPtr(nullptr, device), nullptr, false)),
                 device));
}

} // namespace

at::Tensor make_metadata_tensor(const at::Tensor& outer) {
  return metadata_tensor_on(outer,
                            backend::target_device(outer.device().index()));
}

at::Tensor make_cuda_metadata_tensor(const at::Tensor& outer) {
  return metadata_tensor_on(outer,
                            {c10::DeviceType::CUDA, outer.device().index()});
}

} // namespace chameleon::kernels
