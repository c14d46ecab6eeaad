#include "backend/torch/error.h"

#include <atomic>
#include <string_view>

#include <c10/util/Exception.h>

namespace chameleon::backend {

namespace {

void (*slowdown_thrower)(const std::string& message) = nullptr;
std::atomic<bool> says_cuda{false};

// "chameleon:0 out of memory. What" is "CUDA out of memory. cuda:0: What".
std::string as_cuda_says(std::string text) {
  constexpr std::string_view kSaid = " out of memory. ";
  constexpr std::string_view kOurs = "chameleon:";
  constexpr std::string_view kCuda = "CUDA out of memory. ";
  if (text.find(kCuda) == std::string::npos) { // else it was thrown before
    if (const auto at = text.find(kSaid); at != std::string::npos) {
      text.replace(at, kSaid.size(), ": ");
    }
    text.insert(0, kCuda);
  }
  for (auto at = text.find(kOurs); at != std::string::npos;
       at = text.find(kOurs, at)) {
    text.replace(at, kOurs.size(), "cuda:");
  }
  return text;
}

} // namespace

void say_cuda_out_of_memory() { says_cuda = true; }

void set_slowdown_thrower(void (*thrower)(const std::string& message)) {
  slowdown_thrower = thrower;
}

void throw_error(const runtime::Error& error) {
  switch (error.code()) {
    case runtime::ErrorCode::kOutOfDeviceMemory:
    case runtime::ErrorCode::kOutOfHostMemory:
    case runtime::ErrorCode::kOutOfLogicalMemory:
      TORCH_CHECK_WITH(
          OutOfMemoryError, false,
          says_cuda ? as_cuda_says(error.message()) : error.message());
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
