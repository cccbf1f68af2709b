// The simulated Metal: what its files share, and what tests ask of it.
//
// Classes with Apple's names and methods run command buffers of the production code on the shim (metal/host),
// on a thread of the queue's own, and look at what real Metal would refuse, or would not and fail at. A
// misuse is noted, and thrown where it is on the caller's thread. Memory has two addresses, the host's and
// the GPU's, as on a Mac: one used for the other is an error of checked kernels.
#pragma once

#include <objc/objc.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace sim {

struct Misuse : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void note(const std::string& what);                 // from any thread
[[noreturn]] void misuse(const std::string& what);  // notes and throws
std::vector<std::string> take_misuses();

std::map<std::string, int> live_objects();  // by class, of those with any
bool is_live(id object);
int count(const std::string& what);  // how often something happened: "library", "pipeline", "found pipeline",
                                     // "command buffer", "activity" (of those that are on)
void add(const std::string& what, int by = 1);

// What the machine is like; changed by tests before they open it.
struct Settings {
  std::string order = "forward";  // of threads, as metal-host has it; ", unchecked" behind it
  uint64_t seed = 1;
  std::string gpu = "Simulated", system = "Version 15.0 (Build 24A335)";
  uint64_t working_set_bytes = uint64_t{16} << 30, max_buffer_bytes = uint64_t{8} << 30;
  bool is_apple_silicon = true, has_gpu = true;
  uint64_t wait_ms = 120'000;  // before a command buffer that waits for an event is given up
};
Settings settings();
void set(const Settings& settings);
bool is_checked(const std::string& order);

// The n-th command buffer with work from now on (1: the next) fails with this code of MTLCommandBufferError
// instead of running; none of its events is signalled.
void fail_command_buffer(int n, int code, const std::string& words);
bool planted_failure(int* code, std::string* words);  // counts one

void press(unsigned long level);  // tells of memory pressure, as DISPATCH_MEMORYPRESSURE_...

// Memory of a buffer.
struct Memory {
  char *host, *gpu;
  size_t size_bytes, mapped_bytes;
  bool no_copy, is_hidden;
};
Memory* allocate(size_t size_bytes);            // null where the system gives none
Memory* alias(void* pages, size_t size_bytes);  // the same pages at a second address
void release(Memory* memory);
void hide(Memory* memory, bool hidden);  // from the GPU

}  // namespace sim
