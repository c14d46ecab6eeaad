// What the probes of a driver share: a clock, host memory, an answer's line.
#pragma once

#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <sys/mman.h>

#include "backend/runtime/cuda/cuda_driver.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace chameleon::probe {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 4096;

inline double seconds() {
  using std::chrono::steady_clock;
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch())
      .count();
}

// A line of JSON, flushed: {"key": "name", ...}, the rest as printf takes it.
__attribute__((format(printf, 3, 4))) inline void tell(const char* key,
                                                       const char* name,
                                                       const char* format,
                                                       ...) {
  std::printf("{\"%s\": \"%s\", ", key, name);
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("}\n");
  std::fflush(stdout);
}

// Untouched: no page of it is there yet.
inline std::byte* map_host(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

inline void touch(std::byte* memory, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kPage) {
    memory[at] = static_cast<std::byte>(at / kPage);
  }
}

// The program: asks a Probe(driver, is_quick), quick with --quick.
template <typename Probe>
int run(int argc, char** argv) {
  auto driver = runtime::cuda_driver();
  if (!driver.ok()) {
    std::fprintf(stderr, "%s\n", driver.error().message().c_str());
    return 1;
  }
  const bool is_quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  Probe(**driver, is_quick).ask();
  return 0;
}

} // namespace chameleon::probe
