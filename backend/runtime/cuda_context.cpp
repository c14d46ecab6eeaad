#include "backend/runtime/cuda_context.h"

#include <string>

namespace chameleon::runtime {

Result<std::unique_ptr<CudaContext>> CudaContext::create(
    const CudaDriver& driver, int ordinal) {
  int count = 0;
  if (const CUresult result = driver.cuDeviceGetCount(&count)) {
    return cuda_error(driver, result, "cuDeviceGetCount");
  }
  if (ordinal < 0 || ordinal >= count) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is no GPU " + std::to_string(ordinal) +
                     "; the driver sees " + std::to_string(count));
  }
  CUdevice device = 0;
  if (const CUresult result = driver.cuDeviceGet(&device, ordinal)) {
    return cuda_error(driver, result, "cuDeviceGet");
  }
  CUcontext handle = nullptr;
  if (const CUresult result =
          driver.cuDevicePrimaryCtxRetain(&handle, device)) {
    return cuda_error(driver, result, "cuDevicePrimaryCtxRetain");
  }
  return std::unique_ptr<CudaContext>(new CudaContext(driver, device, handle));
}

CudaContext::~CudaContext() { driver_.cuDevicePrimaryCtxRelease(device_); }

int CudaContext::attribute(CUdevice_attribute name,
                           int missing) const noexcept {
  int value = 0;
  const CUresult result = driver_.cuDeviceGetAttribute(&value, name, device_);
  return result == CUDA_SUCCESS ? value : missing;
}

CudaContext::Scope::Scope(const CudaContext& context) noexcept {
  CUcontext current = nullptr;
  if (context.driver_.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
      current == context.handle_) {
    return;
  }
  // Where this fails, the call that follows says what is wrong.
  if (context.driver_.cuCtxPushCurrent(context.handle_) == CUDA_SUCCESS) {
    driver_ = &context.driver_;
  }
}

CudaContext::Scope::~Scope() {
  if (driver_ == nullptr) return;
  CUcontext popped = nullptr;
  driver_->cuCtxPopCurrent(&popped);
}

} // namespace chameleon::runtime
