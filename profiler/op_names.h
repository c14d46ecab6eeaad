// Numbers for the names of ops, so that recorded ops hold four bytes. An op is
// registered once, when its traits are made; names live as long as the table.
//
// Thread safety: any thread; add() takes a short lock, no hot path calls it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "backend/runtime/ranked_mutex.h"

namespace chameleon::profiler {

class OpNames {
 public:
  // The same number for the same name.
  std::uint32_t add(std::string_view name) {
    const std::lock_guard lock(mutex_);
    const auto [at, added] = numbers_.try_emplace(
        std::string(name), static_cast<std::uint32_t>(names_.size()));
    if (added) names_.push_back(at->first);
    return at->second;
  }
  // Ops of this number may be run again (Cycle::may_rerun).
  void allowRerun(std::uint32_t op) {
    const std::lock_guard lock(mutex_);
    if (reruns_.size() <= op) reruns_.resize(op + 1);
    reruns_[op] = true;
  }
  bool mayRerun(std::uint32_t op) const {
    const std::lock_guard lock(mutex_);
    return op < reruns_.size() && reruns_[op];
  }
  // "?" for a number that was never given.
  std::string_view name(std::uint32_t op) const {
    const std::lock_guard lock(mutex_);
    return op < names_.size() ? names_[op] : std::string_view("?");
  }

 private:
  mutable runtime::RankedMutex<runtime::LockRank::kLog> mutex_;
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
  std::deque<std::string_view> names_; // into numbers_
  std::vector<bool> reruns_;
};

// The process's table. Leaked: names may be asked for while it exits.
inline OpNames& op_names() {
  static auto* const names = new OpNames;
  return *names;
}

} // namespace chameleon::profiler
