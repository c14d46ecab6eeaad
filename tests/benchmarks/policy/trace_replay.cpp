#include "tests/benchmarks/policy/trace_replay.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "backend/runtime/simulated/simulated_runtime.h"
#include "profiler/op_names.h"

namespace chameleon::benchmarks {

using memory::Access;
using memory::Block;

namespace {

constexpr double kBytesPerNs = 4000; // of the modelled device memory
constexpr double kFlopsPerNs = 1e6;  // any: they say how long an op takes

void fail(const runtime::Error& error) {
  if (!error) return;
  std::fprintf(stderr, "replay: %s\n", error.message().c_str());
  std::exit(1);
}

// It takes its time, and what it must read and write is the share of the
// memory's bandwidth that it needs (moves have the rest).
runtime::OpCost cost_of(double duration_ns, std::size_t bytes) {
  return {
      .flops = duration_ns * kFlopsPerNs,
      .math = runtime::MathType::kFp32,
      .bytes = std::min(static_cast<double>(bytes), duration_ns * kBytesPerNs)};
}

// Begins a call and allocates in it, again with more room where that fails and
// the op may run again, as kernels do. After an error the call has ended.
template <typename Begin>
runtime::Error begin_and_allocate(memory::Pager& pager, memory::Call& call,
                                  bool may_retry, const Begin& begin,
                                  std::span<const std::size_t> sizes,
                                  std::vector<std::byte*>& addresses) {
  for (;;) {
    if (runtime::Error error = begin()) return error;
    addresses.clear();
    runtime::Error error;
    for (const std::size_t bytes : sizes) {
      auto address = pager.allocate(call, bytes);
      if (!address.ok()) {
        error = address.takeError();
        break;
      }
      addresses.push_back(*address);
    }
    if (!error) return {};
    for (std::byte* const address : addresses) pager.free(&call, address);
    pager.end(call);
    if (!may_retry || !call.worthRetrying()) return error;
  }
}

// An op of the trace once more: it takes its time and what it creates.
class RecordedTraceOp final : public memory::RecordedOp {
 public:
  RecordedTraceOp(memory::Pager& pager, runtime::DeviceRuntime& runtime,
                  std::vector<memory::Access> accesses,
                  std::vector<std::size_t> created, double duration_ns)
      : pager_(pager),
        runtime_(runtime),
        accesses_(std::move(accesses)),
        created_(std::move(created)),
        duration_ns_(duration_ns) {}

  runtime::Error run(std::span<Block* const> blocks,
                     std::vector<Block*>& results) override {
    static constexpr memory::OpKind kKind{.name = "op"};
    std::vector<memory::Operand> operands;
    std::size_t all_bytes = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      operands.push_back({blocks[i], accesses_[i]});
      all_bytes += blocks[i]->bytes;
    }
    memory::Call call;
    const auto begin = [&] {
      return pager_.begin(call, {kKind, {}, operands, nullptr, true});
    };
    std::vector<std::byte*> addresses;
    if (runtime::Error error = begin_and_allocate(
            pager_, call, /*may_retry=*/true, begin, created_, addresses)) {
      return error;
    }
    for (std::size_t i = 0; i < created_.size(); ++i) {
      results.push_back(pager_.adopt(call, addresses[i], created_[i]).value());
      all_bytes += created_[i];
    }
    fail(runtime_.computed({}, cost_of(duration_ns_, all_bytes)));
    pager_.end(call);
    return {};
  }
  bool isSideEffect(std::size_t /*operand*/) const override { return false; }

 private:
  memory::Pager& pager_;
  runtime::DeviceRuntime& runtime_;
  const std::vector<memory::Access> accesses_;
  const std::vector<std::size_t> created_;
  const double duration_ns_;
};

} // namespace

runtime::Result<profiler::Cycle> cycle_of(profiler::Trace trace) {
  trace.step_ends = {trace.ops.size()};
  return profiler::make_cycle(trace);
}

TraceReplay::TraceReplay(const profiler::Trace& trace,
                         const profiler::Cycle& cycle, const Options& options)
    : cycle_(cycle),
      step_ends_(trace.step_ends),
      blocks_(cycle.values()),
      tokens_(cycle.ops()) {
  runtime::GpuProfile profile = runtime::parse_gpu_profile("base=h200").value();
  profile.memory_bytes = std::size_t{4} << 40;
  profile.host_memory_bytes = std::size_t{4} << 40;
  profile.launch_ns = 0;
  profile.hbm_bytes_per_s = kBytesPerNs * 1e9;
  profile.bandwidth_fraction = 1;
  profile.flops_per_s.fill(kFlopsPerNs * 1e9);
  profile.compute_fraction = 1;
  profile.link_in_bytes_per_s = trace.header.in_bytes_per_second;
  profile.link_out_bytes_per_s = trace.header.out_bytes_per_second;
  profile.link_both_bytes_per_s = trace.header.both_bytes_per_second;
  profile.copy_latency_ns = trace.header.copy_latency_ns;
  runtime_ = runtime::make_simulated_runtime(profile);
  const memory::Limits limits{options.budget_bytes, std::size_t{2} << 40, 64.0};
  pager_ = memory::Pager::create(*runtime_, limits, options.policy).value();
  fail(pager_->policy().setRecompute(options.recompute));
  for (std::size_t i = 0; i < cycle.ops(); ++i) {
    const std::uint32_t name = profiler::op_names().add(trace.ops[i].op);
    if (trace.ops[i].may_rerun) profiler::op_names().allowRerun(name);
    profiler::TokenHasher hasher(name);
    for (const profiler::Operand operand : cycle.operandsOf(i)) {
      hasher.add(cycle.value_bytes[operand.value()]);
      hasher.add(operand.flags());
    }
    hasher.add(static_cast<std::uint64_t>(cycle.duration_ns[i]));
    tokens_[i] = {name, hasher.token()};
  }
  std::vector<bool> created(cycle.values());
  for (const profiler::Operand operand : cycle.operands) {
    if (operand.creates()) created[operand.value()] = true;
  }
  for (std::size_t v = 0; v < cycle.values(); ++v) {
    if (created[v]) continue;
    blocks_[v] = pager_->createBlock(cycle.value_bytes[v]).value();
    if (pager_->write(*blocks_[v], 0, nullptr, cycle.value_bytes[v], {})) {
      std::abort();
    }
  }
}
TraceReplay::~TraceReplay() {
  for (const runtime::Event event : boundaries_) runtime_->destroy(event);
  for (Block* block : blocks_) {
    if (block != nullptr) pager_->release(block);
  }
}

