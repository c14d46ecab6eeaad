#include "python/csrc/allocation_history.h"

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/storage.h"

namespace py = pybind11;

namespace chameleon::python {
namespace {

using backend::DeviceContext;
using backend::resolve_index;

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::uint64_t calls_of(c10::DeviceIndex index) {
  DeviceContext* const device = backend::context_if_used(index);
  return device == nullptr ? 0 : device->pager->calls();
}

c10::DeviceIndex index_of(const memory::Block& block) {
  for (c10::DeviceIndex i = 0; i < backend::device_count(); ++i) {
    DeviceContext* const device = backend::context_if_used(i);
    if (device != nullptr && device->pager == block.pager) return i;
  }
  return 0; // it was of a process that this one was forked from
}

std::uint64_t number_of(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

AllocationHistory::Stack gather(bool wanted, bool cpp) {
  if (!wanted || Py_IsInitialized() == 0) return nullptr;
  return torch::CapturedTraceback::gather(true, false, cpp);
}

} // namespace

AllocationHistory& AllocationHistory::instance() {
  static auto* history = new AllocationHistory; // outlives storages
  return *history;
}

void AllocationHistory::start(const Options& options, bool clear) {
  static constexpr backend::StorageObserver kObserver{&born, &died, &refused};
  {
    const std::lock_guard lock(mutex_);
    options_ = options;
    if (clear) entries_.clear();
    while (entries_.size() > options.limit) entries_.pop_front();
  }
  backend::storage_observer.store(&kObserver);
}

void AllocationHistory::stop() {
  backend::storage_observer.store(nullptr);
  decltype(live_) gone; // deaths are not seen from now on
  const std::lock_guard lock(mutex_);
  gone.swap(live_);
}

std::vector<AllocationHistory::Entry> AllocationHistory::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

AllocationHistory::Stack AllocationHistory::stackOf(
    std::uint64_t identity) const {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(identity);
  return found == live_.end() ? nullptr : found->second;
}

AllocationHistory::Options AllocationHistory::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

void AllocationHistory::add(Entry entry) {
  // Freed without the lock: what a stack holds may need another one.
  std::optional<Entry> oldest;
  const std::lock_guard lock(mutex_);
  if (!options_.trace || options_.limit == 0) return;
  if (entries_.size() >= options_.limit) {
    oldest = std::move(entries_.front());
    entries_.pop_front();
  }
  entries_.push_back(std::move(entry));
}

void AllocationHistory::born(const memory::Block& block,
                             c10::DeviceIndex index) {
  AllocationHistory& self = instance();
  const Options options = self.options();
  Stack stack = gather(options.stacks != Stacks::kNone, options.cpp);
  const std::uint64_t identity = block.identity;
  self.add({Event::kAlloc, index, number_of(block.logical_address), identity,
            block.bytes, block.rounded_bytes, now_us(), calls_of(index),
            options.stacks == Stacks::kAll ? stack : nullptr});
  if (stack == nullptr) return;
  const std::lock_guard lock(self.mutex_);
  self.live_.emplace(identity, std::move(stack));
}

void AllocationHistory::died(const memory::Block& block) noexcept {
  AllocationHistory& self = instance();
  const std::uint64_t identity = block.identity;
  const c10::DeviceIndex index = index_of(block);
  self.add({Event::kFree, index, number_of(block.logical_address), identity,
            block.bytes, block.rounded_bytes, now_us(), calls_of(index),
            nullptr});
  decltype(self.live_)::node_type gone; // freed without the lock
  const std::lock_guard lock(self.mutex_);
  gone = self.live_.extract(identity);
}

void AllocationHistory::refused(std::size_t bytes, c10::DeviceIndex index) {
  AllocationHistory& self = instance();
  const Options options = self.options();
  Stack stack = gather(options.stacks == Stacks::kAll, options.cpp);
  self.add({Event::kOutOfMemory, index, 0, 0, bytes, bytes, now_us(),
            calls_of(index), std::move(stack)});
}

namespace {

// Stacks as lists of frames; equal frames are one object.
class FrameLists {
 public:
  void want(torch::CapturedTraceback* stack) {
    if (stack != nullptr) numbers_.emplace(stack, numbers_.size());
  }
  void symbolize() {
    std::vector<torch::CapturedTraceback*> stacks(numbers_.size());
    for (const auto& [stack, number] : numbers_) stacks[number] = stack;
    const torch::SymbolizedTracebacks symbols = torch::symbolize(stacks);
    std::vector<py::dict> frames;
    for (const auto& frame : symbols.all_frames) {
      py::dict row;
      row["filename"] = frame.filename;
      row["line"] = frame.lineno;
      row["name"] = frame.funcname;
      frames.push_back(std::move(row));
    }
    for (const std::vector<std::uint64_t>& traceback : symbols.tracebacks) {
      py::list list;
      for (const std::uint64_t frame : traceback) list.append(frames[frame]);
      lists_.push_back(std::move(list));
    }
  }
  py::list of(torch::CapturedTraceback* stack) const {
    const auto found = numbers_.find(stack);
    return found == numbers_.end() ? py::list() : lists_[found->second];
  }

