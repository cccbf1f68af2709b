// slice_attention: patches of the vision tower attend to all patches of their slice.
//
// The slice's keys are cut into spans of kSliceSpan from its first one; a span gives a partial softmax, and
// the parts merge in ascending order:
//   m' = max(m, m_s), l' = l * e^(m - m') + l_s * e^(m_s - m'), likewise the weighted values.
//
// 0 tiles SliceTile[n], 1 qkv float[P, 3 * D'] (q | k | v), 2 out float[.., D'], 3 SliceAttentionParams.
// Grid (n, n_heads), kSliceThreads threads, 28 KB of threadgroup memory. A simdgroup has kShared patches of
// the tile, which share the loads of keys and values, and meets no other. A score: a lane a key, dimensions
// ascending in one chain of fma. Weights of a span: lane l adds those of keys l, l + 32, ..., then add_lanes.
// Values: a lane has dimensions l, l + 32, ..., keys ascending in one chain.
//
// head_dim a multiple of 4 up to kMaxSliceDim. A NaN reaches all patches of the slice that read it. Source:
// docs/media.md.
#include "metal/lib/math.h"
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT int kShared = kSlicePatches / (kSliceThreads / kSimdLanes);  // patches of a simdgroup
FLASHNEXT_CONSTANT int kLaneDims = kMaxSliceDim / kSimdLanes;

[[kernel, max_total_threads_per_threadgroup(kSliceThreads)]] void slice_attention(
    device const SliceTile* tiles [[buffer(0)]],
    device const float* qkv [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant SliceAttentionParams& p [[buffer(3)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float staged[kSlicePatches][kMaxSliceDim];
  threadgroup float weights[kSlicePatches][kSliceSpan];
  device const SliceTile& tile = tiles[tgid.x];
  const uint first = sg * kShared;  // of the tile's patches
  if (first >= uint(tile.n_rows)) return;
  const uint last = uint(tile.n_rows) - 1;  // patches that are not there repeat it
  const uint dim = p.head_dim;
  const ulong width = ulong(p.n_heads) * dim, stride = 3 * width;
  device const float* q = qkv + ulong(tile.first_row) * stride + tgid.y * dim;
  device const float* keys = qkv + ulong(tile.first_key) * stride + width + tgid.y * dim;
  device const float* values = keys + width;
  threadgroup float (*own)[kMaxSliceDim] = staged + first;
  threadgroup float (*weight)[kSliceSpan] = weights + first;
  for (uint i = 0; i < uint(kShared); i++) {
    const uint row = smaller(first + i, last);
    for (uint d = lane; d < dim; d += kSimdLanes) own[i][d] = q[row * stride + d];
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);

  float max[kShared], sum[kShared], total[kShared][kLaneDims];
  for (int i = 0; i < kShared; i++) {
    max[i] = -INFINITY;
    sum[i] = 0;
    for (int j = 0; j < kLaneDims; j++) total[i][j] = 0;
  }
  const uint n_keys = uint(tile.n_keys);
  for (uint from = 0; from < n_keys; from += kSliceSpan) {
    const uint n = smaller(n_keys - from, uint(kSliceSpan));
    for (uint key = lane; key < n; key += kSimdLanes) {
      device const float* k = keys + (from + key) * stride;
      float score[kShared];
      for (int i = 0; i < kShared; i++) score[i] = 0;
      for (uint d = 0; d < dim; d += 4) {
        const float4 here = load4(k + d);
        for (int i = 0; i < kShared; i++) {
          for (uint j = 0; j < 4; j++) score[i] = fma(own[i][d + j], here[j], score[i]);
        }
      }
      for (int i = 0; i < kShared; i++) weight[i][key] = score[i] * p.scale;
    }
    // A lane reads what it has written itself, up to here.
    float before[kShared], now[kShared];
    for (int i = 0; i < kShared; i++) {
      float most = -INFINITY;
      for (uint key = lane; key < n; key += kSimdLanes) most = weight[i][key] > most ? weight[i][key] : most;
      most = simd_max(most);
      // Where all keys score minus infinity they weigh nothing beside those of other spans.
      const float base = most == -INFINITY ? 0.0 : most;
      float part = 0;
      for (uint key = lane; key < n; key += kSimdLanes) {
        const float w = exponential(weight[i][key] - base);
        weight[i][key] = w;
        part += w;
      }
      part = add_lanes(part);
      const float top = max[i] > most ? max[i] : most, shared_base = top == -INFINITY ? 0.0 : top;
      before[i] = exponential(max[i] - shared_base);
      now[i] = exponential(most - shared_base);
      max[i] = top;
      sum[i] = fma(part, now[i], sum[i] * before[i]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int j = 0; j < kLaneDims; j++) {
      const uint d = lane + uint(j) * kSimdLanes;
      if (d >= dim) continue;
      float part[kShared];
      for (int i = 0; i < kShared; i++) part[i] = 0;
      for (uint key = 0; key < n; key++) {
        const float v = values[(from + key) * stride + d];
        for (int i = 0; i < kShared; i++) part[i] = fma(weight[i][key], v, part[i]);
      }
      for (int i = 0; i < kShared; i++) total[i][j] = fma(part[i], now[i], total[i][j] * before[i]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = 0; i < uint(kShared); i++) {
    if (first + i > last) continue;
    device float* to = out + (ulong(tile.first_row) + first + i - p.first_row) * width + tgid.y * dim;
    for (int j = 0; j < kLaneDims; j++) {
      const uint d = lane + uint(j) * kSimdLanes;
      if (d < dim) to[d] = total[i][j] / sum[i];
    }
  }
}
