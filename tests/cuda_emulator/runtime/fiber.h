// Fibers: a stack and a place to go on from. Switching costs a few nanoseconds on x86-64.
#pragma once
#include <cstddef>
#include <cstdint>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emu {

#ifdef __x86_64__

struct Context {
  void* stack_pointer;
};

extern "C" void emu_switch_stacks(void** save, void* to);

// The first switch to `context` calls `entry`, which must never return.
inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  auto** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15});
  *--top = nullptr;  // where `entry` would return to
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers that a callee preserves
  context.stack_pointer = top;
}

inline void switch_to(Context& save, const Context& to) {
  emu_switch_stacks(&save.stack_pointer, to.stack_pointer);
}

#else

struct Context {
  ucontext_t state;
};

inline void prepare(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

inline void switch_to(Context& save, const Context& to) { swapcontext(&save.state, &to.state); }

#endif

}  // namespace emu
