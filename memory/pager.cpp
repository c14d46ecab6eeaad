#include "memory/pager.h"

#include <utility>

#include "memory/pager_impl.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::Result;
using runtime::Stream;

Result<std::unique_ptr<Pager>> Pager::create(runtime::DeviceRuntime& runtime,
                                             const Limits& limits,
                                             std::string_view policy,
                                             int device_index) {
  std::unique_ptr<Pager> pager(new Pager);
  pager->impl_ =
      std::make_unique<PagerImpl>(*pager, runtime, limits, device_index);
  if (Error error = pager->impl_->open(policy)) return error;
  return pager;
}

Pager::~Pager() = default;

Result<Block*> Pager::create(std::size_t bytes) { return impl_->create(bytes); }

void Pager::release(Block* block) noexcept { impl_->release(block); }

void Pager::checkEvery(std::uint64_t calls) { impl_->checkEvery(calls); }

Error Pager::begin(Call& call, const OpRequest& request) {
  return impl_->begin(call, request);
}

Error Pager::begin(Call& call, Stream stream, std::span<const Operand> operands,
                   OpMemory* memory, std::string_view op, bool may_retry,
                   const OpIdentity* identity) {
  const OpKind kind{.name = op, .memory = memory, .may_retry = may_retry};
  return impl_->begin(call, {kind, stream, operands, identity});
}

void Pager::end(Call& call) noexcept { impl_->end(call); }

void Pager::hold(Call& call) noexcept { impl_->hold(call); }

Result<std::byte*> Pager::allocate(Call& call, std::size_t bytes) {
  return impl_->allocate(call, bytes);
}

std::size_t Pager::largestInCall(const Call& call) const {
  return impl_->largestInCall(call);
}
void Pager::free(Call* call, std::byte* address) noexcept {
  impl_->free(call, address);
}

Result<Block*> Pager::adopt(Call& call, std::byte* address, std::size_t bytes) {
  return impl_->adopt(call, address, bytes);
}

void Pager::record(Call& call, std::unique_ptr<RecordedOp> op,
                   std::span<Block* const> created) {
  impl_->record(call, std::move(op), created);
}

bool Pager::contains(const void* address) const noexcept {
  return impl_->contains(address);
}

Error Pager::read(Block& block, std::size_t offset, std::byte* destination,
                  std::size_t bytes, Stream stream) {
  return impl_->read(block, offset, destination, bytes, stream);
}

Error Pager::write(Block& block, std::size_t offset, const std::byte* source,
                   std::size_t bytes, Stream stream) {
  return impl_->write(block, offset, source, bytes, stream);
}

Error Pager::setHbmBudget(std::size_t bytes) {
  return impl_->setHbmBudget(bytes);
}

Error Pager::setHostBudget(std::size_t bytes, double growth_share) {
  return impl_->setHostBudget(bytes, growth_share);
}

Error Pager::setOversubscription(double factor) {
  return impl_->setOversubscription(factor);
}

Error Pager::setPolicy(std::string_view name) { return impl_->setPolicy(name); }

Error Pager::setRecompute(bool on) { return impl_->setRecompute(on); }

Limits Pager::limits() const { return impl_->limits(); }

std::size_t Pager::hbmBudget() const noexcept { return impl_->hbmBudget(); }

Pager::Levels Pager::levels() const noexcept { return impl_->levels(); }

bool Pager::drop(Block& block) { return impl_->dropBlock(block); }

void Pager::dropAll() { impl_->dropAll(); }

Error Pager::evict(Block& block) { return impl_->evictBlock(block); }

Error Pager::evictAll() { return impl_->evictAll(); }

void Pager::recordUse(Block& block, Stream stream) {
  impl_->recordUse(block, stream);
}

Error Pager::synchronize() { return impl_->synchronize(); }

void Pager::trim() { impl_->trim(); }

void Pager::setWaitHooks(WaitHooks hooks) { PagerImpl::wait_hooks = hooks; }

void Pager::setStress(Stress stress, std::uint64_t seed) {
  impl_->setStress(stress, seed);
}

void Pager::setDropStress(DropStress stress, std::uint64_t seed) {
  impl_->setDropStress(stress, seed);
}

void Pager::step(Stream stream) { impl_->step(stream); }

void Pager::setMaxSlowdown(std::optional<double> factor) {
  impl_->setMaxSlowdown(factor);
}

void Pager::setSlowdownHook(SlowdownHook hook) {
  PagerImpl::slowdown_hook = hook;
}

std::optional<StepFigures> Pager::lastStep() { return impl_->lastStep(); }

LinkModel Pager::link() const { return impl_->link(); }

void Pager::recordTimeline(bool on) { impl_->recordTimeline(on); }

const profiler::Timeline& Pager::timeline() { return impl_->timeline(); }

profiler::Profiler& Pager::profiler() noexcept { return impl_->profiler(); }

profiler::Durations& Pager::durations() noexcept { return impl_->durations(); }

DecisionLog& Pager::decisions() noexcept { return impl_->decisions(); }

PolicyCosts Pager::policyCosts() const { return impl_->policyCosts(); }

std::uint64_t Pager::calls() const noexcept { return impl_->calls(); }

std::vector<Pager::BlockInfo> Pager::blocks() const { return impl_->blocks(); }

Stats Pager::stats() const { return impl_->stats(); }

void Pager::resetStats() { impl_->resetStats(); }

void Pager::checkInvariants(int level) { impl_->check(level); }

} // namespace chameleon::memory
