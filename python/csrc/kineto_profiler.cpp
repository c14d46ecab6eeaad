#include "python/csrc/kineto_profiler.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define KINETO_NAMESPACE libkineto
#define FMT_HEADER_ONLY 1
#include <kineto/libkineto.h>
#include <kineto/output_base.h>

#include <c10/util/ApproximateClock.h>

#include "backend/runtime/byte_size.h"
#include "backend/torch/deferred_work.h"
#include "backend/torch/device.h"
#include "backend/torch/error.h"
#include "profiler/op_names.h"
#include "profiler/timeline/timeline.h"
#include "profiler/timeline/timeline_rows.h"

namespace chameleon::python {
namespace {

using libkineto::ActivityType;
using profiler::Interval;
using profiler::Lane;

// Which op of torch asked for a call of the pager's: Kineto tells where one
// begins and ends, and the pager's count says how far the device's ops were.
// Exact while one thread at a time runs ops.
class Correlations {
 public:
  void push(std::uint64_t call, std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    open_.push_back(id);
    changes_.push_back({call, id});
  }
  void pop(std::uint64_t call) {
    const std::lock_guard lock(mutex_);
    if (open_.empty()) return;
    open_.pop_back();
    changes_.push_back({call, open_.empty() ? 0 : open_.back()});
  }
  // Of call number `call`; 0: none.
  std::uint64_t of(std::uint64_t call) const {
    const std::lock_guard lock(mutex_);
    // The last change before it was made at a count below its number.
    const auto next = std::partition_point(
        changes_.begin(), changes_.end(),
        [=](const Change& change) { return change.call < call; });
    return next == changes_.begin() ? 0 : std::prev(next)->id;
  }

 private:
  struct Change {
    std::uint64_t call;
    std::uint64_t id;
  };
  mutable std::mutex mutex_; // guards both
  std::vector<std::uint64_t> open_;
  std::vector<Change> changes_;
};

ActivityType type_of(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
    case Lane::kReruns:
    case Lane::kExchanges:
      return ActivityType::CONCURRENT_KERNEL;
    case Lane::kIn:
    case Lane::kOut:
      return ActivityType::GPU_MEMCPY;
    case Lane::kStalls:
    case Lane::kDecisions:
      break;
  }
  // No work of the device's: not to be summed up with it.
  return ActivityType::GPU_USER_ANNOTATION;
}

std::string name_of(const Interval& interval) {
  const bool named = interval.op != profiler::kNoOpName;
  std::string op =
      named ? std::string(profiler::op_names().name(interval.op)) : "";
  switch (interval.lane) {
    case Lane::kCompute:
    case Lane::kExchanges:
      return op;
    case Lane::kReruns:
      return "re-run of " + op;
    case Lane::kIn:
      return "copy in";
    case Lane::kOut:
      return "copy out";
    case Lane::kStalls:
      return (interval.what == nullptr ? "stall before "
                                       : std::string(interval.what) + " in ") +
             op;
    case Lane::kDecisions:
      break;
  }
  return std::string(interval.what) + " " +
         runtime::format_bytes(interval.bytes) + " before " + op;
}

// Perfetto reads times as doubles of microseconds, and Kineto counts them from
// months ago: the last bit is a nanosecond. Where one interval follows another
// at once they may seem to overlap then, and it drops the second.
constexpr std::int64_t kGapNs = 2;

// What a session knows of one device.
struct Recorded {
  Recorded(backend::DeviceContext* recorded, bool before, std::int64_t now_ns,
           std::int64_t now_unix_ns)
      : device(recorded),
        was_recording(before),
        begin_ns(now_ns),
        unix_ns(now_unix_ns) {}

  // What began since then.
  void setIntervals(std::vector<Interval> all) {
    intervals = std::move(all);
    std::erase_if(intervals, [this](const Interval& interval) {
      return interval.begin_ns < begin_ns;
    });
    rows = profiler::timeline_rows(intervals);
  }

