// The kernels of metal/ as a Metal device launches them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashnext::mtl {

// Threads of a threadgroup, and columns (or blocks, heads, ids) that a grid step of the tiled axis covers.
struct KernelEntry {
  std::string name;
  uint32_t threads, tile;
};

std::vector<KernelEntry> kernels();

}  // namespace flashnext::mtl
