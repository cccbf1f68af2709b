// rope, attention_prep, attention: QSA without its indexer.
//
// A query reads the blocks it selected and the unfinished tail, by ascending position. Positions are cut into
// absolute spans of kAttentionSpan; a span gives a partial softmax, and the parts merge in ascending order:
//   m' = max(m, m_s), l' = l * e^(m - m') + l_s * e^(m_s - m'), likewise the weighted values.
//
// rope: 0 counts, 1 sequences, 2 rows, 3 inv_freq float[half_dim], 4 cos, 5 sin float[R, half_dim], 6
// RopeParams. Grid (R), kRowThreads threads. Also writes the row's rotary positions into its page.
// attention_prep: 0 counts, 1 sequences, 2 rows, 3 qg T[R, H * 2 * head_dim], 4 k, 5 v T[R, Hkv * head_dim],
// 6 index_qk T[R, (Hi + 1) * index_dim], 7 gamma_q, 8 gamma_k, 9 gamma_index_q, 10 cos, 11 sin float[R,
// half_dim], 12 q T[R, H * head_dim], 13 index_q T[R, Hi * index_dim], 14 AttentionPrepParams. Grid (R),
// kRowThreads threads, a simdgroup a head; a lane squares values lane, lane + 32, ... attention: 0 counts, 1
// sequences, 2 rows, 3 q T[R, H * head_dim], 4 qg, 5 blocks int32[R, budget_blocks], 6 n_selected int32[R], 7
// out T[R, H * head_dim], 8 AttentionParams. Grid (R, Hkv * ceil(H / Hkv / kAttentionHeads)),
// kAttentionThreads threads, 19 KB of threadgroup memory. A score: lane l takes dimensions 4 (l + 32 i) .. +
// 3 in one chain of fma, then add_lanes. Weights of a span: lane l adds those of positions l, l + 32,
// ..., then add_lanes. Values: a thread a dimension, positions ascending in one chain.
//
// Dimensions multiples of 8 up to 512. A NaN reaches the heads that read it.
#include "metal/lib/math.h"
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT int kMaxHeadDim = 512;

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void rope(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const float* inv_freq [[buffer(3)]],
    device float* cos [[buffer(4)]],
    device float* sin [[buffer(5)]],
    constant RopeParams& p [[buffer(6)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  device const Row& row = rows[tgid.x];
  for (uint j = tid; j < p.half_dim; j += kRowThreads) {
    const Turn t = turn(float(row.rotary[rotary_axis(j, p.section)]) * inv_freq[j]);
    cos[ulong(tgid.x) * p.half_dim + j] = t.cos * p.attention_factor;
    sin[ulong(tgid.x) * p.half_dim + j] = t.sin * p.attention_factor;
  }
  if (tid < 3) {
    device int* page = in_page<int>(sequences[row.sequence], row.position, p.rotary_offset);
    page[row.position % kPageTokens * 3 + int(tid)] = row.rotary[tid];
  }
}

// Norms a head of n values and turns its first 2 * half, j with j + half: a simdgroup.
template <typename T>
METAL_FUNC void prepare(device const T* x,
                        device const float* gamma,
                        uint n,
                        float eps,
                        device const float* cos,
                        device const float* sin,
                        uint half_dim,
                        device T* out,
                        uint lane) {
  const float inverse = inverse_rms(add_lanes(squares(x, n, lane, kSimdLanes)), n, eps);
  for (uint i = lane; i < n; i += kSimdLanes) {
    const float here = float(x[i]) * inverse * gamma[i];
    float y = here;
    if (i < half_dim) {
      const float there = float(x[i + half_dim]) * inverse * gamma[i + half_dim];
      y = here * cos[i] - there * sin[i];
    } else if (i < 2 * half_dim) {
      const uint j = i - half_dim;
      const float there = float(x[j]) * inverse * gamma[j];
      y = here * cos[j] + there * sin[j];
    }
    out[i] = T(y);
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void attention_prep(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const T* qg [[buffer(3)]],
    device const T* k [[buffer(4)]],
    device const T* v [[buffer(5)]],
    device const T* index_qk [[buffer(6)]],
    device const float* gamma_q [[buffer(7)]],
    device const float* gamma_k [[buffer(8)]],
    device const float* gamma_index_q [[buffer(9)]],
    device const float* cos [[buffer(10)]],
    device const float* sin [[buffer(11)]],
    device T* q [[buffer(12)]],
    device T* index_q [[buffer(13)]],
    constant AttentionPrepParams& p [[buffer(14)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const ulong r = tgid.x, dim = p.head_dim;
  device const Row& row = rows[r];
  device const Sequence& seq = sequences[row.sequence];
  const ulong in_row = ulong(row.position % kPageTokens);
  device const float* c = cos + r * p.half_dim;
  device const float* s = sin + r * p.half_dim;
  device T* page_k = in_page<T>(seq, row.position, p.k_offset);
  device T* page_v = in_page<T>(seq, row.position, p.v_offset);
  device T* page_raw = in_page<T>(seq, row.position, p.raw_offset);
  device const T* index = index_qk + r * (p.index_n_heads + 1) * p.index_dim;
  const uint n_heads = p.n_heads + p.n_kv_heads + p.index_n_heads;
  for (uint head = sg; head < n_heads; head += kRowThreads / kSimdLanes) {
    if (head < p.n_heads) {
      const ulong h = r * p.n_heads + head;
      prepare(qg + h * 2 * dim, gamma_q, p.head_dim, p.eps, c, s, p.half_dim, q + h * dim, lane);
    } else if (head < p.n_heads + p.n_kv_heads) {
      const ulong h = head - p.n_heads;
      prepare(k + (r * p.n_kv_heads + h) * dim, gamma_k, p.head_dim, p.eps, c, s, p.half_dim,
              page_k + (h * kPageTokens + in_row) * dim, lane);
    } else {
      const ulong h = head - p.n_heads - p.n_kv_heads;
      prepare(index + h * p.index_dim, gamma_index_q, p.index_dim, p.eps, c, s, p.half_dim,
              index_q + (r * p.index_n_heads + h) * p.index_dim, lane);
    }
  }
  for (uint i = tid; i < p.n_kv_heads * p.head_dim; i += kRowThreads) {
    const ulong h = i / p.head_dim, d = i % p.head_dim;
    page_v[(h * kPageTokens + in_row) * dim + d] = v[r * p.n_kv_heads * dim + i];
  }
  for (uint i = tid; i < p.index_dim; i += kRowThreads) {
    page_raw[in_row * p.index_dim + i] = index[p.index_n_heads * p.index_dim + i];
  }
}

FLASHNEXT_CONSTANT int kScoredTogether = 8;  // positions of a simdgroup

// What the threads of a row's heads share.
struct AttentionMemory {
  threadgroup float (*q)[kMaxHeadDim];
  threadgroup float (*scores)[kAttentionSpan];
  threadgroup int* positions;
  threadgroup float* max;
  threadgroup float* sum;
};

template <typename T>
METAL_FUNC device const T* cached(
    device const Sequence& seq, int position, ulong offset, uint kv_head, uint dim) {
  return in_page<const T>(seq, position, offset) +
         (ulong(kv_head) * kPageTokens + position % kPageTokens) * dim;
}

// Scores of the n positions of a span: a simdgroup takes kScoredTogether at a time, four heads each.
template <typename T>
METAL_FUNC void score(constant AttentionParams& p,
                      device const Sequence& seq,
                      uint kv_head,
                      int n,
                      AttentionMemory s,
                      uint lane,
                      uint sg) {
  constexpr int all = kAttentionThreads / kSimdLanes * kScoredTogether;
  for (int first = int(sg) * kScoredTogether; first < n; first += all) {
    float sums[kScoredTogether * kAttentionHeads];
    for (int i = 0; i < kScoredTogether; i++) {
      device const T* k =
          cached<T>(seq, s.positions[smaller(first + i, n - 1)], p.k_offset, kv_head, p.head_dim);
      for (int h = 0; h < kAttentionHeads; h++) sums[i * kAttentionHeads + h] = 0;
      for (uint d = lane * 4; d < p.head_dim; d += 4 * kSimdLanes) {
        const float4 key = load4(k + d);
        for (int h = 0; h < kAttentionHeads; h++) {
          for (uint j = 0; j < 4; j++) {
            sums[i * kAttentionHeads + h] = fma(s.q[h][d + j], key[j], sums[i * kAttentionHeads + h]);
          }
        }
      }
    }
    const float sum = add_lanes_of<kScoredTogether * kAttentionHeads>(sums, lane) * p.scale;
    const int i = first + int(lane) / kAttentionHeads;
    if (i < n) s.scores[lane % kAttentionHeads][i] = sum;
  }
}

// Scores of a head to weights e^(score - max), with their sum: a simdgroup.
METAL_FUNC void weigh(
    threadgroup float* scores, int n, threadgroup float* max_out, threadgroup float* sum_out, uint lane) {
  float most = -INFINITY;
  for (int i = int(lane); i < n; i += kSimdLanes) {
    const float x = scores[i];
    most = x > most ? x : most;
  }
  most = simd_max(most);
  float sum = 0;
  for (int i = int(lane); i < n; i += kSimdLanes) {
    const float w = exponential(scores[i] - most);
    scores[i] = w;
    sum += w;
  }
  sum = add_lanes(sum);
  if (lane == 0) {
    *max_out = most;
    *sum_out = sum;
  }
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const Row* rows [[buffer(2)]],
    device const T* q [[buffer(3)]],
    device const T* qg [[buffer(4)]],
    device const int* blocks [[buffer(5)]],
    device const int* n_selected [[buffer(6)]],
    device T* out [[buffer(7)]],
    constant AttentionParams& p [[buffer(8)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr int n_sg = kAttentionThreads / kSimdLanes, n_dims = kMaxHeadDim / kAttentionThreads;
  threadgroup float staged[kAttentionHeads][kMaxHeadDim];
  threadgroup float scores[kAttentionHeads][kAttentionSpan];
  threadgroup int positions[kAttentionSpan];
  threadgroup float span_max[kAttentionHeads];
  threadgroup float span_sum[kAttentionHeads];
  threadgroup uint parts[n_sg];
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const AttentionMemory s = {staged, scores, positions, span_max, span_sum};
  const ulong r = tgid.x;
  const uint dim = p.head_dim, group = p.n_heads / p.n_kv_heads;
  const uint tiles = (group + kAttentionHeads - 1) / kAttentionHeads;
  const uint kv_head = tgid.y / tiles, first = kv_head * group + tgid.y % tiles * kAttentionHeads;
  const uint heads = smaller((kv_head + 1) * group - first, uint(kAttentionHeads));
  device const Row& row = rows[r];
  device const Sequence& seq = sequences[row.sequence];
  for (uint i = tid; i < kAttentionHeads * dim; i += kAttentionThreads) {
    const uint h = smaller(i / dim, heads - 1);  // heads that are not there repeat the last one
    staged[i / dim][i % dim] = float(q[(r * p.n_heads + first + h) * dim + i % dim]);
  }

  // The row's positions by ascending index: those of its blocks, then the tail.
  device const int* selected = blocks + r * p.budget_blocks;
  const int ratio = int(p.ratio), in_blocks = n_selected[r] * ratio;
  const int tail = (row.position + 1) / ratio * ratio, n_all = in_blocks + row.position + 1 - tail;

  float max[kAttentionHeads], sum[kAttentionHeads], values[n_dims][kAttentionHeads];
  for (int h = 0; h < kAttentionHeads; h++) {
    max[h] = -INFINITY;
    sum[h] = 0;
    for (int i = 0; i < n_dims; i++) values[i][h] = 0;
  }
  for (int start = 0; start < n_all;) {
    const int span = (start < in_blocks ? selected[start / ratio] * ratio : tail) / kAttentionSpan;
    uint mine = 0;
    for (int i = int(tid); i < kAttentionSpan; i += kAttentionThreads) {
      const int at = start + i;
      if (at >= n_all) continue;
      const int position = at < in_blocks ? selected[at / ratio] * ratio + at % ratio : tail + at - in_blocks;
      positions[i] = position;
      mine += position / kAttentionSpan == span;
    }
    const int n = int(count_threads(mine, parts, lane, sg, n_sg).all);
    score<T>(p, seq, kv_head, n, s, lane, sg);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint h = sg; h < uint(kAttentionHeads); h += n_sg)
      weigh(scores[h], n, span_max + h, span_sum + h, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float before[kAttentionHeads], now[kAttentionHeads];  // factors of what is there and of the span
    for (int h = 0; h < kAttentionHeads; h++) {
      const float here = span_max[h], most = max[h] > here ? max[h] : here;
      before[h] = exponential(max[h] - most);
      now[h] = exponential(here - most);
      max[h] = most;
      sum[h] = sum[h] * before[h] + span_sum[h] * now[h];
    }
    for (int j = 0; j < n_dims; j++) {
      const uint d = tid + uint(j) * kAttentionThreads;
      if (d >= dim) continue;
      float part[kAttentionHeads];
      for (int h = 0; h < kAttentionHeads; h++) part[h] = 0;
      for (int i = 0; i < n; i++) {
        const float v = float(cached<T>(seq, positions[i], p.v_offset, kv_head, dim)[d]);
        for (int h = 0; h < kAttentionHeads; h++) part[h] = fma(scores[h][i], v, part[h]);
      }
      for (int h = 0; h < kAttentionHeads; h++) values[j][h] = fma(part[h], now[h], values[j][h] * before[h]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    start += n;
  }
  for (int j = 0; j < n_dims; j++) {
    const uint d = tid + uint(j) * kAttentionThreads;
    if (d >= dim) continue;
    for (uint h = 0; h < heads; h++) {
      const ulong head = r * p.n_heads + first + h;
      const float gate = float(qg[head * 2 * dim + dim + d]);
      out[head * dim + d] = T(values[j][h] / sum[h] * sigmoid(gate));
    }
  }
}

template
    [[host_name("attention_prep_bf16")]] [[kernel]] decltype(attention_prep<bfloat>) attention_prep<bfloat>;
template [[host_name("attention_prep_f32")]] [[kernel]] decltype(attention_prep<float>) attention_prep<float>;
template [[host_name("attention_bf16")]] [[kernel]] decltype(attention<bfloat>) attention<bfloat>;
template [[host_name("attention_f32")]] [[kernel]] decltype(attention<float>) attention<float>;
