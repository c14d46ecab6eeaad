// The one place that turns an Error of the torch-free core into a torch
// exception: memory -> c10::OutOfMemoryError (torch.OutOfMemoryError),
// arguments -> c10::ValueError, everything else -> c10::Error.
#pragma once

#include "backend/runtime/result.h"

namespace chameleon::backend {

[[noreturn]] void throw_error(const runtime::Error& error);

inline void throw_if(const runtime::Error& error) {
  if (!error.ok()) [[unlikely]]
    throw_error(error);
}

template <typename T>
T value_or_throw(runtime::Result<T> result) {
  if (!result.ok()) [[unlikely]]
    throw_error(result.error());
  return std::move(result).value();
}

} // namespace chameleon::backend
