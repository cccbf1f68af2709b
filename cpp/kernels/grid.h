// How many threadgroups a launch has along an axis.
#pragma once

#include <cstdint>

#include "device/device.h"

namespace flashnext {

inline uint32_t tiles(uint32_t n, const Kernel& k) { return (n + k.tile() - 1) / k.tile(); }

// Steps of the axis of rows; 1 where a kernel has none.
inline uint32_t row_blocks(uint32_t n, const Kernel& k) {
  return k.rows() ? (n + k.rows() - 1) / k.rows() : 1;
}

}  // namespace flashnext
