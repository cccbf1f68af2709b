// The metal-host device: Metal kernels that the shim of metal/host compiled as C++, thread by thread. For
// tests: what runs here with every access checked, slowly and on one thread, has no races, no stray accesses
// and no missing barriers, in kernels and between them. Unchecked it gives the same bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace flashnext::metal_host {

// A kernel of the device's table: threads of a threadgroup, and `tile` and `rows` as in Kernel.
struct KernelEntry {
  std::string name;
  uint32_t threads, tile, rows = 0;
};

struct Options {
  std::string schedule =
      "forward";      // the order of threadgroups, simdgroups and lanes; or "reverse", "random"
  uint64_t seed = 1;  // of the random one; each segment has its own order
  bool checked = true;
  int threads = 0;  // of the host, for unchecked kernels; 0 for one a core
};

// Throws InvalidArgument for an unknown schedule, or a kernel that this build lacks.
DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options);

}  // namespace flashnext::metal_host
