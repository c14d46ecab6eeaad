#include "memory/decision_log.h"

#include <array>

namespace chameleon::memory {

std::string_view decision_name(Decision decision) noexcept {
  static constexpr std::array<std::string_view, kDecisions> kNames = {
      "pin",  "fault",    "fetch", "write_back", "evict", "victim",
      "move", "allocate", "free",  "adopt",      "drop",  "rerun"};
  return kNames[static_cast<std::size_t>(decision)];
}

void DecisionLog::start(std::size_t limit) {
  const std::lock_guard lock(mutex_);
  records_.clear();
  records_.shrink_to_fit();
  limit_ = limit;
  dropped_ = 0;
  on_.store(limit > 0, std::memory_order_relaxed);
  if (limit > 0) watched_ = true;
}

void DecisionLog::add(const DecisionRecord& record) {
  const std::lock_guard lock(mutex_);
  if (records_.size() < limit_) {
    records_.push_back(record);
  } else {
    ++dropped_;
  }
}

std::vector<DecisionRecord> DecisionLog::records() const {
  const std::lock_guard lock(mutex_);
  return records_;
}

std::size_t DecisionLog::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

} // namespace chameleon::memory
