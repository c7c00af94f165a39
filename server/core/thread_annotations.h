// Clang's thread-safety attributes (-Wthread-safety); nothing under other compilers. Abseil, which
// gRPC brings along, defines some of the same names with the same meaning: the first one stands.
#pragma once

#if defined(__clang__)
#define LINTEL_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LINTEL_THREAD_ATTRIBUTE(x)
#endif

#ifndef CAPABILITY
#define CAPABILITY(x) LINTEL_THREAD_ATTRIBUTE(capability(x))
#endif
#ifndef SCOPED_CAPABILITY
#define SCOPED_CAPABILITY LINTEL_THREAD_ATTRIBUTE(scoped_lockable)
#endif
#ifndef GUARDED_BY
#define GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(guarded_by(x))
#endif
#ifndef PT_GUARDED_BY
#define PT_GUARDED_BY(x) LINTEL_THREAD_ATTRIBUTE(pt_guarded_by(x))
#endif
#ifndef REQUIRES
#define REQUIRES(...) LINTEL_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#endif
#ifndef EXCLUDES
#define EXCLUDES(...) LINTEL_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#endif
#ifndef ACQUIRE
#define ACQUIRE(...) LINTEL_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#endif
#ifndef RELEASE
#define RELEASE(...) LINTEL_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#endif
#ifndef NO_THREAD_SAFETY_ANALYSIS
#define NO_THREAD_SAFETY_ANALYSIS LINTEL_THREAD_ATTRIBUTE(no_thread_safety_analysis)
#endif
