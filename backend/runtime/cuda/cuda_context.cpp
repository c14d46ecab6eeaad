#include "backend/runtime/cuda/cuda_context.h"

#include <string>

namespace chameleon::runtime {

namespace {

// "This leaves the process in an inconsistent state and any further CUDA work
// will return the same error" (the driver's documentation of CUresult).
bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
      return true;
    default:
      return false;
  }
}

} // namespace

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

Error CudaContext::failure(CUresult result, const char* call) const {
  const Error error = cuda_error(driver_, result, call);
  if (!is_sticky(result)) return {error.code(), error.message()};
  lose(error.message());
  const bool is_of_kernels = result >= CUDA_ERROR_ILLEGAL_ADDRESS &&
                             result != CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return {error.code(),
          error.message() +
              (is_of_kernels ? ". A kernel before it is at fault "
                               "(CUDA_LAUNCH_BLOCKING=1 shows which), and this "
                               "process can use the GPU no longer"
                             : ". This process can use the GPU no longer")};
}

void CudaContext::lose(const std::string& why) const {
  std::call_once(losing_, [&] {
    why_lost_ = why;
    lost_.store(&why_lost_, std::memory_order_release);
  });
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
