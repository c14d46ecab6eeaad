#include "kernels/twins.h"

#include <c10/core/CPUAllocator.h>

namespace chameleon::kernels {
namespace {

constexpr std::size_t kHashFrom = 16; // entries before lookup is hashed
constexpr std::size_t kMaxShells = 64;
constexpr auto kNoEntry = static_cast<std::size_t>(-1);

// Reaches TensorImpl's protected state; never instantiated. (Naming a member
// through a derived class yields a pointer to the base's member.)
struct Access : c10::TensorImpl {
  static void show(const c10::TensorImpl& like, c10::TensorImpl& twin,
                   c10::Storage storage, c10::Device device) {
    copy_generic_tensor_metadata(&like, &twin);
    twin.*(&Access::storage_) = std::move(storage);
    retarget(twin, like.key_set() - c10::python_ks, device);
  }
  static void retarget(c10::TensorImpl& tensor, c10::DispatchKeySet keys,
                       c10::Device device) {
    tensor.*(&Access::key_set_) = keys;
    tensor._change_backend_component_keys(device);
    tensor.*(&Access::device_opt_) = device;
  }
  static c10::Storage& storageOf(c10::TensorImpl& tensor) {
    return tensor.*(&Access::storage_);
  }
  static bool hasExtraMeta(const c10::TensorImpl& tensor) {
    return tensor.*(&Access::extra_meta_) != nullptr;
  }
};

c10::intrusive_ptr<c10::TensorImpl> new_shell() {
  return c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta(),
      c10::Device(c10::DeviceType::CPU));
}

c10::intrusive_ptr<c10::StorageImpl> new_alias() {
  const c10::DeviceType type = backend::target().type;
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, type),
      c10::GetAllocator(type), /*resizable=*/true);
}

// Empty shells of the calling thread.
struct Shells {
  std::vector<c10::intrusive_ptr<c10::TensorImpl>> tensors;
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages;
};
Shells& shells() {
  thread_local Shells instance;
  return instance;
}

template <typename T>
c10::intrusive_ptr<T> take(std::vector<c10::intrusive_ptr<T>>& pool,
                           c10::intrusive_ptr<T> (*make)()) {
  if (pool.empty()) return make();
  c10::intrusive_ptr<T> shell = std::move(pool.back());
  pool.pop_back();
  return shell;
}

// Nobody else holds the shell, and nothing was attached to it.
bool is_empty_shell(const c10::intrusive_ptr<c10::TensorImpl>& tensor) {
  return tensor.use_count() == 1 && tensor.weak_use_count() == 1 &&
      tensor->autograd_meta() == nullptr && !Access::hasExtraMeta(*tensor) &&
      tensor->pyobj_slot()->load_pyobj() == nullptr;
}

} // namespace

void TwinSet::unbind() noexcept {
  Shells& pool = shells();
  for (c10::intrusive_ptr<c10::TensorImpl>& twin : twins_) {
    if (pool.tensors.size() < kMaxShells && is_empty_shell(twin)) {
      Access::storageOf(*twin) = c10::Storage();
      pool.tensors.push_back(std::move(twin));
    }
  }
  twins_.clear();
  for (Entry& entry : entries_) {
    if (!entry.alias) continue;
    // A twin that a kernel kept must not see memory that is no longer pinned.
    const c10::DeviceType type = backend::target().type;
    entry.alias->set_data_ptr_noswap(c10::DataPtr(nullptr, type));
    entry.alias->set_nbytes(0);
    if (pool.storages.size() < kMaxShells && entry.alias.use_count() == 1 &&
        entry.alias->resizable()) {
      pool.storages.push_back(std::move(entry.alias));
    }
    entry.alias.reset();
  }
}

std::size_t TwinSet::lookup(const c10::StorageImpl* outer) const noexcept {
  if (hashed_.empty()) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].outer == outer) return i;
    }
    return kNoEntry;
  }
  const std::size_t mask = hashed_.size() - 1;
  for (std::size_t slot = (reinterpret_cast<std::uintptr_t>(outer) >> 4) & mask;;
       slot = (slot + 1) & mask) {
    if (hashed_[slot] == kNoEntry) return kNoEntry;
    if (entries_[hashed_[slot]].outer == outer) return hashed_[slot];
  }
}

void TwinSet::rehash() {
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

std::size_t TwinSet::add(const c10::TensorImpl& outer, bool writes) {
  c10::StorageImpl* storage = outer.unsafe_storage().unsafeGetStorageImpl();
  const std::size_t known = lookup(storage);
  if (known != kNoEntry) {
    entries_[known].writes = entries_[known].writes || writes;
    return known;
  }
  entries_.push_back({storage, backend::block_of(*storage), writes, nullptr});
  const std::size_t index = entries_.size() - 1;
  if (!hashed_.empty() && entries_.size() * 2 > hashed_.size()) {
    rehash();
  } else if (!hashed_.empty()) {
    const std::size_t mask = hashed_.size() - 1;
    std::size_t slot =
        (reinterpret_cast<std::uintptr_t>(storage) >> 4) & mask;
    while (hashed_[slot] != kNoEntry) slot = (slot + 1) & mask;
    hashed_[slot] = index;
  } else if (entries_.size() > kHashFrom) {
    rehash();
  }
  return index;
}

void TwinSet::bind() {
  Shells& pool = shells();
  const c10::DeviceType type = backend::target().type;
  for (Entry& entry : entries_) {
    entry.alias = take(pool.storages, &new_alias);
    if (entry.block != nullptr) {
      entry.alias->set_data_ptr_noswap(
          c10::DataPtr(entry.block->device_address, type));
    }
    entry.alias->set_nbytes(entry.outer->nbytes());
  }
}

c10::intrusive_ptr<c10::TensorImpl> TwinSet::twin(const c10::TensorImpl& outer,
                                                  std::size_t index) {
  c10::intrusive_ptr<c10::TensorImpl> twin = take(shells().tensors, &new_shell);
  Access::show(outer, *twin, c10::Storage(entries_[index].alias),
               backend::target_device(outer.device().index()));
  twins_.push_back(twin);
  return twin;
}

const TwinSet::Entry* TwinSet::find(
    const c10::StorageImpl& alias) const noexcept {
  for (const Entry& entry : entries_) {
    if (entry.alias.get() == &alias) return &entry;
  }
  return nullptr;
}

void retag(c10::TensorImpl& tensor, c10::Device device) {
  Access::retarget(tensor, tensor.key_set(), device);
}

c10::intrusive_ptr<c10::TensorImpl> make_outer(const c10::TensorImpl& like,
                                               c10::Storage storage,
                                               c10::Device device) {
  c10::intrusive_ptr<c10::TensorImpl> outer =
      c10::make_intrusive<c10::TensorImpl>(std::move(storage), like.key_set(),
                                           like.dtype());
  Access::show(like, *outer, outer->storage(), device);
  return outer;
}

} // namespace chameleon::kernels
