// Births and deaths of storages, with the stacks that led to them: what
// torch.chameleon.memory's _record_memory_history() turns on and its
// _snapshot() shows. Off by default: nobody observes storages then.
//
// Thread safety: any thread. One leaf lock, under which nothing is called that
// could run Python. The GIL is taken, without that lock, where a stack is
// recorded: at births. Deaths take none (backend/torch/README.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include "memory/block.h"

namespace chameleon::python {

class AllocationHistory {
 public:
  using Stack = std::shared_ptr<torch::CapturedTraceback>; // null: none

  enum class Event : std::uint8_t { kAlloc, kFree, kOutOfMemory };
  enum class Stacks : std::uint8_t { kNone, kLive, kAll };

  struct Options {
    bool trace = true; // events too, not only the stacks of what lives
    Stacks stacks = Stacks::kAll; // of what lives; of births too
    bool cpp = false;             // C++ frames as well
    std::size_t limit = 0;        // events kept; the oldest go
  };
  struct Entry {
    Event event;
    c10::DeviceIndex device;
    std::uint64_t address;
    std::uint64_t identity; // of the block; 0: none
    std::size_t bytes;
    std::size_t rounded_bytes;
    std::int64_t time_us; // since 1970
    std::uint64_t call;   // the pager's latest then
    Stack stack;
  };

  static AllocationHistory& instance(); // never destroyed

  void start(const Options& options, bool clear);
  void stop(); // events stay, stacks of what lives do not

  std::vector<Entry> entries() const;
  Stack stackOf(std::uint64_t identity) const; // of a live block

 private:
  static void born(const memory::Block& block, c10::DeviceIndex index);
  static void died(const memory::Block& block) noexcept;
  static void refused(std::size_t bytes, c10::DeviceIndex index);
  void add(Entry entry);
  Options options() const;

  mutable std::mutex mutex_; // guards what follows
  Options options_;
  std::deque<Entry> entries_;
  std::unordered_map<std::uint64_t, Stack> live_; // by identity
};

void bind_allocation_history(pybind11::module_& m);

} // namespace chameleon::python
