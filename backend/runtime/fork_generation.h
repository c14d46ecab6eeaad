// Tells a forked child from the process that made an object: threads do not
// survive fork(), and locks may be left held.
#pragma once

#include <cstdint>

namespace chameleon::runtime {

// Rises by one in every forked child. Lock-free; safe in the child.
std::uint32_t fork_generation() noexcept;

} // namespace chameleon::runtime
