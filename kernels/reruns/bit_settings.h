// The settings of a process and a thread that decide the bits of a kernel: what
// an op that runs again needs to find as it was.
//
// Not among them: what chooses an op above the device (the flags of scaled dot
// product attention), for a record has the op that was chosen. Threads of
// PyTorch's pool flush denormals or not as they did when they began.
//
// Thread safety: plain values; reading and setting affects the calling thread,
// and of the process what a user could set. Settings of the process are seen by
// other threads too, as they are when a user changes them. Only re-runs do not
// see each other's (WithBitSettings).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

namespace chameleon::kernels {

class ThreadSettings {
 public:
  static ThreadSettings now();
  // Puts these in force where `others` are.
  void setOver(const ThreadSettings& others) const;

  bool operator==(const ThreadSettings&) const = default;

 private:
  int threads_;
  bool flushes_denormals_;
  bool grad_;     // kernels ask
  bool autocast_; // of the device, as its kernels find it
  c10::ScalarType autocast_dtype_;
};

// `settings` are in force while it lives.
class WithThreadSettings {
 public:
  explicit WithThreadSettings(const ThreadSettings& settings)
      : settings_(settings), before_(ThreadSettings::now()) {
    settings.setOver(before_);
  }
  ~WithThreadSettings() { before_.setOver(settings_); }
  WithThreadSettings(const WithThreadSettings&) = delete;
  WithThreadSettings& operator=(const WithThreadSettings&) = delete;

 private:
  const ThreadSettings& settings_;
  const ThreadSettings before_;
};

class BitSettings {
 public:
  static BitSettings now();
  // Puts these in force where `others` are.
  void setOver(const BitSettings& others) const;
  // The same of the process.
  bool areOfProcess(const BitSettings& others) const {
    return process_ == others.process_;
  }

  bool operator==(const BitSettings&) const = default;

 private:
  static constexpr std::size_t kPrecisions = 8; // see the .cpp
  struct OfProcess {
    bool deterministic;
    bool warn_only;
    bool fill;
    bool cudnn;
    bool cudnn_deterministic;
    bool cudnn_benchmark;
    int cudnn_benchmark_limit;
    bool nnpack;
    bool mkldnn;
    bool mkldnn_deterministic;
    bool fp16_accumulation;
    bool fp16_reduction_on_cpu;
    at::CuBLASReductionOption fp16_reduction;
    at::CuBLASReductionOption bf16_reduction;
    at::LinalgBackend linalg;
    at::BlasBackend blas;
    std::optional<std::int32_t> sm_carveout;
    std::array<at::Float32Precision, kPrecisions> precisions;
    c10::ScalarType default_dtype;
    void set() const;
    bool operator==(const OfProcess&) const = default;
  };
  OfProcess process_;
  ThreadSettings thread_;
};

// `settings` are in force while it lives. Those that find the process as they
// need it live side by side, on any threads; one that changes the process lives
// alone. REQUIRES: the thread has no other.
class WithBitSettings {
 public:
  // Waits until it may live. Throws c10::Error after kPatience: an op of
  // another thread may in turn wait for what this thread holds.
  explicit WithBitSettings(const BitSettings& settings);
  ~WithBitSettings() { before_.setOver(settings_); }
  WithBitSettings(const WithBitSettings&) = delete;
  WithBitSettings& operator=(const WithBitSettings&) = delete;

 private:
  static constexpr std::chrono::seconds kPatience{60};
  static std::shared_timed_mutex process;

  const BitSettings& settings_;
  BitSettings before_;
  std::shared_lock<std::shared_timed_mutex> shared_;
  std::unique_lock<std::shared_timed_mutex> alone_;
};

} // namespace chameleon::kernels
