// router_topk, expert_sort, expert_gate_up, glu, expert_down: the mixture of experts.
//
// The rows of a pass are sorted by expert, so that each expert's weights are read once. A row's own sum runs
// over its experts by ascending id, the shared expert last: y = 0, y = fma(weight_e, down_e(act_e), y), ...,
// rounded once.
//
// router_topk: 0 counts, 1 logits float[R, n_experts], 2 ids int32[R, top_k] ascending, 3 weights float[R,
// top_k], 4 RouterParams. Grid (R), one simdgroup. Ties at the cut go to the lower id; NaN is the least. The
// softmax adds by ascending id. expert_sort: 0 counts, 1 ids, 2 active int32[1 + n_experts], 3 starts
// int32[n_experts + 1], 4 pairs int32[R * top_k], 5 RouterParams. Grid (1), kSortThreads threads, a thread an
// expert. expert_gate_up: 0 counts, 1 active, 2 starts, 3 pairs, 4 x T[R, D], 5..7 gate, 8..10 up [n_experts,
// width, D], 11 act T[R * top_k, width], 12 GluParams. Grid (ceil(width / kProductTile), active experts),
// kProductThreads threads. glu: 0 counts, 1 x, 2..4 gate, 5..7 up [width, D], 8 act T[R, width], 9 GluParams.
// Grid (ceil(width / kProductTile), ceil(R / kRowBlock)), kProductThreads threads. expert_down: 0 counts, 1
// active, 2 starts, 3 pairs, 4 weights, 5 act, 6..8 down [n_experts, D, width], 9 shared act T[R,
// shared_width], 10..12 shared down, 13 shared gate float[R], 14 gates float[R, S], 15 streams T[R, W], 16
// ExpertDownParams. Grid (ceil(D / kDownTile), ceil(R / kDownRows)), kDownThreads threads, 16 KB of
// threadgroup memory: a simdgroup holds the sums of its columns for all rows of the threadgroup.
//
// Widths multiples of 32 and of the group; top_k up to 64. Order of sums: lib/product.h. A NaN reaches what
// it is multiplied into.
#include "metal/lib/math.h"
#include "metal/lib/product.h"

FLASHNEXT_CONSTANT int kMaxTopK = 64;

// Larger logits have larger keys; NaN has the least, and -0 that of 0.
METAL_FUNC uint rank_of(float logit) {
  const uint u = as_type<uint>(logit + 0.0);
  return isnan(logit) ? 0u : u & 0x80000000u ? ~u : u | 0x80000000u;
}

[[kernel, max_total_threads_per_threadgroup(kRouterThreads)]] void router_topk(
    device const Counts* counts [[buffer(0)]],
    device const float* logits [[buffer(1)]],
    device int* ids [[buffer(2)]],
    device float* weights [[buffer(3)]],
    constant RouterParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint picked[kMaxTopK];
  threadgroup uint sorted[kMaxTopK];
  threadgroup float weight[kMaxTopK];
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  device const float* own = logits + ulong(tgid.x) * p.n_experts;
  // Each next one comes behind the last in the order (larger key, then lower id).
  uint last_key = 0, last_id = 0;
  float max = 0;
  for (uint n = 0; n < p.top_k; n++) {
    uint best = 0, id = p.n_experts;
    for (uint e = lane; e < p.n_experts; e += kSimdLanes) {
      const uint key = rank_of(own[e]);
      const bool open = n == 0 || key < last_key || (key == last_key && e > last_id);
      if (open && (id == p.n_experts || key > best)) {
        best = key;
        id = e;
      }
    }
    // A lane that has none left must not win with the key of a NaN.
    const uint most = simd_max(id < p.n_experts ? best : 0u);
    last_id = simd_min(id < p.n_experts && best == most ? id : p.n_experts);
    last_key = most;
    if (n == 0) max = own[last_id];
    if (lane == 0) picked[n] = last_id;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < p.top_k; i += kSimdLanes) {
    const uint e = picked[i];
    uint place = 0;
    for (uint j = 0; j < p.top_k; j++) place += picked[j] < e;
    sorted[place] = e;
    weight[place] = exponential(own[e] - max);
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = 0; i < p.top_k; i++) sum += weight[i];
  for (uint i = lane; i < p.top_k; i += kSimdLanes) {
    ids[ulong(tgid.x) * p.top_k + i] = int(sorted[i]);
    weights[ulong(tgid.x) * p.top_k + i] = weight[i] / sum;
  }
}

