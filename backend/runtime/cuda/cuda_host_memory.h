// Host memory for copies to and from one GPU: slabs in reserved address space,
// near that GPU, registered with the driver in chunks by a thread of their own,
// slabs in the order allocated and each from the bottom up, so that nobody
// waits for it. Other threads populate ahead of that one: the driver then finds
// the pages, and its lock, which every other call needs, is held briefly. What
// is not registered yet, or was refused, is pageable: copies of it are right,
// only slower, and may block the host inside the driver.
//
// Thread safety: every method may be called from any thread. Its lock is a
// leaf; no driver call is made under it, and nothing populated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "backend/runtime/cuda/cuda_context.h"
#include "backend/runtime/page_populator.h"
#include "backend/runtime/ranked_mutex.h"

namespace chameleon::runtime {

struct CudaHostMemoryOptions {
  // Large enough that few copies are cut at its end and that a call costs
  // nothing beside its pages, small enough that what it covers is soon of use.
  std::size_t chunk_bytes = std::size_t{64} << 20;
  // False: allocate() populates and registers before it returns, and starts no
  // threads. For tests.
  bool background = true;
  // Told once, when the driver first refuses to register memory.
  std::function<void(std::string_view)> warn;
  // Threads that populate, at least one. 0: as many as the process may use of
  // the machine's cores but one, which is the program's, and at most eight. A
  // thread populates at 2 to 5 GB/s, and what is populated is registered at 30
  // to 46 (on the host of an H100): more would wait for the thread that
  // registers, and take cores from the program's own.
  std::size_t populating_threads = 0;
};

class CudaHostMemory {
 public:
  CudaHostMemory(const CudaContext& context, CudaHostMemoryOptions options);
  // Unregisters and closes what is left. Waits for pieces and the chunk that
  // threads are at, not for what they have not begun.
  ~CudaHostMemory();
  CudaHostMemory(const CudaHostMemory&) = delete;
  CudaHostMemory& operator=(const CudaHostMemory&) = delete;

  // REQUIRES: see DeviceRuntime::allocateHost().
  Error allocate(std::byte* address, std::size_t bytes);
  // REQUIRES: a slab, or its upper part, and that no copy uses the slab any
  // more. Waits for those of its pieces and its chunk that threads are at. A
  // part that stays is registered anew.
  void free(std::byte* address, std::size_t bytes) noexcept;

  // Memory of others, as if it were a slab: it is populated and registered, and
  // stays mapped. REQUIRES: see DeviceRuntime::pin().
  void pin(std::byte* address, std::size_t bytes) {
    add(address, bytes, /*is_ours=*/false);
  }
  void unpin(std::byte* address, std::size_t bytes) noexcept {
    (void)take(address, bytes);
  }

  // How many of the `bytes` from `address` on may be one copy, and whether
  // these are registered; what is not ours counts as not registered. A run of
  // ours ends with its chunk: the driver takes no copy that lies in two
  // registrations, nor one that is registered in part, and what is pageable now
  // may be a registration of its own when the copy is submitted.
  struct Run {
    std::size_t bytes;
    bool registered;
    bool ours;
  };
  Run runAt(const std::byte* address, std::size_t bytes) const noexcept;

  std::size_t registeredBytes() const noexcept;
  std::uint64_t refusals() const noexcept;
  void awaitRegistration(); // until all has been registered or refused

 private:
  struct Slab {
    std::byte* base;
    std::size_t bytes;
    bool is_ours;                     // by allocate()
    std::size_t registered_bytes = 0; // from the base on, whole chunks
    bool busy = false;                // the thread is at a chunk
    bool done = false;                // registered as far as it goes
  };

  // Populates and registers it.
  void add(std::byte* base, std::size_t bytes, bool is_ours);
  // The slab that ends there is none any more, and not registered.
  std::unique_ptr<Slab> take(std::byte* address, std::size_t bytes) noexcept;
  void run(); // the thread
  // Registers the next chunk once it is populated, unless the slab is about to
  // go. REQUIRES `lock` held and !slab.done; gives it up meanwhile.
  using Mutex = RankedMutex<LockRank::kRuntimePart>;
  void registerChunk(Slab& slab, std::unique_lock<Mutex>& lock);
  void unregister(const Slab& slab) noexcept;

  const CudaContext& context_;
  const CudaHostMemoryOptions options_;
  const int numa_node_; // < 0: any
  mutable RankedMutex<LockRank::kRuntimePart> mutex_;
  RankedCondition<LockRank::kRuntimePart> work_;     // for the thread
  RankedCondition<LockRank::kRuntimePart> progress_; // for who waits for it
  // Guarded by mutex_.
  std::map<const std::byte*, std::unique_ptr<Slab>> slabs_; // by base
  std::deque<Slab*> queue_;                                 // to be registered
  std::size_t registered_bytes_ = 0;
  std::uint64_t refusals_ = 0;
  bool stopping_ = false;
  std::thread thread_; // started by the first slab
  // Has a lock of its own, never taken under mutex_.
  PagePopulator populator_;
};

} // namespace chameleon::runtime
