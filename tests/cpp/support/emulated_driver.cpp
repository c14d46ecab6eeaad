#include "tests/cpp/support/emulated_driver.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/runtime/check.h"

namespace chameleon::support {

using runtime::ByteRange;
using runtime::Copy;
using runtime::Interval;

namespace {

std::array<std::atomic<EmulatedDriver*>, EmulatedDriver::kSlots> g_slots{};

constexpr std::size_t kBacklog = 1024; // a launch queue is as long
constexpr double kBytesPerNs = 25;
constexpr double kTaskNs = 1000;

std::string name_of(WorkPoint point) {
  return "entry " + std::to_string(point.count) + " of line " +
         std::to_string(point.line);
}

// The others ask about the driver or the machine.
bool uses_context(DriverCall call) {
  return call >= DriverCall::cuCtxGetStreamPriorityRange;
}

} // namespace

EmulatedDriver::EmulatedDriver(EmulatedDriverOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      memory_(options_.devices, options_.device_bytes, options_.granularity,
              options_.register_limit),
      lines_(1),
      devices_(static_cast<std::size_t>(options_.devices)) {
  for (int device = 0; device < options_.devices; ++device) {
    devices_[static_cast<std::size_t>(device)].default_line = addLine(device);
  }
  for (; slot_ < kSlots; ++slot_) {
    EmulatedDriver* none = nullptr;
    if (g_slots[static_cast<std::size_t>(slot_)].compare_exchange_strong(
            none, this)) {
      return;
    }
  }
  CHAMELEON_CHECK(false, "too many emulated drivers at a time");
}

EmulatedDriver::~EmulatedDriver() {
  {
    const std::lock_guard lock(mutex_);
    runEverything();
  }
  for (const std::string& leak : leaks()) {
    const std::lock_guard lock(mutex_);
    misuse(leak);
  }
  g_slots[static_cast<std::size_t>(slot_)].store(nullptr);
}

EmulatedDriver& EmulatedDriver::at(int slot) {
  EmulatedDriver* const driver = g_slots[static_cast<std::size_t>(slot)].load();
  CHAMELEON_CHECK(driver != nullptr, "a driver call without a driver");
  return *driver;
}

// ---- for tests -------------------------------------------------------------

void EmulatedDriver::failCall(DriverCall call, std::uint64_t nth,
                              CUresult result, bool for_ever) {
  const std::lock_guard lock(mutex_);
  faults_[static_cast<std::size_t>(call)] = {0, nth, result, for_ever};
}

void EmulatedDriver::loseContext(CUresult result) {
  const std::lock_guard lock(mutex_);
  lost_ = result;
  dead_ = true;
}

std::uint64_t EmulatedDriver::calls(DriverCall call) const {
  const std::lock_guard lock(mutex_);
  return faults_[static_cast<std::size_t>(call)].calls;
}

std::uint64_t EmulatedDriver::misuses() const {
  const std::lock_guard lock(mutex_);
  return misuses_;
}

void EmulatedDriver::report(const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  misuse(sentence);
}

std::size_t EmulatedDriver::usedBytes(int device) const {
  const std::lock_guard lock(mutex_);
  return memory_.usedBytes(device);
}

std::size_t EmulatedDriver::pinnedBytes() const {
  const std::lock_guard lock(mutex_);
  return memory_.pinnedBytes();
}

std::vector<std::string> EmulatedDriver::leaks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result = memory_.leaks();
  const auto report = [&](std::size_t count, const char* what) {
    if (count != 0) {
      result.push_back(std::to_string(count) + " " + what + " leaked");
    }
  };
  report(streams_.size() - framework_streams_.size(), "streams");
  report(events_.size(), "events");
  std::size_t contexts = 0;
  for (const Device& device : devices_) {
    contexts += static_cast<std::size_t>(device.retained);
  }
  report(contexts, "references to contexts");
  return result;
}

CUstream EmulatedDriver::stream(int device, std::uint64_t id) {
  if (id == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  CUstream& handle = framework_streams_[{device, id}];
  if (handle == nullptr) {
    const std::size_t line = addLine(device);
    handle = reinterpret_cast<CUstream>(0x50000 + line);
    streams_[handle] = line;
  }
  return handle;
}

void EmulatedDriver::launch(int device, std::uint64_t id,
                            std::span<const ByteRange> reads,
                            std::span<const ByteRange> writes,
                            std::function<void()> body) {
  launchOn(device, stream(device, id), reads, writes, std::move(body));
}

void EmulatedDriver::launchOn(int device, CUstream handle,
                              std::span<const ByteRange> reads,
                              std::span<const ByteRange> writes,
                              std::function<void()> body) {
  const std::lock_guard lock(mutex_);
  const std::size_t line =
      handle != nullptr
          ? streams_.at(handle)
          : devices_[static_cast<std::size_t>(device)].default_line;
  Task task;
  task.body = std::move(body);
  for (const auto& ranges : {reads, writes}) {
    for (const ByteRange range : ranges) {
      if (range.bytes == 0) continue;
      task.uses.push_back(Interval::of(range));
      if (memory_.kindOf(task.uses.back()) != MemoryKind::kDevice) {
        misuse("a kernel uses " + text_of(task.uses.back()) +
               ", which is no device memory");
        task.body = nullptr;
      } else if (!mayUse(lines_[line].device, task.uses.back())) {
        misuse("a kernel uses " + text_of(task.uses.back()) +
               ", memory of another device to which it has no access");
      }
    }
  }
  const WorkPoint point = submit(line, std::move(task));
  for (const ByteRange range : reads) touch(point, Interval::of(range), false);
  for (const ByteRange range : writes) touch(point, Interval::of(range), true);
  progress();
}

CUresult EmulatedDriver::copyBetween(CUstream stream, const Copy& copy) {
  const std::lock_guard lock(mutex_);
  const std::size_t line = lineOf(stream);
  if (line == kNoLine) return CUDA_ERROR_INVALID_HANDLE;
  for (const std::byte* begin :
       {static_cast<const std::byte*>(copy.destination), copy.source}) {
    if (memory_.kindOf(Interval::of({begin, copy.bytes})) !=
        MemoryKind::kDevice) {
      misuse("a copy between devices of what is no device memory");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  submitCopies(line, {copy}, /*pageable=*/false);
  progress();
  return CUDA_SUCCESS;
}

void EmulatedDriver::enablePeers(int from, int to) {
  const std::lock_guard lock(mutex_);
  devices_[static_cast<std::size_t>(from)].peers |= 1u << to;
}

bool EmulatedDriver::mayUse(int device, Interval bytes) const {
  if (memory_.mayUse(device, bytes)) return true;
  if (memory_.isMapped(bytes)) return false;
  for (int other = 0; other < options_.devices; ++other) {
    const std::uint32_t peers =
        devices_[static_cast<std::size_t>(device)].peers;
    if ((peers >> other & 1) != 0 && memory_.mayUse(other, bytes)) return true;
  }
  return false;
}

void EmulatedDriver::capture(bool on) {
  const std::lock_guard lock(mutex_);
  capturing_ = on;
}

void EmulatedDriver::discard(ByteRange range) {
  const std::lock_guard lock(mutex_);
  discarded_.add(Interval::of(range));
}

void EmulatedDriver::revive(ByteRange range) {
  const std::lock_guard lock(mutex_);
  discarded_.remove(Interval::of(range));
}

void EmulatedDriver::run(int device, CUstream stream, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const std::size_t line =
      stream != nullptr
          ? streams_.at(stream)
          : devices_[static_cast<std::size_t>(device)].default_line;
  for (; count > 0 && !lines_[line].queue.empty(); --count) runOne(line);
}

void EmulatedDriver::runOwn(std::size_t number, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  const std::size_t line = own_lines_[number];
  for (; count > 0 && !lines_[line].queue.empty(); --count) runOne(line);
}

void EmulatedDriver::runAll() {
  const std::lock_guard lock(mutex_);
  runEverything();
}

bool EmulatedDriver::idle(int device, CUstream stream) const {
  const std::lock_guard lock(mutex_);
  const std::size_t line =
      stream != nullptr
          ? streams_.at(stream)
          : devices_[static_cast<std::size_t>(device)].default_line;
  return lines_[line].queue.empty();
}

// ---- submission ------------------------------------------------------------

CUresult EmulatedDriver::enter(DriverCall call) {
  Fault& fault = faults_[static_cast<std::size_t>(call)];
  ++fault.calls;
  const bool fails =
      fault.nth != 0 &&
      (fault.calls == fault.nth || (fault.for_ever && fault.calls > fault.nth));
  if (fails) return fault.result;
  return uses_context(call) ? lost_ : CUDA_SUCCESS;
}

void EmulatedDriver::misuse(const std::string& sentence) {
  ++misuses_;
  if (options_.on_misuse) {
    options_.on_misuse(sentence);
    return;
  }
  std::fprintf(stderr, "misuse of the CUDA driver: %s\n", sentence.c_str());
  std::abort();
}

std::size_t EmulatedDriver::addLine(int device) {
  lines_.emplace_back().device = device;
  return lines_.size() - 1;
}

WorkPoint EmulatedDriver::submit(std::size_t index, Task task) {
  Line& line = lines_[index];
  const WorkPoint point{index, ++line.submitted};
  // Whatever the host has waited for is over when it submits.
  line.clock.join(lines_[kHostLine].clock);
  line.queue.push_back(std::move(task));
  while (line.queue.size() > kBacklog) runOne(index);
  return point;
}

// An access of the entry that was submitted last on its line.
void EmulatedDriver::touch(WorkPoint point, Interval bytes, bool writes) {
  const char* const verb = writes ? " writes " : " reads ";
  if (discarded_.overlaps(bytes)) {
    misuse(name_of(point) + verb + text_of(bytes) +
           ", which was discarded and not revived since");
  }
  LineClock& clock = lines_[point.line].clock;
  // Ordered after all earlier entries of its own line, and itself.
  clock.add(point);
  if (const auto clash = accesses_.touch(point, clock, bytes, writes)) {
    misuse(name_of(point) + verb + text_of(bytes) + " while " +
           name_of(clash->earlier) + " may still " +
           (clash->earlier_wrote ? "write " : "read ") + text_of(clash->bytes) +
           ": no wait orders them");
  }
}

bool EmulatedDriver::takes(std::size_t line, const Copy& one, bool& pageable) {
  for (const std::byte* begin :
       {static_cast<const std::byte*>(one.destination), one.source}) {
    const Interval bytes = Interval::of({begin, one.bytes});
    const MemoryKind kind = memory_.kindOf(bytes);
    if (kind == MemoryKind::kUnmapped || kind == MemoryKind::kMixed) {
      misuse("a copy of " + text_of(bytes) +
             (kind == MemoryKind::kMixed
                  ? ", host memory that is not in one registration"
                  : ", device memory that is not mapped"));
      return false;
    }
    // A copy of plain allocations needs no access: the driver knows the way.
    if (kind == MemoryKind::kDevice && memory_.isMapped(bytes) &&
        !memory_.mayUse(lines_[line].device, bytes)) {
      misuse("a copy of " + text_of(bytes) +
             ", mapped memory to which its device has no access");
      return false;
    }
    pageable = pageable || kind == MemoryKind::kPageable;
  }
  if (Interval::of({one.destination, one.bytes})
          .overlaps(Interval::of({one.source, one.bytes}))) {
    misuse("a copy onto itself: CUDA does not define what it does");
  }
  return true;
}

// Those before the first that is refused are under way, as the true driver has
// it.
CUresult EmulatedDriver::copy(std::size_t line, std::vector<Copy> copies) {
  bool pageable = false;
  const auto refused = std::ranges::find_if_not(
      copies, [&](const Copy& one) { return takes(line, one, pageable); });
  const bool is_whole = refused == copies.end();
  copies.erase(refused, copies.end());
  const CUresult result = is_whole ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (!copies.empty()) submitCopies(line, std::move(copies), pageable);
  return result;
}

void EmulatedDriver::submitCopies(std::size_t line, std::vector<Copy> copies,
                                  bool pageable) {
  for (const Copy& one : copies) {
    for (const Copy& other : copies) {
      const Interval to = Interval::of({one.destination, one.bytes});
      if (&one != &other &&
          (to.overlaps(Interval::of({other.destination, other.bytes})) ||
           to.overlaps(Interval::of({other.source, other.bytes})))) {
        misuse("copies within a batch depend on each other");
      }
    }
  }
  Task task;
  task.copies = std::move(copies);
  std::shuffle(task.copies.begin(), task.copies.end(), random_);
  const std::vector<Copy> touched = task.copies;
  const WorkPoint point = submit(line, std::move(task));
  for (const Copy& one : touched) {
    touch(point, Interval::of({one.source, one.bytes}), false);
    touch(point, Interval::of({one.destination, one.bytes}), true);
  }
  // Of pageable memory: the call may return when all is done, or before.
  if (pageable && random_() % 2 == 0) runUntil(point);
}

// Bytes that the driver takes back: all work on them must be known to the
// host to be over.
void EmulatedDriver::gone(Interval bytes, const char* call) {
  if (const auto clash = accesses_.forget(lines_[kHostLine].clock, bytes)) {
    misuse(std::string(call) + " of " + text_of(bytes) + " while " +
           name_of(clash->earlier) + " may still use it");
  }
  discarded_.remove(bytes);
}

// ---- the schedule ----------------------------------------------------------

void EmulatedDriver::progress() {
  switch (options_.lateness) {
    case Lateness::kPrompt:
      runEverything();
      break;
    case Lateness::kRandom:
      while (random_() % 2 == 0 && runAny()) {
      }
      break;
    case Lateness::kLate:
      break;
  }
}

bool EmulatedDriver::runHead(std::size_t index) {
  Line& line = lines_[index];
  if (line.queue.empty() || !passed(line.queue.front().after)) return false;
  Task task = std::move(line.queue.front());
  line.queue.pop_front();
  execute(line, task);
  ++line.done;
  return true;
}

void EmulatedDriver::runOne(std::size_t index) {
  const WorkPoint after = lines_[index].queue.front().after;
  if (!passed(after)) runUntil(after);
  CHAMELEON_CHECK(runHead(index), "streams wait for each other in a circle");
}

void EmulatedDriver::runUntil(WorkPoint point) {
  while (!passed(point)) runOne(point.line);
}

bool EmulatedDriver::runAny() {
  const std::size_t count = lines_.size();
  const std::size_t first = random_() % count;
  for (std::size_t i = 0; i < count; ++i) {
    if (runHead((first + i) % count)) return true;
  }
  return false;
}

void EmulatedDriver::runEverything() {
  while (runAny()) {
  }
}

void EmulatedDriver::execute(Line& line, Task& task) {
  if (dead_) return;
  if (const auto event = events_.find(task.waits_for); event != events_.end()) {
    line.time_ns = std::max(line.time_ns, event->second.time_ns);
  }
  for (const Copy& one : task.copies) {
    for (const std::byte* begin :
         {static_cast<const std::byte*>(one.destination), one.source}) {
      if (memory_.kindOf(Interval::of({begin, one.bytes})) ==
          MemoryKind::kUnmapped) {
        misuse("a copy runs after its device memory was unmapped");
        return;
      }
    }
    std::memmove(one.destination, one.source, one.bytes);
    line.time_ns += kTaskNs + static_cast<double>(one.bytes) / kBytesPerNs;
  }
  if (task.body) {
    for (const Interval bytes : task.uses) {
      if (memory_.kindOf(bytes) != MemoryKind::kDevice) {
        misuse("a kernel runs after its device memory was unmapped");
        return;
      }
    }
    task.body();
    line.time_ns += kTaskNs;
  }
  if (task.marks != nullptr) {
    const auto event = events_.find(task.marks);
    if (event != events_.end()) event->second.time_ns = line.time_ns;
  }
}

} // namespace chameleon::support