[[kernel, max_total_threads_per_threadgroup(kSortThreads)]] void expert_sort(
    device const Counts* counts [[buffer(0)]],
    device const int* ids [[buffer(1)]],
    device int* active [[buffer(2)]],
    device int* starts [[buffer(3)]],
    device int* pairs [[buffer(4)]],
    constant RouterParams& p [[buffer(5)]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint n_sg = kSortThreads / kSimdLanes;
  threadgroup uint parts[4][n_sg];
  const int n_pairs = counts->n[kCountRows] * int(p.top_k);
  uint n_active = 0, n_placed = 0, parity = 0;
  for (uint first = 0; first < p.n_experts; first += kSortThreads) {
    const uint e = first + tid;
    uint n = 0;
    if (e < p.n_experts) {
      for (int i = 0; i < n_pairs; i++) n += uint(ids[i]) == e;
    }
    const Count place = count_threads(n, parts[parity], lane, sg, n_sg);
    const Count number = count_threads(n > 0, parts[parity + 1], lane, sg, n_sg);
    if (n > 0) {
      uint at = n_placed + place.before;
      active[1 + n_active + number.before] = int(e);
      starts[n_active + number.before] = int(at);
      for (int i = 0; i < n_pairs; i++) {
        if (uint(ids[i]) == e) pairs[at++] = i;
      }
    }
    n_placed += place.all;
    n_active += number.all;
    parity ^= 2;
  }
  if (tid == 0) {
    active[0] = int(n_active);
    starts[n_active] = int(n_placed);
  }
}

// act = silu(gate x) * (up x). `pairs`: whose rows, or null for all in order.
template <typename T>
struct Glu {
  Stored gate, up;
  device const T* x;
  device const int* pairs;
  device T* act;
  uint top_k, width, column, n_rows, lane;

  template <int M>
  METAL_FUNC void run(uint row) const {
    Rows<T, M> rows;
    for (int m = 0; m < M; m++) {
      const uint i = smaller(row + m, n_rows - 1);
      rows.row[m] = x + ulong(pairs ? uint(pairs[i]) / top_k : i) * gate.n_in;
    }
    const float g = product<T, M>(gate, column, width - 1, rows, lane);
    const float u = product<T, M>(up, column, width - 1, rows, lane);
    const Held<M> held(lane);
    if (held.first && row + held.m < n_rows && column + held.c < width) {
      act[ulong(row + held.m) * width + column + held.c] = T(silu(g) * u);
    }
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kProductThreads)]] void expert_gate_up(
    device const Counts* counts [[buffer(0)]],
    device const int* active [[buffer(1)]],
    device const int* starts [[buffer(2)]],
    device const int* pairs [[buffer(3)]],
    device const T* x [[buffer(4)]],
    device const uchar* gate_codes [[buffer(5)]],
    device const bfloat* gate_scales [[buffer(6)]],
    device const bfloat* gate_biases [[buffer(7)]],
    device const uchar* up_codes [[buffer(8)]],
    device const bfloat* up_scales [[buffer(9)]],
    device const bfloat* up_biases [[buffer(10)]],
    device T* act [[buffer(11)]],
    constant GluParams& p [[buffer(12)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint column = tgid.x * kProductTile + sg * kSimdColumns;
  if (int(tgid.y) >= active[0] || column >= p.width) return;
  const ulong expert = ulong(active[1 + tgid.y]);
  const int start = starts[tgid.y];
  const uint n_rows = uint(starts[tgid.y + 1] - start);
  const Stored gate = stored(gate_codes, gate_scales, gate_biases, p.format, p.n_in);
  const Stored up = stored(up_codes, up_scales, up_biases, p.format, p.n_in);
  const Glu<T> body = {of_batch(gate, expert, p.codes_stride, p.scales_stride),
                       of_batch(up, expert, p.codes_stride, p.scales_stride),
                       x,
                       pairs + start,
                       act + ulong(start) * p.width,
                       p.top_k,
                       p.width,
                       column,
                       n_rows,
                       lane};
  each_block(0, n_rows, body);
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kProductThreads)]] void glu(
    device const Counts* counts [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const uchar* gate_codes [[buffer(2)]],
    device const bfloat* gate_scales [[buffer(3)]],
    device const bfloat* gate_biases [[buffer(4)]],
    device const uchar* up_codes [[buffer(5)]],
    device const bfloat* up_scales [[buffer(6)]],
    device const bfloat* up_biases [[buffer(7)]],
    device T* act [[buffer(8)]],
    constant GluParams& p [[buffer(9)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n_rows = uint(counts->n[kCountRows]);
  const uint column = tgid.x * kProductTile + sg * kSimdColumns, first = tgid.y * kRowBlock;
  if (first >= n_rows || column >= p.width) return;
  const Glu<T> body = {stored(gate_codes, gate_scales, gate_biases, p.format, p.n_in),
                       stored(up_codes, up_scales, up_biases, p.format, p.n_in),
                       x,
                       nullptr,
                       act,
                       1,
                       p.width,
                       column,
                       n_rows,
                       lane};
  each_block(first, smaller(first + kRowBlock, n_rows), body);
}

// sums[row][c] = fma(weight, y, sums[row][c]) for the rows of one expert. The rows of a simdgroup are its
// own.
template <typename T>
struct Down {
  Stored w;
  device const T* act;          // of the first row
  device const int* pairs;      // of its rows, or null for rows in order
  device const float* weights;  // by pair, or by row
  threadgroup float (*sums)[kSimdColumns];
  uint top_k, first_row, hidden, column, n_rows, lane;

  template <int M>
  METAL_FUNC void run(uint row) const {
    Rows<T, M> rows;
    for (int m = 0; m < M; m++) rows.row[m] = act + ulong(smaller(row + m, n_rows - 1)) * w.n_in;
    const float y = product<T, M>(w, column, hidden - 1, rows, lane);
    const Held<M> held(lane);
    if (held.first && row + held.m < n_rows) {
      const uint pair = pairs ? uint(pairs[row + held.m]) : first_row + row + held.m;
      const uint r = pair / top_k - first_row;
      sums[r][held.c] = fma(weights[pair], y, sums[r][held.c]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
};

// The first of the pairs begin .. end - 1, which ascend, that is not below `pair`.
METAL_FUNC int lower_bound(device const int* pairs, int begin, int end, int pair) {
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    if (pairs[middle] < pair) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kDownThreads)]] void expert_down(
    device const Counts* counts [[buffer(0)]],
    device const int* active [[buffer(1)]],
    device const int* starts [[buffer(2)]],
    device const int* pairs [[buffer(3)]],
    device const float* weights [[buffer(4)]],
    device const T* act [[buffer(5)]],
    device const uchar* codes [[buffer(6)]],
    device const bfloat* scales [[buffer(7)]],
    device const bfloat* biases [[buffer(8)]],
    device const T* shared_act [[buffer(9)]],
    device const uchar* shared_codes [[buffer(10)]],
    device const bfloat* shared_scales [[buffer(11)]],
    device const bfloat* shared_biases [[buffer(12)]],
    device const float* shared_gate [[buffer(13)]],
    device const float* gates [[buffer(14)]],
    device T* streams [[buffer(15)]],
    constant ExpertDownParams& p [[buffer(16)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[kDownThreads / kSimdLanes][kDownRows][kSimdColumns];
  const uint n_rows = uint(counts->n[kCountRows]), row = tgid.y * kDownRows;
  const uint column = tgid.x * kDownTile + sg * kSimdColumns;
  if (row >= n_rows || column >= p.hidden) return;
  const Stored down = stored(codes, scales, biases, p.format, p.width);
  const Stored shared = stored(shared_codes, shared_scales, shared_biases, p.shared_format, p.shared_width);
  const uint n = smaller(n_rows - row, uint(kDownRows));
  for (uint i = lane; i < n * kSimdColumns; i += kSimdLanes) sums[sg][i / kSimdColumns][i % kSimdColumns] = 0;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (int a = 0; a < active[0]; a++) {
    int begin = starts[a], end = starts[a + 1];
    if (n < n_rows) {  // of its pairs those of these rows
      begin = lower_bound(pairs, begin, end, int(row * p.top_k));
      end = lower_bound(pairs, begin, end, int((row + n) * p.top_k));
    }
    const Down<T> body = {of_batch(down, ulong(active[1 + a]), p.codes_stride, p.scales_stride),
                          act + ulong(begin) * p.width,
                          pairs + begin,
                          weights,
                          sums[sg],
                          p.top_k,
                          row,
                          p.hidden,
                          column,
                          uint(end - begin),
                          lane};
    each_block(0, uint(end - begin), body);
  }
  const Down<T> body = {shared,   shared_act + ulong(row) * p.shared_width,
                        nullptr,  shared_gate,
                        sums[sg], 1,
                        row,      p.hidden,
                        column,   n,
                        lane};
  each_block(0, n, body);
  for (uint i = lane; i < n * kSimdColumns; i += kSimdLanes) {
    const uint c = column + i % kSimdColumns;
    if (c >= p.hidden) continue;
    const ulong r = row + i / kSimdColumns;
    const float y = rounded<T>(sums[sg][i / kSimdColumns][i % kSimdColumns]);
    for (uint s = 0; s < p.hc_count; s++) {
      device T* stream = streams + (r * p.hc_count + s) * p.hidden + c;
      *stream = T(fma(gates[r * p.hc_count + s], y, float(*stream)));
    }
  }
}

template
    [[host_name("expert_gate_up_bf16")]] [[kernel]] decltype(expert_gate_up<bfloat>) expert_gate_up<bfloat>;
template [[host_name("expert_gate_up_f32")]] [[kernel]] decltype(expert_gate_up<float>) expert_gate_up<float>;
template [[host_name("glu_bf16")]] [[kernel]] decltype(glu<bfloat>) glu<bfloat>;
template [[host_name("glu_f32")]] [[kernel]] decltype(glu<float>) glu<float>;
template [[host_name("expert_down_bf16")]] [[kernel]] decltype(expert_down<bfloat>) expert_down<bfloat>;
template [[host_name("expert_down_f32")]] [[kernel]] decltype(expert_down<float>) expert_down<float>;
