// One GPU: its primary context, the one that PyTorch uses too, kept alive.
//
// Thread safety: every method may be called from any thread.
#pragma once

#include <memory>

#include "backend/runtime/cuda_driver.h"

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
  // Success, or an Error that names the call.
  Error check(CUresult result, const char* call) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return {};
    return cuda_error(driver_, result, call);
  }

 private:
  CudaContext(const CudaDriver& driver, CUdevice device, CUcontext handle)
      : driver_(driver), device_(device), handle_(handle) {}

  const CudaDriver& driver_;
  const CUdevice device_;
  CUcontext handle_;
};

} // namespace chameleon::runtime
