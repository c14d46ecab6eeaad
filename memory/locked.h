// That the pager's lock is held, said twice: to the compiler by an argument,
// and to Clang's thread safety analysis by an annotation.
//
// A method that needs the lock takes a Locked, which only a PagerLock
// (pager_core.h) is, and REQUIRES(pager_lock). A member that the lock guards is
// GUARDED_BY(pager_lock). The analysis cannot tell the locks of two pagers
// apart; a Locked is never passed from one pager to another.
//
// Thread safety: plain values, which the thread with the lock passes on.
#pragma once

#include "backend/runtime/thread_annotations.h"

namespace chameleon::memory {

// What Clang's analysis knows the lock by.
class CAPABILITY("the pager's lock") PagerLockRole {};
inline constexpr PagerLockRole pager_lock;

// Proof that the pager's lock is held. Only a PagerLock is one.
class Locked {
 public:
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 protected:
  Locked() = default;
  ~Locked() = default;
};

} // namespace chameleon::memory
