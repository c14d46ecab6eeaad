#include "backend/torch/error.h"

#include <c10/util/Exception.h>

namespace chameleon::backend {

void throw_error(const runtime::Error& error) {
  switch (error.code()) {
    case runtime::ErrorCode::kOutOfDeviceMemory:
    case runtime::ErrorCode::kOutOfHostMemory:
    case runtime::ErrorCode::kOutOfLogicalMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.message());
    case runtime::ErrorCode::kInvalidArgument:
      TORCH_CHECK_VALUE(false, error.message());
    case runtime::ErrorCode::kUnavailable:
    case runtime::ErrorCode::kDevice:
    case runtime::ErrorCode::kLost:
      break;
  }
  TORCH_CHECK(false, error.message());
}

} // namespace chameleon::backend
