// What to evict, and when. A policy decides, the pager acts; a policy never
// touches memory, streams or tensors.
//
// Thread safety: every method is called under the pager's lock. A policy must
// not call back into the pager. Decisions never affect correctness: whatever
// is answered, every op sees the right bits.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "memory/block.h"

namespace chameleon::memory {

class Policy {
 public:
  Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  virtual ~Policy() = default;
  virtual std::string_view name() const noexcept = 0;

  // A block got its bytes into HBM: it is known from now on.
  virtual void entered(Block& block) = 0;
  // It lost them (evicted or freed). A block that is not known is ignored.
  virtual void left(Block& block) noexcept = 0;

  // The next victim in order of preference, or null when there is none that
  // `usable` accepts (pinned blocks are not). It is not known any more: a
  // victim that could not be evicted after all comes back through entered().
  using Usable = bool (*)(const Block&);
  virtual Block* victim(Usable usable) = 0;

  virtual std::size_t size() const noexcept = 0; // known blocks
};

// The names that make_policy knows, for messages: "lru".
std::vector<std::string_view> policy_names();
// Null: unknown name.
std::unique_ptr<Policy> make_policy(std::string_view name);

} // namespace chameleon::memory
