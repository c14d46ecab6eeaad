#include "backend/runtime/simulated/simulated_runtime.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/runtime/address_space.h"
#include "backend/runtime/byte_size.h"
#include "backend/runtime/check.h"
#include "backend/runtime/fork_generation.h"
#include "backend/runtime/move_steps.h"
#include "backend/runtime/ranked_mutex.h"
#include "backend/runtime/simulated/exchange_costs.h"
#include "backend/runtime/simulated/virtual_time.h"
#include "backend/runtime/use_guard.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kCommitBytes = std::size_t{2} << 20; // as CUDA's VMM
constexpr Picoseconds kPerNs = 1000;
constexpr Picoseconds kQuestion = 1000 * kPerNs;

LinkRates link_of(const GpuProfile& profile) {
  const auto per_us = [](double bytes_per_s) {
    return static_cast<std::uint64_t>(bytes_per_s / 1e6);
  };
  return {
      per_us(profile.link_in_bytes_per_s), per_us(profile.link_out_bytes_per_s),
      per_us(profile.link_both_bytes_per_s), profile.copy_latency_ns * kPerNs};
}

class SimulatedRuntime final : public DeviceRuntime, private UseGuard {
 public:
  explicit SimulatedRuntime(const GpuProfile& profile)
      : profile_(profile), time_(link_of(profile)) {}

  std::string_view name() const noexcept override { return "simulated"; }

  // ---- device memory -----------------------------------------------------
  MemoryInfo deviceMemory() const noexcept override {
    const std::lock_guard lock(mutex_);
    return {profile_.memory_bytes - device_bytes_, profile_.memory_bytes};
  }
  std::size_t commitGranularity() const noexcept override {
    return kCommitBytes;
  }
  Result<std::byte*> reserve(std::size_t bytes) override {
    if (Error error = usable(FaultPoint::kReserve)) return error;
    return reserve_address_space(bytes, kCommitBytes);
  }
  Error commit(std::byte* /*address*/, std::size_t bytes) override {
    if (Error error = usable(FaultPoint::kCommit)) return error;
    const std::lock_guard lock(mutex_);
    return take(device_bytes_, bytes, profile_.memory_bytes,
                ErrorCode::kOutOfDeviceMemory, "device");
  }
  Error decommit(std::byte* /*address*/, std::size_t bytes) override {
    if (Error error = usable(FaultPoint::kCommit)) return error;
    const std::lock_guard lock(mutex_);
    CHAMELEON_CHECK(bytes <= device_bytes_, "decommit of what is not there");
    device_bytes_ -= bytes;
    return {};
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    unmap_memory(address, bytes);
  }

  // ---- host memory -------------------------------------------------------
  MemoryInfo hostMemory() const noexcept override {
    const std::lock_guard lock(mutex_);
    return {profile_.host_memory_bytes - host_bytes_,
            profile_.host_memory_bytes};
  }
  Error allocateHost(std::byte* address, std::size_t bytes) override {
    if (Error error = usable(FaultPoint::kAllocateHost)) return error;
    CHAMELEON_CHECK(is_in_pages(address, bytes), "a host slab has whole pages");
    const std::lock_guard lock(mutex_);
    return take(host_bytes_, bytes, profile_.host_memory_bytes,
                ErrorCode::kOutOfHostMemory, "host");
  }
  void freeHost(std::byte* /*address*/, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    CHAMELEON_CHECK(bytes <= host_bytes_, "freeHost of what is not there");
    host_bytes_ -= bytes;
  }

  // ---- streams and events ------------------------------------------------
  Error copy(Stream stream, std::span<const Copy> copies) override {
    if (Error error = usable(FaultPoint::kCopy)) return error;
    const std::lock_guard lock(mutex_);
    const VirtualTime::Line line = lineOf(stream);
    ++submissions_;
    if (line == VirtualTime::kIn || line == VirtualTime::kOut) {
      std::uint64_t bytes = 0;
      for (const Copy& c : copies) bytes += c.bytes;
      if (copies.empty()) return {};
      batches_.push_back({line, time_.copy(line, bytes), {}});
      batches_.back().copies.assign(copies.begin(), copies.end());
      if (batches_.size() > 2 * VirtualTime::kAhead) batches_.pop_front();
    } else { // inside the device: read and written
      for (const Copy& c : copies) move(line, c);
    }
    return {};
  }

