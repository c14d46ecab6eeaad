// One GPU: its primary context, the one that PyTorch uses too, kept alive.
//
// Tests: cuda_runtime_test.cpp, cuda_failures_test.cpp.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "backend/runtime/cuda/cuda_driver.h"

namespace chameleon::runtime {

class CudaContext {
 public:
  // `ordinal`: the driver's number of the device. `driver` must stay alive.
  static Result<std::unique_ptr<CudaContext>> create(const CudaDriver& driver,
                                                     int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Makes the context the calling thread's own; almost always it is already.
  class Scope {
   public:
    explicit Scope(const CudaContext& context) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaDriver* driver_ = nullptr; // null: nothing to undo
  };

  const CudaDriver& driver() const noexcept { return driver_; }
  CUdevice device() const noexcept { return device_; }
  // `missing` where the driver does not know the attribute.
  int attribute(CUdevice_attribute name, int missing) const noexcept;
  // Success, or an Error that names the call. After some results the GPU is
  // lost.
  Error check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return {};
    return failure(result, call);
  }

  // Why this process can use the GPU no longer; null: it can. The driver
  // answers every call with the same error then, and no call may be trusted.
  const std::string* lost() const noexcept {
    return lost_.load(std::memory_order_acquire);
  }
  // Only the first reason counts.
  void lose(const std::string& why) const;

 private:
  Error failure(CUresult result, const char* call) const;

  CudaContext(const CudaDriver& driver, CUdevice device, CUcontext handle)
      : driver_(driver), device_(device), handle_(handle) {}

  const CudaDriver& driver_;
  const CUdevice device_;
  CUcontext handle_;
  // What befalls the GPU, whoever finds out.
  mutable std::once_flag losing_;
  mutable std::string why_lost_;
  mutable std::atomic<const std::string*> lost_{nullptr};
};

} // namespace chameleon::runtime
