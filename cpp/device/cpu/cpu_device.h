// The CPU device: kernels are functions, a grid step is a task, a worker pool runs the tasks between two barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace flashnext::cpu {

// What one grid step sees. `scratch` is memory of the worker that runs it, kScratchBytes large, 64-byte aligned, not
// cleared.
struct Task {
  void* const* slots;
  const void* params;
  Grid grid;
  uint32_t x, y, z;
  std::byte* scratch;

  template <class T>
  T* slot(int i) const {
    return static_cast<T*>(slots[i]);
  }
  template <class T>
  const T& get() const {
    return *static_cast<const T*>(params);
  }
};

constexpr size_t kScratchBytes = 4 << 20;

// An entry of the kernel table a device is handed.
struct KernelEntry {
  std::string name;
  void (*run)(const Task&);
  uint32_t tile;
};

struct Options {
  int workers = 0;            // 0: one for each processor the process may use
  uint64_t shuffle_seed = 0;  // tests: run the tasks between two barriers in a seeded random order; 0: in order
};

// `path` names the instruction path of the table, for name().
DeviceRef open_device(std::string path, std::vector<KernelEntry> kernels, const Options& options);

}  // namespace flashnext::cpu
