#include "backend/torch/storage.h"

#include <algorithm>
#include <vector>

#include "backend/torch/deferred_work.h"
#include "backend/torch/error.h"
#include "backend/torch/stream.h"

namespace chameleon::backend {

constinit std::atomic<const StorageObserver*> storage_observer{nullptr};

void release_block(void* context) noexcept {
  auto* block = static_cast<memory::Block*>(context);
  if (const StorageObserver* observer =
          storage_observer.load(std::memory_order_relaxed)) [[unlikely]] {
    observer->died(*block);
  }
  block->pager->release(block);
}

c10::DataPtr allocate_block(std::size_t bytes, c10::DeviceIndex index) {
  index = resolve_index(index);
  if (bytes == 0) return {nullptr, c10::Device(kChameleon, index)};
  memory::Pager& pager = *context(index, "the first allocation").pager;
  auto block = pager.createBlock(bytes);
  if (!block.ok() && has_deferred_work()) [[unlikely]] {
    finish_deferred_work(); // it may hold tensors that died
    block = pager.createBlock(bytes);
  }
  if (!block.ok()) [[unlikely]] {
    const StorageObserver* observer = storage_observer.load();
    if (observer != nullptr) observer->refused(bytes, index);
    throw_error(block.error());
  }
  return own_block(*block, index);
}

void resize_storage(c10::StorageImpl& storage, std::size_t bytes) {
  if (bytes > 0) {
    finish_deferred_work_on(storage);
  } else {
    // mutant: emptied-operand
    leave_bytes_to_deferred_work(storage);
  }
  const c10::DeviceIndex index = storage.device().index();
  memory::Block* block = block_of(storage);
  const std::size_t kept =
      block == nullptr ? 0 : std::min(bytes, storage.nbytes());
  c10::DataPtr fresh = allocate_block(bytes, index);
  // mutant: resized-values
  if (kept > 0 && target().holds_data) {
    // Rare (resize_ that grows a tensor with values), so the plain way through
    // the host is good enough and works in every state of both blocks.
    memory::Pager& pager = *context(index, "a resize").pager;
    const runtime::Stream stream = current_stream(index);
    std::vector<std::byte> bytes_kept(kept);
    throw_if(pager.read(*block, 0, bytes_kept.data(), kept, stream));
    throw_if(pager.write(*static_cast<memory::Block*>(fresh.get_context()), 0,
                         bytes_kept.data(), kept, stream));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

} // namespace chameleon::backend
