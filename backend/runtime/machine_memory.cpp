#include "backend/runtime/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <sys/sysinfo.h>

namespace chameleon::runtime {

namespace {

// The number after `name` in a file of "name[:] number [kB]" lines.
std::optional<std::size_t> field(const std::string& path,
                                 std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::size_t number = 0;
    if (!(words >> key >> number)) continue;
    if (key == name) return number;
  }
  return std::nullopt;
}

// nullopt: no such file, or its text is "max".
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cache; // in memory.stat: page cache that is easily dropped
};
constexpr GroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current",
                                  "inactive_file"};

// Narrows `info` to one group's limit.
void narrow(MemoryInfo& info, const std::string& folder,
            const GroupFiles& files) {
  const auto limit = number_in(folder + "/" + files.limit);
  if (!limit) return;
  const std::size_t usage = number_in(folder + "/" + files.usage).value_or(0);
  const std::size_t cache =
      std::min(usage, field(folder + "/memory.stat", files.cache).value_or(0));
  const std::size_t used = usage - cache;
  info.total_bytes = std::min(info.total_bytes, *limit);
  info.free_bytes =
      std::min(info.free_bytes, *limit > used ? *limit - used : 0);
}

// A limit holds for every group below it, so all ancestors count. Inside a
// container the path may name a folder that is not mounted: its ancestors
// are, down to the mount point itself.
void narrow_to_ancestors(MemoryInfo& info, const std::string& mount,
                         std::string path, const GroupFiles& files) {
  while (true) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    narrow(info, mount + path, files);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

// What the kernel says itself: without the page cache, so rather too little.
MemoryInfo by_system_call() {
  struct sysinfo said{};
  sysinfo(&said); // fails for a bad address alone
  return {.free_bytes = (said.freeram + said.bufferram) * said.mem_unit,
          .total_bytes = said.totalram * said.mem_unit};
}

} // namespace

MemoryInfo machine_memory(const std::string& root) {
  MemoryInfo info = by_system_call();
  const std::string meminfo = root + "/proc/meminfo";
  if (const auto total = field(meminfo, "MemTotal:")) {
    info.total_bytes = *total * 1024;
  }
  if (const auto available = field(meminfo, "MemAvailable:")) {
    info.free_bytes = *available * 1024;
  }

  // Lines of "<id>:<controllers>:<path>"; version 2 has id 0, no controllers.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      narrow_to_ancestors(info, root + "/sys/fs/cgroup", path, kVersion2);
      narrow_to_ancestors(info, root + "/sys/fs/cgroup/unified", path,
                          kVersion2);
    } else if (controllers.find(",memory,") != std::string::npos) {
      narrow_to_ancestors(info, root + "/sys/fs/cgroup/memory", path,
                          kVersion1);
    }
  }
  info.free_bytes = std::min(info.free_bytes, info.total_bytes);
  return info;
}

} // namespace chameleon::runtime
