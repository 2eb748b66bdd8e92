// For the tsan preset only, like tsan_absl.cc. Debian's gRPC is built without ThreadSanitizer, which
// therefore does not see that what was done before a batch of operations was started comes before what is
// done when it has ended: gRPC hands both from thread to thread by atomics. These definitions stand in front
// of the library's and tell.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

extern "C" {  // of the sanitizer's library, which has no header for them
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
void AnnotateIgnoreSyncBegin(const char* file, int line);
void AnnotateIgnoreSyncEnd(const char* file, int line);
}

namespace {

using Functor = grpc_completion_queue_functor;
using Run = void (*)(Functor*, int);

template <typename Function>
Function* Real(const char* symbol) {
  void* const function = dlsym(RTLD_NEXT, symbol);
  if (function == nullptr) {
    std::fprintf(stderr, "tsan_grpc: no %s in the gRPC that is installed\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

// What the functions of this file do among themselves orders nothing.
class ScopedUnseen {
 public:
  ScopedUnseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~ScopedUnseen() {
    busy_.clear(std::memory_order_release);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  ScopedUnseen(const ScopedUnseen&) = delete;
  ScopedUnseen& operator=(const ScopedUnseen&) = delete;

 private:
  static inline std::atomic_flag busy_;
};

std::unordered_map<Functor*, Run>& Runs() {
  static auto* const runs = new std::unordered_map<Functor*, Run>;
  return *runs;
}

int HoldsCode(dl_phdr_info* object, size_t, void* address) {
  const auto wanted = *static_cast<const uintptr_t*>(address);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0 && wanted >= begin &&
        wanted < begin + part.p_memsz) {
      return 1;
    }
  }
  return 0;
}

// A tag is an object of a completion queue's own kind, which begins with its vtable, or a functor.
bool IsFunctor(void* tag) { return tag != nullptr && dl_iterate_phdr(HoldsCode, tag) == 1; }

void RunInOrder(Functor* functor, int ok) {
  __tsan_acquire(functor);
  Run run = nullptr;
  {
    const ScopedUnseen unseen;
    run = Runs().at(functor);
  }
  run(functor, ok);
}

// Before the library may run it. A functor that was made where an old one died has its own function again.
void Tell(void* tag) {
  {
    const ScopedUnseen unseen;
    if (IsFunctor(tag)) {
      auto* const functor = static_cast<Functor*>(tag);
      if (functor->functor_run != RunInOrder) {
        Runs()[functor] = functor->functor_run;
        functor->functor_run = RunInOrder;
      }
    }
  }
  __tsan_release(tag);
}

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  static auto* const real = Real<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  if (tag != nullptr) Tell(tag);
  return real(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const real = Real<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline,
                                       void* reserved) {
  static auto* const real = Real<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

}  // extern "C"
