// What other kernels allocated: a run with data shows, call by call, what its
// kernels take from the arena and give back; a run without data can do the
// same in place of what the table of workspaces says. So both meet the same
// needs of room, and what the pager decides can be compared.
//
// Tests: test_decisions.py.
//
// Thread safety: one list for the process, set before the first op, for one
// thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/pager.h"

namespace chameleon::kernels::simulated {

// In the order in which it happened; `call` counts calls of the pager from 1.
struct KernelMemoryEvent {
  // kEnd: the kernel's; another one of the same call follows, behind a re-run.
  enum class Kind : std::uint8_t { kAllocate, kFree, kAdopt, kEnd };
  std::uint64_t call;
  Kind kind;
  std::size_t bytes;        // kAllocate
  std::uint32_t allocation; // which one of the kernel, from 0
};

void set_kernel_memory(std::vector<KernelMemoryEvent> events);

// One kernel's part, in three: up to the first result, the results (adopt()
// hands out what was allocated for them), what was freed later.
class KernelMemory {
 public:
  // Throws OutOfMemoryError, as a kernel does.
  KernelMemory(memory::Pager& pager, memory::Call& call);
  ~KernelMemory();
  KernelMemory(const KernelMemory&) = delete;
  KernelMemory& operator=(const KernelMemory&) = delete;

  // False: nothing is known of this process's calls.
  bool finish();
  // Memory for the next result of the call that runs; null: allocate it.
  static std::byte* adopt();

 private:
  bool play(bool results);

  memory::Pager& pager_;
  memory::Call& call_;
  const std::uint64_t number_;
  std::vector<std::byte*> allocations_;
};

} // namespace chameleon::kernels::simulated
