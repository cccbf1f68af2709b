// index_pool, index_score, index_select: which blocks of positions a query reads.
//
//   pooled_c = rope(rms(round(mean of the block's raw keys)), position of the block's first row)
//   score_c = sum over index heads of max(0, <q_h, pooled_c>) / sqrt(index_dim)
//   the best `budget_blocks` complete blocks, ties to the lower id, listed by ascending id
//
// index_pool: 0 counts, 1 sequences, 2 rows, 3 gamma float[index_dim], 4 inv_freq float[half_dim], 5
// IndexPoolParams. Grid (R), kRowThreads threads. A row that completes a block of `ratio` positions writes
// the block's pooled key into the page. Raw keys are added by ascending position; squares: add_threads.
// index_score: 0 counts, 1 sequences, 2 rows, 3 index_q T[R, Hi * index_dim], 4 scores float[G, stride], 5
// IndexScoreParams. Grid (ceil(max_blocks / kScoreTile), G), kScoreThreads threads; a simdgroup has eight
// blocks, a lane dimensions 4 (l + 32 i) .. + 3; then add_lanes, heads ascending. Rows whose blocks all fit
// do nothing. index_select: 0 counts, 1 rows, 2 scores float[G, stride], 3 blocks int32[R, budget_blocks], 4
// n_selected int32[R], 5 IndexSelectParams. Grid (G), kSelectThreads threads. The key of the last block taken
// is found a byte at a time, by histograms.
//
// index_dim a multiple of 8 up to 512; ratio divides kPageTokens. A NaN makes its score NaN, which is
// selected before every number.
#include "metal/lib/math.h"
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT int kMaxIndexDim = 512;

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void index_pool(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const float* gamma [[buffer(3)]],
    device const float* inv_freq [[buffer(4)]],
    constant IndexPoolParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float key[kMaxIndexDim];
  threadgroup float parts[kRowThreads / kSimdLanes];
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  device const Row& row = rows[tgid.x];
  const int ratio = int(p.ratio);
  if ((row.position + 1) % ratio != 0) return;
  device const Sequence& seq = sequences[row.sequence];
  // A block never leaves its page: the ratio divides kPageTokens.
  const uint first = uint((row.position + 1 - ratio) % kPageTokens);
  device const T* raw = in_page<const T>(seq, row.position, p.raw_offset) + ulong(first) * p.index_dim;
  float square = 0;
  for (uint i = tid; i < p.index_dim; i += kRowThreads) {
    float sum = 0;
    for (int j = 0; j < ratio; j++) sum += float(raw[ulong(j) * p.index_dim + i]);
    const float mean = rounded<T>(sum / float(ratio));
    key[i] = mean;
    square = fma(mean, mean, square);
  }
  const float sum = add_threads(square, parts, lane, sg, kRowThreads / kSimdLanes);
  const float inverse = inverse_rms(sum, p.index_dim, p.eps);
  device const int* rotary = in_page<const int>(seq, row.position, p.rotary_offset) + first * 3;
  device T* out = in_page<T>(seq, row.position, p.pooled_offset) + ulong(first / p.ratio) * p.index_dim;
  for (uint i = tid; i < p.index_dim; i += kRowThreads) {
    const float here = key[i] * inverse * gamma[i];
    float y = here;
    if (i < 2 * p.half_dim) {
      const bool upper = i >= p.half_dim;
      const uint j = upper ? i - p.half_dim : i, other = upper ? j : i + p.half_dim;
      const Turn t = turn(float(rotary[rotary_axis(j, p.section)]) * inv_freq[j]);
      const float cos = t.cos * p.attention_factor, sin = t.sin * p.attention_factor;
      const float there = key[other] * inverse * gamma[other];
      y = upper ? here * cos + there * sin : here * cos - there * sin;
    }
    out[i] = T(y);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kScoreThreads)]] void index_score(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const T* index_q [[buffer(3)]],
    device float* scores [[buffer(4)]],
    constant IndexScoreParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int n_together = kScoreTile * kSimdLanes / kScoreThreads;
  const uint r = p.first_row + tgid.y;
  if (int(r) >= counts->n[kCountRows]) return;
  device const Row& row = rows[r];
  const uint n_blocks = uint(row.position + 1) / p.ratio;
  const uint first = tgid.x * kScoreTile + sg * n_together;
  if (n_blocks <= p.budget_blocks || first >= n_blocks) return;
  device const Sequence& seq = sequences[row.sequence];
  const uint in_page_blocks = kPageTokens / p.ratio;
  device const T* keys[n_together];
  for (int i = 0; i < n_together; i++) {
    const uint b = smaller(first + i, n_blocks - 1);
    keys[i] =
        in_page<const T>(seq, int(b * p.ratio), p.pooled_offset) + ulong(b % in_page_blocks) * p.index_dim;
  }
  float score = 0;
  for (uint h = 0; h < p.index_n_heads; h++) {
    device const T* q = index_q + (ulong(r) * p.index_n_heads + h) * p.index_dim;
    float sums[n_together];
    for (int i = 0; i < n_together; i++) sums[i] = 0;
    for (uint d = lane * 4; d < p.index_dim; d += 4 * kSimdLanes) {
      const float4 query = load4(q + d);
      for (int i = 0; i < n_together; i++) {
        const float4 key = load4(keys[i] + d);
        for (uint j = 0; j < 4; j++) sums[i] = fma(key[j], query[j], sums[i]);
      }
    }
    const float x = add_lanes_of<n_together>(sums, lane);
    score += x < 0 ? 0.0 : x;  // NaN stays
  }
  const uint b = first + lane * n_together / kSimdLanes;
  if (lane % (kSimdLanes / n_together) == 0 && b < n_blocks) {
    scores[ulong(tgid.y) * p.stride + b] = score * (1.0 / precise::sqrt(float(p.index_dim)));
  }
}

