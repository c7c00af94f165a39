// Clang's thread-safety attributes (-Wthread-safety); nothing under other compilers.
#pragma once

#if defined(__clang__)
#define LINTEL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LINTEL_THREAD_ATTRIBUTE(x)
#endif

#define CAPABILITY(x) LINTEL_THREAD_ATTRIBUTE(capability(x))
#define SCOPED_CAPABILITY LINTEL_THREAD_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(guarded_by(x))
#define PT_GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define REQUIRES(...) LINTEL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) LINTEL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) LINTEL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) LINTEL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS LINTEL_THREAD_ATTRIBUTE(no_thread_safety_analysis)
