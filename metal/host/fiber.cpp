// Switching between the scheduler and fibers: by hand on x86-64, by ucontext elsewhere.
#include "metal/host/internal.h"

#if !defined(__x86_64__)
#define MSL_UCONTEXT
#include <ucontext.h>
#endif

namespace msl {
namespace {

void run_kernel() {
  Group& g = group();
  g.dispatch->kernel->run(g.current->thread);
  g.current->state = State::kEnded;
  suspend();
  __builtin_trap();
}

}  // namespace

#ifndef MSL_UCONTEXT

extern "C" void msl_switch(void** save, void* to);
asm(R"(
.text
.type msl_switch,@function
msl_switch:
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
)");

void start_fiber(Fiber& fiber, char* stack_top) {
  void** s = reinterpret_cast<void**>(stack_top) - 1;  // a function begins 8 bytes off a multiple of 16
  *--s = reinterpret_cast<void*>(run_kernel);
  for (int i = 0; i < 6; i++) *--s = nullptr;
  fiber.stack = s;
}
void resume(Fiber& fiber) {
  group().current = &fiber;
  msl_switch(&group().scheduler, fiber.stack);
}
void suspend() { msl_switch(&group().current->stack, group().scheduler); }

#else

void start_fiber(Fiber& fiber, char* stack_top) {
  auto* context = reinterpret_cast<ucontext_t*>(stack_top - (sizeof(ucontext_t) + 63) / 64 * 64);
  getcontext(context);
  char* bottom = stack_top - kStackBytes + 32768;
  context->uc_stack.ss_sp = bottom;
  context->uc_stack.ss_size = static_cast<size_t>(reinterpret_cast<char*>(context) - bottom);
  context->uc_link = nullptr;
  makecontext(context, run_kernel, 0);
  fiber.stack = context;
}
void resume(Fiber& fiber) {
  ucontext_t here;
  group().scheduler = &here;
  group().current = &fiber;
  swapcontext(&here, static_cast<ucontext_t*>(fiber.stack));
}
void suspend() {
  Group& g = group();
  swapcontext(static_cast<ucontext_t*>(g.current->stack), static_cast<ucontext_t*>(g.scheduler));
}

#endif

}  // namespace msl
