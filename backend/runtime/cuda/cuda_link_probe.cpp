#include "backend/runtime/cuda/cuda_link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/runtime/address_space.h"

namespace chameleon::runtime {

namespace {

constexpr std::size_t kProbeBytes = std::size_t{32} << 20; // each way
// Assumed, not measured: a copy's submission and start.
constexpr std::int64_t kCopyLatency_ns = 7000;

// What the probe holds, given back in any case.
class Probe {
 public:
  Probe(const CudaContext& context, CUstream in, CUstream out)
      : context_(context), driver_(context.driver()), in_(in), out_(out) {}
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Error prepare();
  // Bytes per nanosecond of copies in and/or out that start together.
  Result<double> measure(bool in, bool out);

 private:
  Error copy(bool in);
  Error elapsed(CUevent end, double& ns);

  const CudaContext& context_;
  const CudaDriver& driver_;
  CUstream in_;
  CUstream out_;
  std::byte* host_ = nullptr; // the first half goes in, the second comes out
  bool registered_ = false;
  CUdeviceptr device_ = 0;
  std::array<CUevent, 3> events_{}; // start, end in, end out
};

Probe::~Probe() {
  driver_.cuStreamSynchronize(in_);
  driver_.cuStreamSynchronize(out_);
  for (CUevent event : events_) {
    if (event != nullptr) driver_.cuEventDestroy(event);
  }
  if (device_ != 0) driver_.cuMemFree(device_);
  if (registered_) driver_.cuMemHostUnregister(host_);
  if (host_ != nullptr) unmap_memory(host_, 2 * kProbeBytes);
}

Error Probe::prepare() {
  for (CUevent& event : events_) {
    if (Error error = context_.check(
            driver_.cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate")) {
      return error;
    }
  }
  Result<std::byte*> mapped = map_memory(2 * kProbeBytes);
  if (!mapped.ok()) return mapped.takeError();
  host_ = *mapped;
  populate_memory(host_, 2 * kProbeBytes);
  if (Error error = context_.check(
          driver_.cuMemHostRegister(host_, 2 * kProbeBytes, /*Flags=*/0),
          "cuMemHostRegister")) {
    return error;
  }
  registered_ = true;
  if (Error error = context_.check(
          driver_.cuMemAlloc(&device_, 2 * kProbeBytes), "cuMemAlloc")) {
    return error;
  }
  // Once for nothing: the first copies of a process are slow.
  if (Result<double> warm_up = measure(true, true); !warm_up.ok()) {
    return warm_up.takeError();
  }
  return {};
}

Error Probe::copy(bool in) {
  const std::size_t offset = in ? 0 : kProbeBytes;
  const CUdeviceptr device = device_ + offset;
  const auto host = reinterpret_cast<CUdeviceptr>(host_ + offset);
  if (Error error = context_.check(
          driver_.cuMemcpyAsync(in ? device : host, in ? host : device,
                                kProbeBytes, in ? in_ : out_),
          "cuMemcpyAsync")) {
    return error;
  }
  return context_.check(
      driver_.cuEventRecord(events_[in ? 1 : 2], in ? in_ : out_),
      "cuEventRecord");
}

Error Probe::elapsed(CUevent end, double& ns) {
  if (Error error = context_.check(driver_.cuEventSynchronize(end),
                                   "cuEventSynchronize")) {
    return error;
  }
  float ms = 0;
  Error error = context_.check(driver_.cuEventElapsedTime(&ms, events_[0], end),
                               "cuEventElapsedTime");
  ns = std::max(ns, static_cast<double>(ms) * 1e6);
  return error;
}

Result<double> Probe::measure(bool in, bool out) {
  CUstream first = in ? in_ : out_;
  Error error =
      context_.check(driver_.cuEventRecord(events_[0], first), "cuEventRecord");
  if (!error && in && out) {
    error = context_.check(driver_.cuStreamWaitEvent(out_, events_[0], 0),
                           "cuStreamWaitEvent");
  }
  if (!error && in) error = copy(true);
  if (!error && out) error = copy(false);
  double ns = 1; // of what took longer
  if (!error && in) error = elapsed(events_[1], ns);
  if (!error && out) error = elapsed(events_[2], ns);
  if (error) return error;
  return static_cast<double>(kProbeBytes) * (in && out ? 2 : 1) / ns;
}

} // namespace

Result<LinkSpeeds> measure_link(const CudaContext& context, CUstream in,
                                CUstream out) {
  Probe probe(context, in, out);
  if (Error error = probe.prepare()) return error;
  Result<double> ins = probe.measure(true, false);
  if (!ins.ok()) return ins.takeError();
  Result<double> outs = probe.measure(false, true);
  if (!outs.ok()) return outs.takeError();
  Result<double> both = probe.measure(true, true);
  if (!both.ok()) return both.takeError();
  constexpr double kNsPerS = 1e9;
  return LinkSpeeds{*ins * kNsPerS, *outs * kNsPerS, *both * kNsPerS,
                    kCopyLatency_ns};
}

} // namespace chameleon::runtime
