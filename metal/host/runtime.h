// Runs kernels that generate.py turned into C++: memory with guards, and dispatches thread by thread.
//
// A segment is dispatches that may overlap, as between two barriers of a command buffer. Its threadgroups run
// one after another (unchecked ones also side by side), each thread a fiber that runs until a barrier or an
// operation of its simdgroup. The schedule sets the order of threadgroups, simdgroups and lanes: what a
// kernel computes must not hang on it. Errors name the kernel, and the file and line where it went wrong:
//
//   * an access outside of a buffer, one whose address is not a multiple of its size, or one of freed memory
//   * two threads at one place without a barrier between, one of them writing: in threadgroup memory, and in
//     buffers also across the threadgroups and dispatches of a segment
//   * a barrier or simdgroup operation that not all of its threads reach
//   * over 32 KB of threadgroup memory, or a write beside an array of it
//
// Accesses are seen where the compiler reports them: kernels are compiled with -fsanitize=thread, whose calls
// end in memory.cpp. Of unchecked kernels, what touches no guard page goes unseen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace msl {

struct Kernel;  // include/msl_cpu.h

constexpr int kMaxBuffers = 31;                       // as on Apple
constexpr int kMaxThreads = 1024;                     // of a threadgroup
constexpr size_t kThreadgroupMemoryBytes = 32 << 10;  // as on Apple

// Null where there is none.
const Kernel* find_kernel(std::string_view name, bool checked = true);
std::vector<const Kernel*> all_kernels();  // that are checked
const char* name_of(const Kernel& kernel);
int max_threads_of(const Kernel& kernel);
int bytes_slot_of(const Kernel& kernel);  // the slot of its argument struct, -1 without one

enum class Schedule { kForward, kReverse, kRandom };

struct Bytes {  // what setBytes: would bind, or a buffer where size is 0; null is an empty slot
  const void* at = nullptr;
  size_t size = 0;
};

struct Dispatch {
  const Kernel* kernel;
  uint32_t grid[3];     // threadgroups
  uint32_t threads[3];  // of a threadgroup
  std::span<const Bytes> buffers;
  std::span<const uint32_t> threadgroup_bytes = {};  // by index of [[threadgroup(i)]]
};

struct Failure {
  std::string what;  // empty: none
  size_t dispatch;   // of the segment
};
// Runs a segment, unless another thread's runs: then after that. Unchecked kernels on so many threads.
Failure run(std::span<const Dispatch> segment, Schedule schedule, uint64_t seed, int n_threads = 1);

// Memory that ends (or, `at_start`, begins) at a page that nothing may touch, filled with `fill`. Null where
// the system gives none.
void* allocate(size_t size_bytes, int fill, bool at_start = false);
// Writes beside the memory since it was allocated are told: the error, or empty.
std::string release(void* memory);
// Memory that others own, a mapped file: reads are checked against its bounds, writes are errors. What is
// `writable` begins and ends with its pages, of which what is behind the size is filled and watched.
void adopt(const void* memory, size_t size_bytes, bool writable = false);
void disown(const void* memory);
// Adopted memory that kernels may not touch for now, and why, as static text; null: they may again.
void hide(const void* memory, const char* why);

}  // namespace msl
