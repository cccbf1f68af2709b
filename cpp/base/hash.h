// One step of splitmix64: a cheap function of 64 bits whose values look random. Static, since code of several
// instruction paths uses it.
#pragma once

#include <cstdint>

namespace flashnext {

static inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace flashnext
