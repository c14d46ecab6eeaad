#include "backend/torch/error.h"

#include <c10/util/Exception.h>

namespace chameleon::backend {

namespace {
void (*slowdown_thrower)(const std::string& message) = nullptr;
} // namespace

void set_slowdown_thrower(void (*thrower)(const std::string& message)) {
  slowdown_thrower = thrower;
}

void throw_error(const runtime::Error& error) {
  switch (error.code()) {
    case runtime::ErrorCode::kOutOfDeviceMemory:
    case runtime::ErrorCode::kOutOfHostMemory:
    case runtime::ErrorCode::kOutOfLogicalMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.message());
    case runtime::ErrorCode::kInvalidArgument:
      TORCH_CHECK_VALUE(false, error.message());
    case runtime::ErrorCode::kTooSlow:
      if (slowdown_thrower != nullptr) slowdown_thrower(error.message());
      break;
    case runtime::ErrorCode::kUnavailable:
    case runtime::ErrorCode::kDevice:
    case runtime::ErrorCode::kLost:
      break;
  }
  TORCH_CHECK(false, error.message());
}

} // namespace chameleon::backend
