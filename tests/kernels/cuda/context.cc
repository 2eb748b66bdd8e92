#include "tests/kernels/cuda/context.h"

#include <cstdint>
#include <cstring>

namespace aludel::cuda::simt {

#if defined(__x86_64__)

// System V: rbx, rbp and r12 to r15 are the callee's to keep.
extern "C" void aludel_simt_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl aludel_simt_switch
.type aludel_simt_switch, @function
aludel_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size aludel_simt_switch, . - aludel_simt_switch
)");

void MakeContext(Context* context, char* stack, size_t bytes, void (*main)()) {
  constexpr int kKept = 6;  // registers
  // `main` begins as behind a call: 8 bytes off a multiple of 16.
  uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16;
  auto* const words = reinterpret_cast<uint64_t*>(top) - (kKept + 2);
  std::memset(words, 0, (kKept + 2) * sizeof(uint64_t));
  words[kKept] = reinterpret_cast<uint64_t>(main);
  context->stack_pointer = words;
}

void SwitchContext(Context* from, Context* to) {
  aludel_simt_switch(&from->stack_pointer, to->stack_pointer);
}

#else

void MakeContext(Context* context, char* stack, size_t bytes, void (*main)()) {
  getcontext(&context->context);
  context->context.uc_stack.ss_sp = stack;
  context->context.uc_stack.ss_size = bytes;
  context->context.uc_link = nullptr;
  makecontext(&context->context, main, 0);
}

void SwitchContext(Context* from, Context* to) { swapcontext(&from->context, &to->context); }

#endif

}  // namespace aludel::cuda::simt
