// What a CPU kernel sees. Included by code compiled for one instruction path, so it pulls in nothing from the
// library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/grid.h"

namespace flashnext::cpu {

constexpr size_t kScratchBytes = 4 << 20;
constexpr size_t kKeptBytes = 1 << 20;

// One grid step. `scratch` is memory of the worker that runs it, kScratchBytes large, 64-byte aligned, not
// cleared. `kept` is the same, kKeptBytes large, at first zero, and left alone by all but who asks for it:
// what is derived from inputs may stay there for the worker's other tasks of the same `segment`, in which
// inputs do not change. Segments are numbered from 1.
struct Task {
  void* const* slots;
  const void* params;
  Grid grid;
  uint32_t x, y, z;
  std::byte *scratch, *kept;
  uint64_t segment;
  uint32_t n_workers;

  // The grid step in x that this worker probably runs next, itself where there is none in this row of the
  // grid.
  uint32_t next_x() const { return x + n_workers < grid.x ? x + n_workers : x; }

  template <class T>
  T* slot(int i) const {
    return static_cast<T*>(slots[i]);
  }
  template <class Params>
  const Params& get() const {
    return *static_cast<const Params*>(params);
  }
};

// An entry of the kernel table a device is handed; `tile` as in Kernel::tile().
struct KernelEntry {
  const char* name;
  void (*run)(const Task&);
  uint32_t tile;
};

}  // namespace flashnext::cpu
