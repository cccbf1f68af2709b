// Sums in named orders, the same for any number of rows and on every GPU.
//
// Over the lanes of a simdgroup: lanes 16 apart first, then 8, 4, 2, 1. Written as shuffles, since the order
// of simd_sum is Apple's own.
#pragma once

#include "metal/lib/memory.h"

// The sum over all lanes, in every lane.
METAL_FUNC float add_lanes(float v) {
  for (ushort w = 16; w > 0; w /= 2) v += simd_shuffle_xor(v, w);
  return v;
}

// N sums over all lanes at once, N a power of two up to 32: the lane gets that of value lane * N / 32. N
// values take N - 1 shuffles and log2(32 / N) more, not 5 N; the order is that of add_lanes.
template <int N>
METAL_FUNC float add_lanes_of(thread float* v, uint lane) {
  ushort w = 16;
  for (int n = N / 2; n > 0; n /= 2) {
    const bool upper = (lane & w) != 0;
    for (int i = 0; i < n; i++) {
      const float kept = upper ? v[i + n] : v[i], given = upper ? v[i] : v[i + n];
      v[i] = kept + simd_shuffle_xor(given, w);
    }
    w /= 2;
  }
  float sum = v[0];
  for (; w > 0; w /= 2) sum += simd_shuffle_xor(sum, w);
  return sum;
}

// The sum over a threadgroup: lanes, then simdgroups ascending. `parts` has room for one of each; all threads
// arrive, and another sum may follow at once with other parts.
METAL_FUNC float add_threads(float v, threadgroup float* parts, uint lane, uint sg, uint n_simdgroups) {
  const float sum = add_lanes(v);
  if (lane == 0) parts[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (uint i = 0; i < n_simdgroups; i++) total += parts[i];
  return total;
}

// The lane's share of a sum of squares over n values: values lane, lane + step, ..., in one chain of fma.
template <typename T>
METAL_FUNC float squares(device const T* x, uint n, uint first, uint step) {
  float sum = 0;
  for (uint i = first; i < n; i += step) {
    const float v = float(x[i]);
    sum = fma(v, v, sum);
  }
  return sum;
}

// How many lanes or threads before this one have it, and how many in all. All threads of the threadgroup
// arrive; `parts` has room for one of each simdgroup, and a barrier must pass before it is used again.
struct Count {
  uint before, all;
};
METAL_FUNC Count count_threads(uint mine, threadgroup uint* parts, uint lane, uint sg, uint n_simdgroups) {
  const uint before = simd_prefix_exclusive_sum(mine);
  if (lane == uint(kSimdLanes) - 1) parts[sg] = before + mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Count c = {before, 0};
  for (uint i = 0; i < n_simdgroups; i++) {
    const uint part = parts[i];
    c.before += i < sg ? part : 0;
    c.all += part;
  }
  return c;
}
