// For the tsan preset only. Debian's Abseil is built without ThreadSanitizer, which therefore sees no order
// in what absl::Mutex, CondVar, Notification and a Status's count of references synchronize, and reports
// every correct use of them. These definitions stand in front of the library's: each tells the sanitizer what
// the call orders, and then makes the library's call.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {  // of the sanitizer's library, which has no header for them
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

// Member functions of the inline namespace of this Abseil, by their names in the library.
#define ABSL_SYMBOL(suffix) "_ZN4absl7debian3" suffix
#define ABSL_CONST_SYMBOL(suffix) "_ZNK4absl7debian3" suffix

namespace {

// The library's own function. A member function without virtual bases is called with `this` as its
// first argument.
template <typename Function>
Function* Real(const char* symbol) {
  void* const function = dlsym(RTLD_NEXT, symbol);
  if (function == nullptr) {
    std::fprintf(stderr, "tsan_absl: no %s in the Abseil that is installed\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

void Acquire(const void* object) { __tsan_acquire(const_cast<void*>(object)); }
void Release(const void* object) { __tsan_release(const_cast<void*>(object)); }

// The library evaluates the conditions of waiting threads on the thread that unlocks, where the sanitizer
// cannot place them: it does not look while the library runs.
class ScopedIgnore {
 public:
  ScopedIgnore() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~ScopedIgnore() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  ScopedIgnore(const ScopedIgnore&) = delete;
  ScopedIgnore& operator=(const ScopedIgnore&) = delete;
};

template <typename Function, typename... Arguments>
auto Call(Function* real, Arguments&&... arguments) {
  const ScopedIgnore ignore;
  return real(std::forward<Arguments>(arguments)...);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

// Who lets go last deletes what the others have read.
void Status::UnrefNonInlined(uintptr_t rep) {
  static auto* const real = Real<void(uintptr_t)>(ABSL_SYMBOL("6Status15UnrefNonInlinedEm"));
  void* const counted = reinterpret_cast<void*>(rep & ~uintptr_t{3});
  Release(counted);
  Acquire(counted);
  Call(real, rep);
}

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex4LockEv"));
  Call(real, this);
  Acquire(this);
}

void Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex6UnlockEv"));
  Release(this);
  Call(real, this);
}

bool Mutex::TryLock() {
  static auto* const real = Real<bool(Mutex*)>(ABSL_SYMBOL("5Mutex7TryLockEv"));
  const bool locked = Call(real, this);
  if (locked) Acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex10ReaderLockEv"));
  Call(real, this);
  Acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex12ReaderUnlockEv"));
  Release(this);
  Call(real, this);
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real =
      Real<void(Mutex*, const Condition&)>(ABSL_SYMBOL("5Mutex8LockWhenERKNS0_9ConditionE"));
  Call(real, this, condition);
  Acquire(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real =
      Real<void(Mutex*, const Condition&)>(ABSL_SYMBOL("5Mutex5AwaitERKNS0_9ConditionE"));
  Release(this);
  Call(real, this, condition);
  Acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      ABSL_SYMBOL("5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
  Release(this);
  const bool held = Call(real, this, condition, timeout);
  Acquire(this);
  return held;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Time)>(
      ABSL_SYMBOL("5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"));
  Release(this);
  const bool held = Call(real, this, condition, deadline);
  Acquire(this);
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>(ABSL_SYMBOL("7CondVar4WaitEPNS0_5MutexE"));
  Release(mutex);
  Call(real, this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real = Real<bool(CondVar*, Mutex*, Duration)>(
      ABSL_SYMBOL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  Release(mutex);
  const bool timed_out = Call(real, this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const real =
      Real<bool(CondVar*, Mutex*, Time)>(ABSL_SYMBOL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  Release(mutex);
  const bool timed_out = Call(real, this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static auto* const real = Real<void(Notification*)>(ABSL_SYMBOL("12Notification6NotifyEv"));
  Release(this);
  Call(real, this);
}

void Notification::WaitForNotification() const {
  static auto* const real =
      Real<void(const Notification*)>(ABSL_CONST_SYMBOL("12Notification19WaitForNotificationEv"));
  Call(real, this);
  Acquire(this);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const real = Real<bool(const Notification*, Duration)>(
      ABSL_CONST_SYMBOL("12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"));
  const bool notified = Call(real, this, timeout);
  if (notified) Acquire(this);
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
