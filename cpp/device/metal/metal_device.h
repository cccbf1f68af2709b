// The Metal device: the kernels of metal/ on the GPU of a Mac, macOS 15 and later.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace flashnext::mtl {

// A kernel of the device's table: threads of a threadgroup, columns (or blocks, heads, ids) that a grid step
// of the tiled axis covers, the slots before its argument struct, and `rows` as in Kernel.
struct KernelEntry {
  std::string name;
  uint32_t threads, tile, slots, rows = 0;
};

// What a device does while nothing is asked of it. Without work memory does not stay wired, and the first
// round after a pause would wait for it; so a small command buffer runs from time to time, for a while.
struct IdleTimes {
  std::chrono::nanoseconds beat = std::chrono::milliseconds(500);  // from one such to the next
  std::chrono::nanoseconds most = std::chrono::minutes(3);         // of idleness, after which there are none
  std::chrono::nanoseconds awake = std::chrono::seconds(10);       // of idleness, after which a Mac may sleep
};

struct Options {
  std::string kernels_folder;  // flashnext.metallib, or texts for newLibraryWithSource: in *.metal
  std::string cache_folder;    // where compiled pipelines are kept; "" for nowhere
  IdleTimes idle;
};

// What the system says of this process's memory; device.h has no word for it, since no other device is told.
enum class MemoryPressure { kNormal, kWarning, kCritical };
struct MemoryState {
  size_t footprint_bytes = 0;  // what is held against the process, the GPU's memory included; 0: unknown
  MemoryPressure pressure = MemoryPressure::kNormal;
};
// Of a device that open_device opened; of another one nothing is known.
MemoryState memory_of(const Device& device);

// Why this machine has no GPU that the device can use; empty where it has.
std::string unavailable();

// Compiles every kernel of the table, or finds it in the cache. Throws InvalidArgument where unavailable()
// says why, and DeviceError with Metal's words for a kernel that does not compile.
DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options);

}  // namespace flashnext::mtl
