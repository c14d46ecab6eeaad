// Says to Clang's thread safety analysis which lock guards a member and which
// lock a function needs; ci/lint runs it (-Wthread-safety). Other compilers see
// nothing. See clang.llvm.org/docs/ThreadSafetyAnalysis.html.
//
// Thread safety: macros; nothing runs.
#pragma once

#ifdef __clang__
#define CHAMELEON_ANNOTATE(x) __attribute__((x))
#else
#define CHAMELEON_ANNOTATE(x)
#endif

// On a class: it stands for a lock, or holds one while it lives.
#define CAPABILITY(name) CHAMELEON_ANNOTATE(capability(name))
#define SCOPED_CAPABILITY CHAMELEON_ANNOTATE(scoped_lockable)
// On a member: only who holds `lock` reads or writes it.
#define GUARDED_BY(lock) CHAMELEON_ANNOTATE(guarded_by(lock))
// On a function: its caller holds the lock; it takes it; it gives it up.
#define REQUIRES(...) CHAMELEON_ANNOTATE(requires_capability(__VA_ARGS__))
#define ACQUIRE(...) CHAMELEON_ANNOTATE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) CHAMELEON_ANNOTATE(release_capability(__VA_ARGS__))
// On a function that is right although the analysis cannot see it; say why.
#define NO_THREAD_SAFETY_ANALYSIS CHAMELEON_ANNOTATE(no_thread_safety_analysis)
