// Alias tensors: short-lived native tensors that show a native kernel where an
// operand's bytes are right now. All alias tensors of one storage inside one
// call share one alias StorageImpl, so that aliasing and overlap checks inside
// the kernel see what is true.
//
// No alias tensor stays bound to a storage after its call. Their empty shells
// are recycled per thread, but only if nobody else holds them.
//
// Thread safety: belongs to the thread of its call.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include "memory/block.h"
#include "memory/pager_call.h"

namespace chameleon::kernels {

struct Shells; // empty ones, of one thread

// The storages of one call. Lives on the stack between pin and unpin.
class AliasTensorSet {
 public:
  AliasTensorSet() = default;
  AliasTensorSet(const AliasTensorSet&) = delete;
  AliasTensorSet& operator=(const AliasTensorSet&) = delete;

  // One distinct outer storage and its alias on the target.
  struct Entry {
    c10::StorageImpl* outer;
    memory::Block* block; // null: zero bytes
    bool writes;
    bool overwrites; // every byte, unread
    c10::intrusive_ptr<c10::StorageImpl> alias;
    bool shared = false; // by several operands
  };

  // Collects the storage of an operand before pinning. Returns its entry.
  // `overwrites`: the op writes every element of it and reads none.
  std::size_t add(const c10::TensorImpl& outer, bool writes,
                  bool overwrites = false);
  // What to pin: every collected storage that has bytes.
  c10::SmallVector<memory::Operand, 8> operands() const;
  // After pinning: makes the alias storages / before unpinning: lets go of
  // them and of all alias tensors.
  void bind();
  void unbind() noexcept;
  // An alias tensor of `outer`, whose storage is entry `index`. One tensor has
  // one alias tensor: kernels ask whether two operands are the same.
  c10::intrusive_ptr<c10::TensorImpl> alias_tensor(const c10::TensorImpl& outer,
                                                   std::size_t index);
  // The entry whose alias storage this is; null: none.
  const Entry* find(const c10::StorageImpl& alias) const noexcept;

  c10::SmallVectorImpl<Entry>& entries() noexcept { return entries_; }

 private:
  c10::SmallVector<Entry, 6> entries_;
  c10::SmallVector<c10::intrusive_ptr<c10::TensorImpl>, 8> alias_tensors_;
  // Whose storage is shared, with their alias tensors.
  c10::SmallVector<std::pair<const c10::TensorImpl*, c10::TensorImpl*>, 2>
      shared_;
  Shells* shells_ = nullptr;        // set from bind() to unbind()
  std::vector<std::size_t> hashed_; // open addressing, for long lists
  void rehash();
  std::size_t lookup(const c10::StorageImpl* outer) const noexcept;
};

// An alias storage loses its memory: a tensor that somebody kept must not see
// what is no longer pinned.
void let_go(c10::StorageImpl& alias) noexcept;

// The same where somebody did keep one: using it raises one sentence.
void close(c10::StorageImpl& alias);

// The elements of the tensor are all bytes of its storage: writing them leaves
// nothing of what was there.
inline bool is_all_of_storage(const c10::TensorImpl& tensor) {
  return tensor.storage_offset() == 0 &&
         static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() ==
             tensor.unsafe_storage().nbytes() &&
         tensor.is_non_overlapping_and_dense();
}
// An out= operand that was to be overwritten was made another size: what lies
// behind its elements keeps its value.
inline void keep_rest(memory::Call& call, const memory::Block& block,
                      const c10::TensorImpl& alias_tensor) {
  call.overwritten(block, static_cast<std::size_t>(alias_tensor.numel()) *
                              alias_tensor.itemsize());
}

// An empty shell with an alias storage of its own.
at::Tensor new_alias_tensor();

// A tensor of the target with the metadata of `outer` and no bytes: for asking
// native what it would choose, which looks at shapes only.
at::Tensor make_metadata_tensor(const at::Tensor& outer);
// The same on CUDA, which a simulated device asks as well.
at::Tensor make_cuda_metadata_tensor(const at::Tensor& outer);

// A new tensor over `storage` with the metadata of `like`. Autograd counts its
// writes by `version`, unless it is an inference tensor, whose are not counted.
c10::intrusive_ptr<c10::TensorImpl> make_outer(
    const c10::TensorImpl& like, c10::Storage storage, c10::Device device,
    c10::VariableVersion version = c10::VariableVersion(0));

} // namespace chameleon::kernels
