#include "tests/benchmarks/fragmentation/hbm_use.h"

#include "memory/decision_log.h"
#include "tests/benchmarks/policy/trace_replay.h"

namespace chameleon::benchmarks {
namespace {

constexpr std::size_t kFirst = 6;   // steps before plans may be settled,
constexpr std::size_t kMost = 240;  // and at most
constexpr std::size_t kSteady = 12; // after them, or a whole round
constexpr std::size_t kLogged = ~std::size_t{0};

} // namespace

HbmUse hbm_use(const profiler::Trace& trace, std::size_t budget_bytes) {
  const profiler::Cycle cycle = cycle_of(trace).value();
  TraceReplay replay(trace, cycle, {.budget_bytes = budget_bytes});
  memory::Pager& pager = replay.pager();
  const auto rounds = [&](std::size_t least) {
    for (std::size_t i = 0; i < least || i % replay.steps() != 0; ++i) {
      replay.step();
    }
  };
  for (std::size_t i = 0; i < kMost; i += replay.steps()) {
    if (i >= kFirst && !pager.policy().costs().is_trying) break;
    rounds(replay.steps());
  }
  pager.resetStats();
  pager.decisions().start(kLogged);
  rounds(kSteady);
  (void)pager.synchronize().ok();

  const memory::Stats stats = pager.stats();
  HbmUse use;
  use.resident_bytes = stats.peak_resident_bytes;
  const runtime::MemoryInfo memory = replay.runtime().deviceMemory();
  use.mapped_bytes =
      static_cast<std::int64_t>(memory.total_bytes - memory.free_bytes);
  use.steps = stats.steps;
  use.link_bytes = stats.bytes_in + stats.bytes_out;
  use.commits = stats.commits;
  for (const memory::DecisionRecord& record : pager.decisions().records()) {
    if (record.decision != memory::Decision::kMove) continue;
    use.moved_bytes += static_cast<std::int64_t>(record.bytes);
  }
  return use;
}

} // namespace chameleon::benchmarks
