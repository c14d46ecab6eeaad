#include "kernels/simulated/kernel_memory.h"

#include <utility>

#include "backend/torch/error.h"

namespace chameleon::kernels::simulated {
namespace {

struct Script {
  std::vector<KernelMemoryEvent> events;
  std::size_t next = 0;
  KernelMemory* running = nullptr;
};

Script& script() {
  static auto* const instance = new Script; // leaked, as the device
  return *instance;
}

} // namespace

void set_kernel_memory(std::vector<KernelMemoryEvent> events) {
  script() = {std::move(events), 0, nullptr};
}

KernelMemory::KernelMemory(memory::Pager& pager, memory::Call& call)
    : pager_(pager), call_(call), number_(call.tick()) {
  Script& all = script();
  while (all.next < all.events.size() && all.events[all.next].call < number_) {
    ++all.next;
  }
  all.running = this;
  play(false);
}

KernelMemory::~KernelMemory() { script().running = nullptr; }

// Plays up to the next event of a result, or `results` and all others.
bool KernelMemory::play(bool results) {
  using EventKind = KernelMemoryEvent::Kind;
  Script& all = script();
  for (; all.next < all.events.size(); ++all.next) {
    const KernelMemoryEvent& event = all.events[all.next];
    if (event.call != number_) break;
    if (event.kind == EventKind::kEnd) {
      if (results) ++all.next;
      break;
    }
    if (event.kind == EventKind::kAllocate) {
      allocations_.push_back(
          backend::value_or_throw(pager_.allocate(call_, event.bytes)));
    } else if (event.kind == EventKind::kFree) {
      pager_.free(&call_, allocations_.at(event.allocation));
    } else if (!results) {
      return true;
    }
  }
  return false;
}

bool KernelMemory::finish() {
  play(true);
  return !script().events.empty();
}

std::byte* KernelMemory::adopt() {
  Script& all = script();
  if (all.running == nullptr || !all.running->play(false)) return nullptr;
  const KernelMemoryEvent& event = all.events[all.next++];
  return all.running->allocations_.at(event.allocation);
}

} // namespace chameleon::kernels::simulated
