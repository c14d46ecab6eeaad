// Failure as a value: what the torch-free layers return instead of throwing.
//
// An expected failure (no room, limit reached, driver said no) travels as an
// Error; a broken invariant is an assert (check.h). backend/torch/error.h is
// the one place that turns an Error into a torch exception.
//
// Thread safety: values, no shared state. Success costs one null pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace chameleon::runtime {

enum class ErrorCode : std::uint8_t {
  kOutOfDeviceMemory,  // the HBM budget cannot hold what must be resident
  kOutOfHostMemory,    // the host budget is full
  kOutOfLogicalMemory, // oversubscription x hbm_budget is used up
  kInvalidArgument,    // bad option value; the message names key and range
  kUnavailable,        // the asked thing does not exist on this machine
  kDevice,             // the driver or a copy engine reported a failure
  kLost,               // the bytes of a block could not be saved or restored
  kTooSlow,            // steps exceed the slowdown that was allowed
};

class [[nodiscard]] Error {
 public:
  Error() = default; // success
  Error(ErrorCode code, std::string message)
      : detail_(std::make_unique<Detail>(Detail{code, std::move(message)})) {}

  bool ok() const noexcept { return detail_ == nullptr; }
  explicit operator bool() const noexcept { return !ok(); } // true: failed
  // REQUIRES: !ok().
  ErrorCode code() const noexcept { return detail_->code; }
  const std::string& message() const noexcept { return detail_->message; }

 private:
  struct Detail {
    ErrorCode code;
    std::string message;
  };
  std::unique_ptr<Detail> detail_;
};

// A T or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {} // NOLINT: implicit by design
  Result(Error error) : error_(std::move(error)) {} // NOLINT

  bool ok() const noexcept { return value_.has_value(); }
  // REQUIRES: ok().
  T& value() & noexcept { return *value_; }
  const T& value() const& noexcept { return *value_; }
  T&& value() && noexcept { return std::move(*value_); }
  T& operator*() & noexcept { return *value_; }
  T* operator->() noexcept { return &*value_; }
  // REQUIRES: !ok().
  Error takeError() noexcept { return std::move(error_); }
  const Error& error() const noexcept { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

} // namespace chameleon::runtime
