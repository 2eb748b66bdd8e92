#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace aludel::cuda::simt {

// Where a thread of execution with a stack of its own goes on. ucontext's switches ask the kernel for the signal mask, twice
// each, which is most of what a simulated barrier would cost: on x86-64 the registers that a call keeps are all that moves.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
};

// `main` begins on the stack with the first switch to it, and never returns.
void MakeContext(Context* context, char* stack, size_t bytes, void (*main)());
// Keeps where the caller is in `from` and goes on at `to`.
void SwitchContext(Context* from, Context* to);

}  // namespace aludel::cuda::simt
