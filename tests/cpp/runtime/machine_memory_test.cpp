#include "backend/runtime/machine_memory.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>

namespace chameleon::runtime {
namespace {

class MachineMemory : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "machine_memory_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    write("/proc/meminfo",
          "MemTotal:    1000 kB\nMemFree:  10 kB\nMemAvailable:  800 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void expect(std::size_t free_bytes, std::size_t total_bytes) {
    const MemoryInfo info = machine_memory(root_);
    EXPECT_EQ(info.free_bytes, free_bytes);
    EXPECT_EQ(info.total_bytes, total_bytes);
  }
  std::string root_;
};

TEST_F(MachineMemory, WithoutGroups) { expect(800 * 1024, 1000 * 1024); }

TEST_F(MachineMemory, Version2CountsAncestorsAndCache) {
  write("/proc/self/cgroup", "0::/outer/inner\n");
  write("/sys/fs/cgroup/outer/memory.max", "500000\n");
  write("/sys/fs/cgroup/outer/memory.current", "300000\n");
  write("/sys/fs/cgroup/outer/memory.stat",
        "anon 5\ninactive_file 100000\nactive_file 7\n");
  write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "299999\n");
  expect(300000, 500000);
  write("/sys/fs/cgroup/outer/inner/memory.max", "400000\n");
  write("/sys/fs/cgroup/outer/inner/memory.current", "399000\n");
  expect(1000, 400000);
  write("/sys/fs/cgroup/outer/inner/memory.current", "400001\n");
  expect(0, 400000);
}

TEST_F(MachineMemory, Version2InsideAContainer) {
  write("/proc/self/cgroup", "0::/not/mounted/here\n");
  write("/sys/fs/cgroup/memory.max", "400000\n");
  write("/sys/fs/cgroup/memory.current", "100000\n");
  expect(300000, 400000);
}

TEST_F(MachineMemory, Version1) {
  write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600000\n");
  write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000\n");
  write("/sys/fs/cgroup/memory/job/memory.stat",
        "inactive_file 1\ntotal_inactive_file 50000\n");
  expect(150000, 600000);
}

TEST_F(MachineMemory, WhereProcCannotBeReadTheKernelIsAsked) {
  std::filesystem::remove_all(root_ + "/proc");
  const MemoryInfo info = machine_memory(root_);
  EXPECT_GT(info.free_bytes, std::size_t{1} << 20);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST(MachineMemoryHere, IsPlausible) {
  const MemoryInfo info = machine_memory();
  EXPECT_GT(info.free_bytes, std::size_t{1} << 20);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_LT(info.total_bytes, std::size_t{1} << 50);
}

} // namespace
} // namespace chameleon::runtime