  // As a copy on the link, which nothing else is said to use meanwhile.
  Error readBack(Stream stream, const Copy& copy) override {
    if (Error error = usable(FaultPoint::kCopy)) return error;
    const std::lock_guard lock(mutex_);
    ++submissions_;
    const double flow_s =
        static_cast<double>(copy.bytes) / profile_.link_out_bytes_per_s;
    time_.move(lineOf(stream),
               profile_.copy_latency_ns * kPerNs +
                   static_cast<Picoseconds>(std::llround(flow_s * 1e12)));
    return {};
  }

  bool cancel(Stream stream, const std::byte* destination) noexcept override {
    if (forked()) return false;
    const std::lock_guard lock(mutex_);
    const VirtualTime::Line line = lineOf(stream);
    const auto writes = [=](const Copy& copy) {
      return copy.destination == destination;
    };
    const auto batch = std::find_if(
        batches_.rbegin(), batches_.rend(), [&](const Batch& each) {
          return each.line == line &&
                 std::any_of(each.copies.begin(), each.copies.end(), writes);
        });
    if (batch == batches_.rend()) return false;
    const auto copy =
        std::find_if(batch->copies.begin(), batch->copies.end(), writes);
    if (!time_.shrink(line, batch->number, copy->bytes)) return false;
    batch->copies.erase(copy);
    return true;
  }

  Result<Event> record(Stream stream) override {
    if (Error error = usable(FaultPoint::kEvent)) return error;
    const std::lock_guard lock(mutex_);
    ++submissions_;
    return Event{std::uint64_t{time_.mark(lineOf(stream))} + 1};
  }

  Error wait(Stream stream, Event event) override {
    if (Error error = usable(FaultPoint::kEvent)) return error;
    if (event.complete()) return {};
    const std::lock_guard lock(mutex_);
    ++submissions_;
    time_.wait(lineOf(stream), markOf(event));
    return {};
  }

  bool query(Event event) noexcept override {
    if (event.complete()) return true;
    if (forked()) return false;
    const std::lock_guard lock(mutex_);
    if (time_.passed(markOf(event))) return true;
    const bool only_asks = asked_ == event.id && asked_at_ == submissions_;
    asked_ = event.id;
    asked_at_ = submissions_;
    if (only_asks) time_.idle(kQuestion);
    return time_.passed(markOf(event));
  }

  Error synchronize(Event event) override {
    if (Error error = usable(FaultPoint::kEvent)) return error;
    if (event.complete()) return {};
    const std::lock_guard lock(mutex_);
    time_.await(markOf(event));
    return {};
  }

  void destroy(Event event) noexcept override {
    if (event.complete() || forked()) return;
    const std::lock_guard lock(mutex_);
    time_.release(markOf(event));
  }

  bool drain(Stream stream) noexcept override {
    if (forked()) return false;
    const std::lock_guard lock(mutex_);
    const auto mark = time_.mark(lineOf(stream));
    time_.await(mark);
    time_.release(mark);
    return true;
  }

  // ---- time ----------------------------------------------------------------
  bool holdsData() const noexcept override { return false; }
  bool modelsTime() const noexcept override { return true; }

  std::int64_t now_ns() const noexcept override {
    const std::lock_guard lock(mutex_);
    return time_.now() / kPerNs;
  }