  backend::DeviceContext* const device;
  bool was_recording;    // before the session, and will be after it
  std::int64_t begin_ns; // the device's clock when it was ...
  std::int64_t unix_ns;  // ... this on Kineto's
  std::vector<Interval> intervals;
  profiler::TimelineRows rows = profiler::timeline_rows({});
  Correlations correlations;
};

// Of the devices that are in use when it starts; if none is, the current one
// is used from then on.
class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    try {
      for (c10::DeviceIndex i = 0; i < backend::device_count(); ++i) {
        if (auto* device = backend::context_if_used(i)) record(*device);
      }
      if (devices_.empty()) {
        record(backend::context(backend::current_device(), "torch.profiler"));
      }
      status_ = libkineto::TraceStatus::RECORDING;
    } catch (const std::exception& error) { // no device, or a forked process
      errors_.emplace_back(error.what());
      status_ = libkineto::TraceStatus::ERROR;
    }
  }
  void stop() override {
    backend::try_finish_deferred_work();
    for (const auto& each : devices_) {
      memory::Pager& pager = *each->device->pager;
      if (pager.synchronize()) continue; // the device is lost
      each->setIntervals(pager.meter().timeline().intervals());
      if (!each->was_recording) pager.meter().recordTimeline(false);
    }
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, {}, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback linked,
                    std::int64_t begin_ns, std::int64_t end_ns) override {
    // Activities refer to its span: it is where it will stay.
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begin_ns, end_ns, "chameleon");
    buffer_->gpuOpCount = 0;
    for (const auto& each : devices_) {
      // Kineto asks for one device itself.
      if (each != devices_.front()) {
        logger.handleDeviceInfo(infoOf(*each), begin_ns);
      }
      for (std::size_t i = 0; i < each->intervals.size(); ++i) {
        add(*each, each->intervals[i], each->rows.of[i], linked);
      }
    }
    for (const auto& activity : buffer_->activities) activity->log(logger);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (devices_.empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(infoOf(*devices_.front()));
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (const auto& each : devices_) {
      std::int64_t place = 0; // from the top
      for (std::size_t lane = 0; lane < profiler::kLanes; ++lane) {
        for (std::size_t row = 0; row < each->rows.counts[lane]; ++row) {
          const auto id = profiler::row_number(static_cast<Lane>(lane), row);
          rows.emplace_back(each->device->index, static_cast<std::int64_t>(id),
                            place++,
                            profiler::row_name(static_cast<Lane>(lane), row));
        }
      }
    }
    return rows;
  }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(std::uint64_t id) override {
    for (const auto& each : devices_) {
      each->correlations.push(each->device->pager->calls(), id);
    }
  }
  void popCorrelationId() override {
    for (const auto& each : devices_) {
      each->correlations.pop(each->device->pager->calls());
    }
  }

 private:
  void record(backend::DeviceContext& device) {
    const bool was_recording = device.pager->meter().timeline().recording();
    if (!was_recording) device.pager->meter().recordTimeline(true);
    devices_.push_back(std::make_unique<Recorded>(
        &device, was_recording, device.runtime->now_ns(), c10::getTime()));
  }

  static libkineto::DeviceInfo infoOf(const Recorded& recorded) {
    const c10::DeviceIndex index = recorded.device->index;
    return {index, libkineto::kExceedMaxPid + index, "chameleon",
            "chameleon:" + std::to_string(index)};
  }

  void add(const Recorded& recorded, const Interval& interval, std::size_t row,
           const libkineto::getLinkedActivityCallback& linked) {
    buffer_->emplace_activity(buffer_->span, type_of(interval.lane),
                              name_of(interval));
    libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
    const std::int64_t to_unix = recorded.unix_ns - recorded.begin_ns;
    activity.startTime = interval.begin_ns + to_unix;
    activity.endTime =
        std::max(interval.begin_ns, interval.end_ns - kGapNs) + to_unix;
    activity.device = recorded.device->index;
    activity.resource =
        static_cast<std::int32_t>(profiler::row_number(interval.lane, row));
    if (interval.bytes > 0) {
      activity.addMetadataQuoted("bytes", std::to_string(interval.bytes));
    }
    const std::uint64_t id =
        interval.call == 0 ? 0 : recorded.correlations.of(interval.call);
    if (id == 0) return;
    activity.id = static_cast<std::int32_t>(id);
    if (linked) activity.linked = linked(activity.id);
  }

  std::vector<std::unique_ptr<Recorded>> devices_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Plugin final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override {
    return types_;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    if (!types.contains(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      std::int64_t, std::int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "chameleon";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL,
                                         ActivityType::GPU_MEMCPY,
                                         ActivityType::GPU_USER_ANNOTATION};
};

} // namespace

void register_kineto_profiler() {
  libkineto::api().registerProfilerFactory(
      [] { return std::make_unique<Plugin>(); });
}

} // namespace chameleon::python
