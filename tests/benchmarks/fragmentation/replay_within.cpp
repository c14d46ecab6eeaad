// Prints what the steps of a trace take and move within a budget of HBM
// (hbm_use.h), as one JSON object.
//
//   replay_within BYTES < trace.jsonl
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>

#include "profiler/trace/trace_reader.h"
#include "tests/benchmarks/fragmentation/hbm_use.h"

int main(int count, char** values) {
  namespace profiler = chameleon::profiler;
  if (count != 2) {
    std::fputs("usage: replay_within BYTES < trace.jsonl\n", stderr);
    return 2;
  }
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  auto trace = profiler::read_trace(text);
  if (!trace.ok()) {
    std::fprintf(stderr, "%s\n", trace.error().message().c_str());
    return 1;
  }
  const chameleon::benchmarks::HbmUse use = chameleon::benchmarks::hbm_use(
      *trace, std::strtoull(values[1], nullptr, 10));
  std::printf(
      "{\"resident_bytes\":%ld,\"mapped_bytes\":%ld,\"steps\":%ld,"
      "\"link_bytes\":%ld,\"moved_bytes\":%ld,\"commits\":%ld}\n",
      use.resident_bytes, use.mapped_bytes, use.steps, use.link_bytes,
      use.moved_bytes, use.commits);
  return 0;
}
