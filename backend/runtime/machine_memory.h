// What host memory the machine can give to this process: the smaller of
// /proc/meminfo and every cgroup (v1 and v2) that the process is in. A virtual
// machine may get its memory only as it is used: MemTotal begins far below what
// it can become, a cgroup's limit above it says nothing of what there is, and
// no file says how far it will go. So whoever makes a limit of this asks again
// when that is reached (HostPool::followMachine()), and who knows better sets
// host_budget.
//
// Thread safety: no shared state.
#pragma once

#include <string>

#include "backend/runtime/device_runtime.h"

namespace chameleon::runtime {

// Bytes. total: the limit. free: what can still be taken without swapping,
// page cache that can be dropped included. `root` is put before every path;
// tests read a tree of their own. Where /proc cannot be read the kernel is
// asked, which counts no page cache.
MemoryInfo machine_memory(const std::string& root = "");

} // namespace chameleon::runtime