 private:
  std::map<torch::CapturedTraceback*, std::size_t> numbers_;
  std::vector<py::list> lists_;
};

constexpr const char* kStateNames[] = {"unbacked", "resident", "host",
                                       "fetching", "evicting", "dropped"};
constexpr const char* kEventNames[] = {"alloc", "free", "oom"};

py::dict memory_snapshot(c10::DeviceIndex index, bool with_events) {
  using Stack = AllocationHistory::Stack;
  index = resolve_index(index);
  const AllocationHistory& history = AllocationHistory::instance();
  std::vector<memory::Pager::BlockInfo> blocks;
  std::vector<AllocationHistory::Entry> entries;
  std::vector<Stack> stacks;
  {
    const py::gil_scoped_release no_gil;
    backend::finish_deferred_work();
    if (DeviceContext* device = backend::context_if_used(index)) {
      blocks = device->pager->blocks();
    }
    for (const auto& block : blocks) {
      stacks.push_back(history.stackOf(block.identity));
    }
    if (with_events) entries = history.entries();
  }
  FrameLists frames;
  for (const Stack& stack : stacks) frames.want(stack.get());
  for (const auto& entry : entries) frames.want(entry.stack.get());
  frames.symbolize();

  py::list block_rows;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    py::dict row;
    row["identity"] = blocks[i].identity;
    row["address"] = number_of(blocks[i].logical_address);
    row["bytes"] = blocks[i].bytes;
    row["rounded_bytes"] = blocks[i].rounded_bytes;
    row["state"] = kStateNames[static_cast<std::size_t>(blocks[i].state)];
    row["frames"] = frames.of(stacks[i].get());
    block_rows.append(std::move(row));
  }
  py::list event_rows;
  for (const AllocationHistory::Entry& entry : entries) {
    if (entry.device != index) continue;
    py::dict row;
    row["event"] = kEventNames[static_cast<std::size_t>(entry.event)];
    row["identity"] = entry.identity;
    row["address"] = entry.address;
    row["bytes"] = entry.bytes;
    row["rounded_bytes"] = entry.rounded_bytes;
    row["time_us"] = entry.time_us;
    row["call"] = entry.call;
    row["frames"] = frames.of(entry.stack.get());
    event_rows.append(std::move(row));
  }
  py::dict snapshot;
  snapshot["blocks"] = block_rows;
  snapshot["events"] = event_rows;
  return snapshot;
}

} // namespace

void bind_allocation_history(py::module_& m) {
  using Stacks = AllocationHistory::Stacks;
  m.def("record_memory_history", [](const std::string& stacks, bool cpp,
                                    bool trace, std::size_t limit, bool clear) {
    static const std::map<std::string, Stacks> names{{"none", Stacks::kNone},
                                                     {"live", Stacks::kLive},
                                                     {"all", Stacks::kAll}};
    AllocationHistory::instance().start({trace, names.at(stacks), cpp, limit},
                                        clear);
  });
  m.def("stop_memory_history", [] { AllocationHistory::instance().stop(); });
  m.def("memory_snapshot", &memory_snapshot);
}

} // namespace chameleon::python
