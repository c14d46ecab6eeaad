// The settings of a process and a thread that decide the bits of a kernel: what
// an op that runs again needs to find as it was.
//
// Thread safety: plain values; reading and setting affects the calling thread,
// and of the process what a user could set.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/Context.h>
#include <c10/core/ScalarType.h>

namespace chameleon::kernels {

class BitSettings {
 public:
  static BitSettings now();
  // Puts these in force where `others` are. Settings of the process are seen by
  // other threads too, as they are when a user changes them.
  void setOver(const BitSettings& others) const;

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
    bool mkldnn;
    bool mkldnn_deterministic;
    bool fp16_accumulation;
    at::CuBLASReductionOption fp16_reduction;
    at::CuBLASReductionOption bf16_reduction;
    std::array<at::Float32Precision, kPrecisions> precisions;
    c10::ScalarType default_dtype;
    void set() const;
    bool operator==(const OfProcess&) const = default;
  };
  OfProcess process_;
  // Of the thread.
  int threads_;
  bool grad_;     // kernels ask
  bool autocast_; // of the device, as its kernels find it
  c10::ScalarType autocast_dtype_;
};

// `settings` are in force while it lives.
class WithBitSettings {
 public:
  explicit WithBitSettings(const BitSettings& settings)
      : settings_(settings),
        before_(BitSettings::now()),
        changed_(!(before_ == settings)) {
    if (changed_) settings.setOver(before_);
  }
  ~WithBitSettings() {
    if (changed_) before_.setOver(settings_);
  }
  WithBitSettings(const WithBitSettings&) = delete;
  WithBitSettings& operator=(const WithBitSettings&) = delete;

 private:
  const BitSettings& settings_;
  const BitSettings before_;
  const bool changed_;
};

} // namespace chameleon::kernels
