// Outer storages: the c10::StorageImpl that users' tensors hold, whose DataPtr
// carries a logical address as its data and a memory::Block as its context.
// A storage is ours if its deleter is; there is no subclass to look for.
//
// Tests: test_storage.py.
//
// Thread safety: any thread; release_block() takes no lock.
#pragma once

#include <atomic>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "backend/torch/device.h"
#include "memory/block.h"

namespace chameleon::backend {

// DataPtr deleter of every non-empty outer storage. Takes neither the GIL nor
// a lock; may run on any thread and after interpreter finalisation.
void release_block(void* context) noexcept;

inline bool is_chameleon(const c10::TensorImpl& tensor) noexcept {
  return tensor.key_set().has_backend(c10::BackendComponent::PrivateUse1Bit);
}

// Null for an empty storage (zero bytes have no block).
inline memory::Block* block_of(const c10::StorageImpl& storage) noexcept {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == &release_block
             ? static_cast<memory::Block*>(data.get_context())
             : nullptr;
}

// Is told when storages get a block and give it up. Called without a lock of
// ours, possibly inside an op call, with the GIL or without it.
struct StorageObserver {
  void (*born)(const memory::Block& block, c10::DeviceIndex index);
  // On any thread, in a garbage collector, after interpreter finalisation.
  void (*died)(const memory::Block& block) noexcept;
  void (*refused)(std::size_t bytes, c10::DeviceIndex index);
};
// Null, as it is at first: nobody. What it points to must live for ever.
extern constinit std::atomic<const StorageObserver*> storage_observer;

// A DataPtr with `block`, which somebody else owns until it is released.
inline c10::DataPtr lend_block(memory::Block* block, c10::DeviceIndex index) {
  return {block->logical_address, block, &release_block,
          c10::Device(kChameleon, index)};
}
// A DataPtr that owns `block`, for the first time.
inline c10::DataPtr own_block(memory::Block* block, c10::DeviceIndex index) {
  if (const StorageObserver* observer =
          storage_observer.load(std::memory_order_relaxed)) [[unlikely]] {
    observer->born(*block, index);
  }
  return lend_block(block, index);
}

// A new block of `bytes`, Unbacked; zero bytes: null data on the device.
// Throws OutOfMemoryError past the logical limit.
c10::DataPtr allocate_block(std::size_t bytes, c10::DeviceIndex index);

// untyped_storage().resize_(): keeps the StorageImpl and the common prefix of
// the bytes; 0 gives the memory back at once, but for what deferred work needs
// of it.
void resize_storage(c10::StorageImpl& storage, std::size_t bytes);

} // namespace chameleon::backend
