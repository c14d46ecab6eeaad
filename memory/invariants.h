// Walks everything the pager knows and aborts with a sentence on the first
// thing that does not hold: B1..B4 of block.h, P1 of pager.h, the invariants
// of the arena and the host pool, and that all counts add up. Calls may be in
// flight; what is only true without them is checked when there are none.
//
//   level 1  counters, O(1)
//   level 2  every block and every extent
//   level 3  also compares clean host copies with the device bytes
//
// Thread safety: runs under the pager's lock. Level 3 waits on the host.
#pragma once

namespace chameleon::memory {

class PagerImpl;

class InvariantWalker {
 public:
  explicit InvariantWalker(PagerImpl& pager) : pager_(pager) {}
  void walk(int level); // REQUIRES the pager's lock

 private:
  void checkLevels() const;
  void checkBlocks() const;
  void checkExtents() const;
  void checkCopies() const;
  void checkCommitted() const;

  PagerImpl& pager_;
};

} // namespace chameleon::memory
