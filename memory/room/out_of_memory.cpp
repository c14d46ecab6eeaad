#include "memory/room/out_of_memory.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "backend/runtime/byte_size.h"
#include "memory/room/budget_advice.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;
using runtime::format_bytes_up;

namespace {

bool owns(const CallState& call, const Extent& extent) {
  return call.in_call.extents.findIf([&](const Extent* each) {
    return each == &extent;
  }) < call.in_call.extents.size();
}

bool is_pinned_by_others(const CallState& call, const Block& block) {
  std::size_t own = 0;
  for (const Operand& operand : call.pins) own += operand.block == &block;
  for (const Block* each : call.adopted) own += each == &block;
  for (const Block* each : call.spares.blocks) own += each == &block;
  return block.pins() > own;
}

// What of HBM is not this call's to move. In address order.
std::vector<PinnedRange> pinned_by_others(const ExtentMap& extents,
                                          const CallState& call) {
  std::vector<PinnedRange> ranges;
  for (const Extent* extent = extents.first(); extent != nullptr;
       extent = extent->next) {
    const bool pinned =
        extent->use == ExtentUse::kForeign ||
        (extent->use == ExtentUse::kInCall && !owns(call, *extent)) ||
        (extent->use == ExtentUse::kBlock &&
         is_pinned_by_others(call, *extent->block));
    if (pinned) ranges.push_back({extent->offset, extent->bytes});
  }
  return ranges;
}

// Each operand that can be placed anew, once.
std::vector<std::size_t> movable_operands(std::span<const Operand> operands,
                                          const CallState& call) {
  std::vector<const Block*> blocks;
  for (const Operand& operand : operands) {
    if (!is_pinned_by_others(call, *operand.block))
      blocks.push_back(operand.block);
  }
  std::ranges::sort(blocks);
  const auto [first, last] = std::ranges::unique(blocks);
  blocks.erase(first, last);
  std::vector<std::size_t> bytes;
  bytes.reserve(blocks.size());
  for (const Block* block : blocks) bytes.push_back(block->rounded_bytes);
  return bytes;
}

} // namespace

Error out_of_memory(const Locked& /*locked*/, const PagerCore& core,
                    const CallState& call, const OpNeeds& needs,
                    const RoomLeft& left, Shortage& shortage) {
  if (shortage.failure && (shortage.failure.code() == ErrorCode::kDevice ||
                           shortage.failure.code() == ErrorCode::kLost)) {
    return core.named(call, std::move(shortage.failure));
  }
  const std::size_t all_bytes = needs.operand_bytes + needs.inside_bytes;
  const std::vector<PinnedRange> pinned =
      pinned_by_others(core.arena->extents(), call);
  std::size_t others = 0;
  for (const PinnedRange& range : pinned) others += range.bytes;
  const HostPool& host = *core.host_pool;
  std::string text = core.name() + " out of memory. " + std::string(call.op) +
                     " needs " + format_bytes(all_bytes) +
                     " of HBM (operands " + format_bytes(needs.operand_bytes) +
                     ", inside the kernel " + format_bytes(needs.inside_bytes) +
                     "); budget " + format_bytes(core.limits.hbm_budget_bytes) +
                     ", resident " + format_bytes(left.resident_bytes) +
                     ", pinned " + format_bytes(others) + ", in one piece " +
                     format_bytes(shortage.host_full ? core.arena->largestFree()
                                                     : left.largest_run_bytes) +
                     ", host use " + format_bytes(host.usedBytes()) + " of " +
                     format_bytes(host.budgetBytes()) + ". ";
  if (shortage.failure) {
    return {shortage.failure.code(), text + shortage.failure.message()};
  }
  if (shortage.host_full) {
    return {ErrorCode::kOutOfHostMemory,
            text +
                "The host memory for evicted tensors has no room for more: "
                "raise torch_chameleon.config.host_budget, or use smaller "
                "tensors"};
  }
  std::vector<std::size_t> pieces = movable_operands(needs.operands, call);
  pieces.push_back(needs.inside_bytes);
  // What a kernel allocates is not known before it has run once.
  const std::size_t peak_bytes =
      call.memory == nullptr ? 0 : call.memory->peakAt(needs.operand_bytes);
  const bool is_known = peak_bytes != 0 && peak_bytes <= needs.inside_bytes;
  const char* unknown =
      is_known ? ""
      : needs.inside_bytes == 0
          ? " and what its kernel allocates beside its operands"
          : " and what else its kernel allocates";
  return {ErrorCode::kOutOfDeviceMemory,
          text + "Raise torch_chameleon.config.hbm_budget to at least " +
              format_bytes_up(budget_for(std::move(pieces), pinned)) + unknown +
              ", or use smaller tensors (a smaller batch)"};
}

Error out_of_logical_memory(const Locked& /*locked*/, const PagerCore& core,
                            std::size_t bytes, std::size_t live_bytes,
                            std::size_t limit_bytes) {
  const std::size_t budget_bytes = core.limits.hbm_budget_bytes;
  const double fraction = core.limits.live_fraction;
  char lowered[96] = "";
  if (fraction != 1) {
    std::snprintf(lowered, sizeof lowered,
                  ", or the %g that was given to "
                  "set_per_process_memory_fraction and lowers that limit",
                  fraction);
  }
  // No op could use what is larger than that.
  const char* raise = bytes > budget_bytes
                          ? "). Raise torch_chameleon.config.hbm_budget to "
                            "more than this tensor, or use a smaller one"
                          : "). Raise torch_chameleon.config.oversubscription "
                            "or torch_chameleon.config.hbm_budget";
  return {ErrorCode::kOutOfLogicalMemory,
          core.name() + " out of memory. A tensor of " + format_bytes(bytes) +
              " does not fit beside the " + format_bytes(live_bytes) +
              " of live tensors; the limit is " + format_bytes(limit_bytes) +
              " (oversubscription x hbm_budget of " +
              format_bytes(budget_bytes) + raise + lowered};
}

Error out_of_addresses(const PagerCore& core, std::size_t bytes,
                       std::size_t range_bytes) {
  return {ErrorCode::kOutOfLogicalMemory,
          core.name() + " out of memory. No logical address is left for " +
              format_bytes(bytes) + " out of a range of " +
              format_bytes(range_bytes) + "; free tensors first"};
}

Error eviction_error(const Locked& /*locked*/, const PagerCore& core,
                     Shortage& shortage) {
  if (shortage.failure) return std::move(shortage.failure);
  if (!shortage.host_full) return {};
  return {ErrorCode::kOutOfHostMemory,
          core.name() + " out of memory. Evicted tensors use " +
              format_bytes(core.host_pool->usedBytes()) +
              " of the host budget " +
              format_bytes(core.host_pool->budgetBytes()) +
              " and another does not fit. Raise "
              "torch_chameleon.config.host_budget"};
}

Error lost_error(const PagerCore& core, const Block& block) {
  return {ErrorCode::kLost,
          core.name() + ": the value of a tensor of " +
              format_bytes(block.bytes) +
              " is lost: the device failed to bring it back when an op that "
              "was overwriting it had failed. Assign all of it anew (copy_, "
              "fill_, zero_), or load it from a checkpoint"};
}

} // namespace chameleon::memory