// Larger scores have larger keys. Scores are never below zero; NaN counts as the largest.
METAL_FUNC uint order_of(float score) {
  const uint u = as_type<uint>(score);
  return isnan(score) ? 0xffffffffu : u & 0x80000000u ? 0u : u;
}

[[kernel, max_total_threads_per_threadgroup(kSelectThreads)]] void index_select(
    device const Counts* counts [[buffer(0)]],
    device const Row* rows [[buffer(1)]],
    device const float* scores [[buffer(2)]],
    device int* blocks [[buffer(3)]],
    device int* n_selected [[buffer(4)]],
    constant IndexSelectParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint n_sg = kSelectThreads / kSimdLanes;
  threadgroup atomic_uint histogram[256];
  threadgroup uint parts[2][n_sg];
  threadgroup uint chosen[2];  // the digit, and how many are left to be taken of it
  const uint r = p.first_row + tgid.x;
  if (int(r) >= counts->n[kCountRows]) return;
  const uint n_blocks = uint(rows[r].position + 1) / p.ratio;
  device int* out = blocks + ulong(r) * p.budget_blocks;
  if (n_blocks <= p.budget_blocks) {
    for (uint b = tid; b < n_blocks; b += kSelectThreads) out[b] = int(b);
    if (tid == 0) n_selected[r] = int(n_blocks);
    return;
  }
  device const float* own = scores + ulong(tgid.x) * p.stride;
  uint key = 0, mask = 0, left = p.budget_blocks;
  for (int shift = 24; shift >= 0; shift -= 8) {
    atomic_store_explicit(&histogram[tid], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint b = tid; b < n_blocks; b += kSelectThreads) {
      const uint k = order_of(own[b]);
      if ((k & mask) == key)
        atomic_fetch_add_explicit(&histogram[k >> shift & 255], 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // From the largest digit down: the one in which the count passes what is left.
    const uint digit = 255 - tid, n = atomic_load_explicit(&histogram[digit], memory_order_relaxed);
    const uint larger = count_threads(n, parts[0], lane, sg, n_sg).before;
    if (larger < left && left <= larger + n) {
      chosen[0] = digit;
      chosen[1] = left - larger;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    key |= chosen[0] << shift;
    left = chosen[1];
    mask |= 255u << shift;
  }
  uint n_larger = 0, n_equal = 0, parity = 0;
  for (uint b0 = 0; b0 < n_blocks; b0 += kSelectThreads) {
    const uint b = b0 + tid, k = b < n_blocks ? order_of(own[b]) : 0;
    const bool larger = b < n_blocks && k > key, equal = b < n_blocks && k == key;
    const Count c = count_threads(uint(equal) | uint(larger) << 16, parts[parity], lane, sg, n_sg);
    const uint equal_before = n_equal + (c.before & 0xffff);
    if (larger || (equal && equal_before < left)) {
      out[n_larger + (c.before >> 16) + smaller(equal_before, left)] = int(b);
    }
    n_larger += c.all >> 16;
    n_equal += c.all & 0xffff;
    parity ^= 1;
  }
  if (tid == 0) n_selected[r] = int(p.budget_blocks);
}

template [[host_name("index_pool_bf16")]] [[kernel]] decltype(index_pool<bfloat>) index_pool<bfloat>;
template [[host_name("index_pool_f32")]] [[kernel]] decltype(index_pool<float>) index_pool<float>;
template [[host_name("index_score_bf16")]] [[kernel]] decltype(index_score<bfloat>) index_score<bfloat>;
template [[host_name("index_score_f32")]] [[kernel]] decltype(index_score<float>) index_score<float>;
