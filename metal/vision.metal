// layer_norm, linear, patch_place, patch_turn: the vision tower without its attention, all in float32.
//
// layer_norm: 0 x float[R, n], 1 weight, 2 bias float[n], 3 out float[R, n], 4 LayerNormParams. Grid (R),
// kRowThreads threads. Thread t adds values t, t + kRowThreads, ..., then their squared distances from the
// mean in one chain of fma; then add_threads.
// linear: 0 x float[R, n_in], 1 weight [n_out, n_in], 2 bias float[n_out], 3 out float[R, n_out], 4
// LinearParams. y = x W^T + bias, and what LinearFinish says. Grid (ceil(n_out / kProductTile), ceil(R /
// kRowBlock)), kProductThreads threads. n_in a multiple of 16. Order of sums: lib/product.h, the bias last.
// patch_place: 0 patches, 1 table float[side * side, D'], 2 inv_freq float[quarter], 3 x float[R, D'], 4 cos,
// 5 sin float[R, 2 * quarter], 6 PatchPlaceParams. Grid (R), kRowThreads threads.
// patch_turn: 0 cos, 1 sin float[R, half_dim], 2 qkv float[R, 3 * D'], 3 PatchTurnParams. Grid (R),
// kRowThreads threads, one a pair.
//
// A NaN or infinity reaches its row (layer_norm), what it is multiplied into (linear) or interpolated into
// (patch_place), and its pair (patch_turn). Source: docs/media.md.
#include "metal/lib/gelu.h"
#include "metal/lib/product.h"

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void layer_norm(
    device const float* x [[buffer(0)]],
    device const float* weight [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant LayerNormParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint n_sg = kRowThreads / kSimdLanes;
  threadgroup float sums[n_sg];
  threadgroup float squares_of[n_sg];
  device const float* row = x + ulong(tgid.x) * p.width;
  float sum = 0;
  for (uint i = tid; i < p.width; i += kRowThreads) sum += row[i];
  const float mean = add_threads(sum, sums, lane, sg, n_sg) / float(p.width);
  float square = 0;
  for (uint i = tid; i < p.width; i += kRowThreads) {
    const float d = row[i] - mean;
    square = fma(d, d, square);
  }
  const float inverse = inverse_rms(add_threads(square, squares_of, lane, sg, n_sg), p.width, p.eps);
  for (uint i = tid; i < p.width; i += kRowThreads) {
    out[ulong(tgid.x) * p.width + i] = fma((row[i] - mean) * inverse, weight[i], bias[i]);
  }
}

struct Linear {
  Stored w;
  device const float* x;
  device const float* bias;
  device float* out;
  constant LinearParams& p;
  uint column, lane;

  template <int M>
  METAL_FUNC void run(uint row) const {
    Rows<float, M> rows;
    for (int m = 0; m < M; m++) rows.row[m] = x + ulong(smaller(row + m, p.n_rows - 1)) * p.n_in;
    const float y = product<float, M>(w, column, p.n_out - 1, rows, lane);
    const Held<M> held(lane);
    if (held.first && row + held.m < p.n_rows && column + held.c < p.n_out) {
      finish(row + held.m, column + held.c, y);
    }
  }

  METAL_FUNC void finish(uint r, uint c, float sum) const {
    device float* here = out + ulong(r) * p.n_out + c;
    const float y = sum + bias[c];
    switch (p.finish) {
      case kLinearStore: *here = y; break;
      case kLinearGeluTanh: *here = gelu_tanh(y); break;
      case kLinearGelu: *here = gelu(y); break;
      default: *here = *here + y;
    }
  }
};

[[kernel, max_total_threads_per_threadgroup(kProductThreads)]] void linear(
    device const float* x [[buffer(0)]],
    device const uchar* weight [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant LinearParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint column = tgid.x * kProductTile + sg * kSimdColumns, first = tgid.y * kRowBlock;
  if (first >= p.n_rows || column >= p.n_out) return;
  const Stored w = {weight, nullptr, nullptr, p.bits, 0, p.n_in};
  const Linear body = {w, x, bias, out, p, column, lane};
  each_block(first, smaller(first + kRowBlock, p.n_rows), body);
}

// Where the i-th of n patches lies on an axis of the table: between places low and high, so far from low.
struct Between {
  uint low, high;
  float far;

  METAL_FUNC Between(int i, int n, uint side) {
    const uint steps = n > 1 ? uint(n) - 1 : 1, at = uint(i) * (side - 1);
    low = at / steps;
    high = low + 1 < side ? low + 1 : low;
    far = float(at % steps) / float(steps);
  }
};

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void patch_place(
    device const Patch* patches [[buffer(0)]],
    device const float* table [[buffer(1)]],
    device const float* inv_freq [[buffer(2)]],
    device float* x [[buffer(3)]],
    device float* cos [[buffer(4)]],
    device float* sin [[buffer(5)]],
    constant PatchPlaceParams& p [[buffer(6)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  device const Patch& patch = patches[tgid.x];
  const Between row(patch.row, patch.n_rows, p.side), col(patch.col, patch.n_cols, p.side);
  device const float* a = table + (ulong(row.low) * p.side + col.low) * p.width;
  device const float* b = table + (ulong(row.low) * p.side + col.high) * p.width;
  device const float* c = table + (ulong(row.high) * p.side + col.low) * p.width;
  device const float* d = table + (ulong(row.high) * p.side + col.high) * p.width;
  const float up = 1.0 - row.far, left = 1.0 - col.far;
  for (uint i = tid; i < p.width; i += kRowThreads) {
    const float above = fma(col.far, b[i], left * a[i]), below = fma(col.far, d[i], left * c[i]);
    const ulong here = ulong(tgid.x) * p.width + i;
    x[here] = x[here] + fma(row.far, below, up * above);
  }
  for (uint j = tid; j < 2 * p.quarter; j += kRowThreads) {
    const Turn t = turn(float(j < p.quarter ? patch.row : patch.col) * inv_freq[j % p.quarter]);
    cos[ulong(tgid.x) * 2 * p.quarter + j] = t.cos;
    sin[ulong(tgid.x) * 2 * p.quarter + j] = t.sin;
  }
}

[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void patch_turn(
    device const float* cos [[buffer(0)]],
    device const float* sin [[buffer(1)]],
    device float* qkv [[buffer(2)]],
    constant PatchTurnParams& p [[buffer(3)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  device float* row = qkv + ulong(tgid.x) * p.n_heads * p.half_dim * 6;
  for (uint i = tid; i < 2 * p.n_heads * p.half_dim; i += kRowThreads) {
    const uint j = i % p.half_dim;
    device float* head = row + i / p.half_dim * 2 * p.half_dim;
    const float c = cos[ulong(tgid.x) * p.half_dim + j], s = sin[ulong(tgid.x) * p.half_dim + j];
    const float a = head[j], b = head[j + p.half_dim];
    head[j] = a * c - b * s;
    head[j + p.half_dim] = b * c + a * s;
  }
}
