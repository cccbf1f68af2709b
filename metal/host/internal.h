// What the files of the runtime share.
#pragma once

#include <csetjmp>
#include <map>
#include <string>
#include <vector>

#include "metal/host/include/msl_cpu.h"
#include "metal/host/runtime.h"

namespace msl {

enum class State { kReady, kAtSimd, kAtBarrier, kEnded };

struct Fiber {
  Thread thread;
  void* stack;  // saved stack pointer
  State state;
  Operation operation;
  const Site* site;
  Site site_memory;
  int parity;
};

struct Simdgroup {
  alignas(16) unsigned char slots[2][32][16];
  int n_lanes;
  uint32_t epoch;  // operations that ordered its lanes since the last barrier
};

// Which thread touched two bytes last, and when.
struct Mark {
  uint32_t run;      // of a threadgroup, of all that ever ran; 0: none
  uint32_t barrier;  // barriers the thread had passed
  uint32_t simd;     // operations of its simdgroup since
  uint16_t thread;
  uint16_t line;  // of the site it passed last, for the error's text
};

struct Array {
  const void* declaration;
  size_t begin, end;
  Site site;
};

// A wild access: of a guard page, of freed memory, of no memory.
struct Fault {
  const void* instruction;
  const void* address;
};

// A threadgroup that runs, and what its thread of the host has for that.
struct Group {
  const Dispatch* dispatch;
  uint32_t run, first_run, barrier;  // number of this run, and of the segment's first
  Fiber fibers[kMaxThreads];
  Simdgroup simdgroups[kMaxThreads / 32];
  int n_threads;
  Fiber* current;
  void* scheduler;  // its saved stack pointer
  char* stacks;
  char* memory;  // kThreadgroupMemoryBytes and room for guards
  size_t used, allotted;
  std::vector<Array> arrays;
  char* threadgroup_memory[8];
  std::vector<const void*> buffers;
  std::string error;
  sigjmp_buf escape;
  Fault fault;
  bool running;
};

constexpr size_t kArrayGuard = 64;
constexpr size_t kArenaBytes = 2 * kThreadgroupMemoryBytes;
constexpr size_t kStackBytes = 128 << 10;

// That of this thread of the host; null where it runs none. Asked for at every operation, so not by a call.
#if defined(__linux__)
extern thread_local Group* the_group __attribute__((tls_model("initial-exec")));
#else
extern thread_local Group* the_group;
#endif
inline Group& group() { return *the_group; }
// Ends the fiber that runs, and its segment, with an error.
[[noreturn]] void stop(const std::string& what);
// "kernel: file:line: threadgroup (x, y, z), thread t: "
std::string where(const Fiber& fiber, const Site& site);
// File and line of an instruction, by the debug information; the kernel's own where there is none.
Site site_of(const void* instruction, std::string& memory);

// memory.cpp
void see_buffers();                                   // those that are there when a segment begins
std::string buffer_at(const void* address);           // how an error calls a place in memory
std::string written_guard(const Dispatch& dispatch);  // beside a buffer that it was handed

// fiber.cpp
void start_fiber(Fiber& fiber, char* stack_top);
void resume(Fiber& fiber);
void suspend();

}  // namespace msl
