// Tells a forked child from the process that made an object: threads do not
// survive fork(), and locks may be left held.
//
// Tests: cpu_runtime_test.cpp.
//
// Thread safety: any thread; an atomic.
#pragma once

#include <cstdint>

#include "backend/runtime/result.h"

namespace chameleon::runtime {

// Rises by one in every forked child. Lock-free; safe in the child.
std::uint32_t fork_generation() noexcept;

// What every fallible method of an older runtime returns in a child.
Error used_before_fork();

} // namespace chameleon::runtime