  std::optional<std::int64_t> elapsed_ns(Event start,
                                         Event end) noexcept override {
    if (start.complete() || end.complete() || forked()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (!time_.passed(markOf(start)) || !time_.passed(markOf(end))) {
      return std::nullopt;
    }
    return (time_.timeOf(markOf(end)) - time_.timeOf(markOf(start))) / kPerNs;
  }

  Error computed(Stream stream, const OpCost& cost) override {
    if (forked()) [[unlikely]]
      return used_before_fork();
    const std::lock_guard lock(mutex_);
    ++submissions_;
    const Picoseconds duration = durationOf(cost);
    time_.compute(lineOf(stream), duration, bandwidthOf(cost, duration));
    return {};
  }

  ComputeTimes computeTimes() const noexcept override {
    const std::lock_guard lock(mutex_);
    return {time_.computeTime() / kPerNs, time_.stallTime() / kPerNs};
  }

  std::optional<Moment> momentOf(Event event) noexcept override {
    if (event.complete() || forked()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    const VirtualTime::Mark mark = markOf(event);
    if (!time_.passed(mark)) return std::nullopt;
    return Moment{
        time_.timeOf(mark) / kPerNs,
        {time_.computeTimeAt(mark) / kPerNs, time_.stallTimeAt(mark) / kPerNs}};
  }

  std::optional<LinkSpeeds> link() const override {
    return LinkSpeeds{profile_.link_in_bytes_per_s,
                      profile_.link_out_bytes_per_s,
                      profile_.link_both_bytes_per_s, profile_.copy_latency_ns};
  }

  // ---- several GPUs --------------------------------------------------------
  Error exchanged(Stream stream, const Exchange& exchange) override {
    if (forked()) [[unlikely]]
      return used_before_fork();
    const ExchangeCost cost = cost_of_exchange(exchange, profile_);
    const std::lock_guard lock(mutex_);
    ++submissions_;
    // What uses no link to the host is a time.
    const bool flows = cost.host_link_bytes > 0;
    const double alone_ns = cost.latency_ns + (flows ? 0 : cost.flow_ns);
    const auto bytes = static_cast<std::uint64_t>(cost.host_link_bytes);
    const double per_us = flows ? cost.host_link_bytes / cost.flow_ns * 1e3 : 0;
    time_.exchange(lineOf(stream),
                   static_cast<Picoseconds>(std::llround(alone_ns * kPerNs)),
                   bytes, std::max<std::uint64_t>(1, std::llround(per_us)));
    return {};
  }

 private:
  Error take(std::size_t& used, std::size_t bytes, std::size_t limit,
             ErrorCode code, const char* kind) const {
    if (bytes > limit - used) {
      return {code, "the simulated " + profile_.name + " has " +
                        format_bytes(limit) + " of " + kind + " memory, " +
                        format_bytes(limit - used) + " of it free; " +
                        format_bytes(bytes) + " more are too much"};
    }
    used += bytes;
    return {};
  }

  static VirtualTime::Mark markOf(Event event) {
    return static_cast<VirtualTime::Mark>(event.id - 1);
  }

  // One copy after the other, each with its launch.
  void move(VirtualTime::Line line, const Copy& copy) {
    const MoveSteps steps = steps_of_move(copy);
    if (steps.pieces == 0) return;
    const double passes = steps.bounces ? 2 : 1;
    const auto more = static_cast<Picoseconds>(steps.copies() - 1);
    time_.move(line, durationOf({.bytes = 2 * passes *
                                          static_cast<double>(copy.bytes)}) +
                         more * profile_.launch_ns * kPerNs);
  }

  // Launch, then the slower of mathematics and memory.
  Picoseconds durationOf(const OpCost& cost) const {
    const double math_s = cost.flops / profile_.flopsPerSecond(cost.math);
    const double memory_s = cost.bytes / profile_.bytesPerSecond();
    return profile_.launch_ns * kPerNs +
           static_cast<Picoseconds>(
               std::llround(std::max(math_s, memory_s) * 1e12));
  }

  // How much of the memory's bandwidth it takes, on average over its duration.
  VirtualTime::Share bandwidthOf(const OpCost& cost,
                                 Picoseconds duration) const {
    if (duration <= 0) return 0;
    const double memory_s = cost.bytes / profile_.bytesPerSecond();
    const double share = memory_s / (static_cast<double>(duration) / 1e12);
    return static_cast<VirtualTime::Share>(std::min(share, 1.0) *
                                           VirtualTime::kWhole);
  }

  VirtualTime::Line lineOf(Stream stream) {
    if (stream == kCopyInStream) return VirtualTime::kIn;
    if (stream == kCopyOutStream) return VirtualTime::kOut;
    if (stream == kMoveStream) return VirtualTime::kMoves;
    for (const auto& [known, line] : compute_lines_) {
      if (known == stream) return line;
    }
    compute_lines_.emplace_back(stream, time_.addLine());
    return compute_lines_.back().second;
  }

  struct Batch {
    VirtualTime::Line line;
    std::uint64_t number; // on its line
    std::vector<Copy> copies;
  };

  const GpuProfile profile_;
  mutable RankedMutex<LockRank::kRuntime>
      mutex_; // a leaf; guards everything below
  VirtualTime time_;
  std::vector<std::pair<Stream, VirtualTime::Line>> compute_lines_;
  std::deque<Batch> batches_; // at least those that may not have begun
  std::size_t device_bytes_ = 0;
  std::size_t host_bytes_ = 0;
  // Who asks for one event over and over waits for it.
  std::uint64_t submissions_ = 0;
  std::uint64_t asked_ = 0;
  std::uint64_t asked_at_ = 0;
};

} // namespace

std::unique_ptr<DeviceRuntime> make_simulated_runtime(
    const GpuProfile& profile) {
  return std::make_unique<SimulatedRuntime>(profile);
}

} // namespace chameleon::runtime
