// Allocations and frees through PyTorch's own CUDACachingAllocator, on a card
// without memory (card.h). Prints one JSON object; {} where the card is too
// small.
//
//   torch_allocator BYTES STEADY < events
//
// BYTES is the card's memory; figures that count are of the last STEADY steps.
// An event is a line: "a ID BYTES", "f ID", or "s" at a step's end. What the
// allocator reads of PYTORCH_ALLOC_CONF holds here too.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <unordered_map>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>

#include "tests/benchmarks/fragmentation/card.h"

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

struct Counts { // so far
  card::Calls calls;
  std::int64_t retries; // the allocator gave back all it kept, to try again
};

Counts counts() {
  return {card::calls(), allocator::getDeviceStats(0).num_alloc_retries};
}

// After each step, and before the first one.
std::vector<Counts> replay() {
  std::vector<Counts> steps{counts()};
  std::unordered_map<std::uint64_t, void*> live;
  char kind = 0;
  while (std::cin >> kind) {
    std::uint64_t id = 0;
    std::size_t bytes = 0;
    if (kind == 'a') {
      std::cin >> id >> bytes;
      live[id] = allocator::raw_alloc(bytes);
    } else if (kind == 'f') {
      std::cin >> id;
      allocator::raw_delete(live.at(id));
      live.erase(id);
    } else {
      steps.push_back(counts());
    }
  }
  return steps;
}

} // namespace

int main(int count, char** values) {
  if (count != 3) {
    std::fputs("usage: torch_allocator BYTES STEADY < events\n", stderr);
    return 2;
  }
  std::ios::sync_with_stdio(false);
  card::set_bytes(std::strtoull(values[1], nullptr, 10));
  const std::size_t steady = std::strtoull(values[2], nullptr, 10);
  allocator::get()->init(1);
  std::vector<Counts> steps;
  try {
    steps = replay();
  } catch (const c10::OutOfMemoryError&) {
    std::puts("{}");
    return 0;
  }
  const Counts& from = steps.at(steps.size() - 1 - steady);
  const Counts& to = steps.back();
  const auto stats = allocator::getDeviceStats(0);
  const auto print = [](const char* name, std::uint64_t value) {
    std::printf("\"%s\":%lu,", name, value);
  };
  std::putchar('{');
  print("cudaMalloc", to.calls.allocations - from.calls.allocations);
  print("cudaFree", to.calls.frees - from.calls.frees);
  print("cuMemCreate", to.calls.created - from.calls.created);
  print("cuMemRelease", to.calls.released - from.calls.released);
  print("cuMemMap", to.calls.mapped - from.calls.mapped);
  print("cuMemUnmap", to.calls.unmapped - from.calls.unmapped);
  print("retries", static_cast<std::uint64_t>(to.retries - from.retries));
  print("allocated_bytes",
        static_cast<std::uint64_t>(stats.allocated_bytes[0].peak));
  print("reserved_bytes",
        static_cast<std::uint64_t>(stats.reserved_bytes[0].peak));
  std::printf("\"steps\":%zu}\n", steady);
  return 0;
}
