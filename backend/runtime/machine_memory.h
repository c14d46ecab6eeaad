// What host memory the machine can give to this process: the smaller of
// /proc/meminfo and every cgroup (v1 and v2) that the process is in.
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