void TraceReplay::step() {
  if (boundaries_.empty()) mark();
  pager_->profiler().step();
  const std::size_t begin = next_ > 0 ? step_ends_[next_ - 1] : 0;
  for (std::size_t i = begin; i < step_ends_[next_]; ++i) run(i);
  next_ = (next_ + 1) % step_ends_.size();
  mark();
}

std::vector<runtime::Moment> TraceReplay::moments() {
  (void)pager_->synchronize().ok();
  std::vector<runtime::Moment> moments;
  for (const runtime::Event event : boundaries_) {
    moments.push_back(runtime_->momentOf(event).value());
  }
  return moments;
}

void TraceReplay::mark() {
  boundaries_.push_back(runtime_->recordTimed({}).value());
}

void TraceReplay::run(std::size_t op) {
  std::vector<memory::Operand> operands;
  bool may_retry = true;
  for (const profiler::Operand operand : cycle_.operandsOf(op)) {
    if (operand.creates()) continue;
    Block*& block = blocks_[operand.value()];
    // Alive across the step's end: not yet there in the first step.
    if (block == nullptr) {
      block = pager_->createBlock(cycle_.value_bytes[operand.value()]).value();
    }
    may_retry = may_retry && !operand.dirties();
    operands.push_back(
        {block, operand.dirties() ? Access::kWrite : Access::kRead});
  }
  memory::Call call;
  const auto& [name, token] = tokens_[op];
  const auto identity = memory::OpIdentity::of(name, token);
  const auto begin = [&] {
    return pager_->begin(call, {}, operands, &memory_[name], "op", may_retry,
                         &identity);
  };
  std::vector<std::size_t> sizes;
  for (const profiler::Operand operand : cycle_.operandsOf(op)) {
    if (!operand.creates()) continue;
    sizes.push_back(cycle_.value_bytes[operand.value()]);
  }
  const bool has_workspace = cycle_.workspace_bytes[op] > 0;
  if (has_workspace) sizes.push_back(cycle_.workspace_bytes[op]);
  std::vector<std::byte*> addresses;
  fail(begin_and_allocate(*pager_, call, may_retry, begin, sizes, addresses));
  if (has_workspace) pager_->free(&call, addresses.back());
  auto address = addresses.begin();
  for (const profiler::Operand operand : cycle_.operandsOf(op)) {
    if (!operand.creates()) continue;
    const std::size_t bytes = cycle_.value_bytes[operand.value()];
    Block*& block = blocks_[operand.value()];
    if (block != nullptr) pager_->release(block);
    block = pager_->adopt(call, *address++, bytes).value();
  }
  std::size_t bytes = cycle_.workspace_bytes[op];
  for (const profiler::Operand operand : cycle_.operandsOf(op)) {
    bytes += cycle_.value_bytes[operand.value()];
  }
  const auto duration = static_cast<double>(cycle_.duration_ns[op]);
  fail(runtime_->computed({}, cost_of(duration, bytes)));
  pager_->meter().durations().addOp(token, 0, cycle_.duration_ns[op]);
  if (call.wantsRecord()) record(call, op, operands);
  pager_->end(call);
  for (const profiler::ValueIndex value : cycle_.freedAfter(op)) {
    if (blocks_[value] != nullptr) pager_->release(blocks_[value]);
    blocks_[value] = nullptr;
  }
}

void TraceReplay::record(memory::Call& call, std::size_t op,
                         const std::vector<memory::Operand>& operands) {
  std::vector<Access> accesses;
  for (const memory::Operand& operand : operands) {
    accesses.push_back(operand.access);
  }
  std::vector<std::size_t> created;
  std::vector<Block*> blocks;
  for (const profiler::Operand operand : cycle_.operandsOf(op)) {
    if (!operand.creates()) continue;
    created.push_back(cycle_.value_bytes[operand.value()]);
    blocks.push_back(blocks_[operand.value()]);
  }
  pager_->record(
      call,
      std::make_unique<RecordedTraceOp>(
          *pager_, *runtime_, std::move(accesses), std::move(created),
          static_cast<double>(cycle_.duration_ns[op])),
      blocks);
}

} // namespace chameleon::benchmarks
