// The shape of a dispatch.
#pragma once

#include <cstdint>

namespace flashnext {

struct Grid {
  uint32_t x = 1, y = 1, z = 1;
};

}  // namespace flashnext
