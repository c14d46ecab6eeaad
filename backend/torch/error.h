// The one place that turns an Error of the torch-free core into a torch
// exception: memory -> c10::OutOfMemoryError (torch.OutOfMemoryError),
// arguments -> c10::ValueError, everything else -> c10::Error, but for what the
// Python layer has a type of its own.
//
// Tests: test_errors.py.
//
// Thread safety: functions of their arguments.
#pragma once

#include <string>

#include "backend/runtime/result.h"

namespace chameleon::backend {

[[noreturn]] void throw_error(const runtime::Error& error);
// From now on what lacks memory is told in CUDA's words: "CUDA out of memory.
// cuda:0: ...". Programs that then try again with less look for them.
void say_cuda_out_of_memory();
// Throws in place of c10::Error for kTooSlow. Once, at load.
void set_slowdown_thrower(void (*thrower)(const std::string& message));

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
