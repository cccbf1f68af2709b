// hc_norm, hc_mix: the read side of a hyper-connection.
//
//   n = rms_D(h; gamma)                   one mean square a stream, over D values
//   u = mean over streams of sigmoid(W_up r) * n, the streams added by ascending s
//
// hc_norm: 0 counts, 1 streams T[R, W], 2 gamma float[W], 3 out T[R, W], 4 HcNormParams. Grid (R, S),
// kRowThreads threads. Thread t squares values t, t + kRowThreads, ...; then add_threads.
// hc_mix: 0 counts, 1 low T[R, rank], 2..4 codes, scales, biases of W_up [W, rank], 5 normed T[R, W], 6 out
// T[R, D], 7 HcMixParams. Grid (ceil(D / kProductTile), ceil(R / kRowBlock)), kProductThreads threads. Sums
// over the rank: lib/product.h.
//
// D and rank multiples of 32. NaN stays in its stream (hc_norm), or reaches what it is multiplied into.
#include "metal/lib/math.h"
#include "metal/lib/product.h"

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void hc_norm(
    device const Counts* counts [[buffer(0)]],
    device const T* streams [[buffer(1)]],
    device const float* gamma [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant HcNormParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[kRowThreads / kSimdLanes];
  if (int(tgid.x) >= counts->n[p.count]) return;
  const ulong here = (ulong(tgid.x) * p.hc_count + tgid.y) * p.hidden;
  device const T* x = streams + here;
  device const float* scale = gamma + ulong(tgid.y) * p.hidden;
  const float square = squares(x, p.hidden, tid, kRowThreads);
  const float sum = add_threads(square, parts, lane, sg, kRowThreads / kSimdLanes);
  const float inverse = inverse_rms(sum, p.hidden, p.eps);
  for (uint i = tid; i < p.hidden; i += kRowThreads) out[here + i] = T(float(x[i]) * inverse * scale[i]);
}

template <typename T>
struct Mix {
  Stored w;
  device const T* low;
  device const T* normed;
  device T* out;
  constant HcMixParams& p;
  uint column, n_rows, lane;

  template <int M>
  METAL_FUNC void run(uint row) const {
    Rows<T, M> rows;
    for (int m = 0; m < M; m++) rows.row[m] = low + ulong(smaller(row + m, n_rows - 1)) * p.rank;
    const Held<M> held(lane);
    const uint r = smaller(row + held.m, n_rows - 1), c = smaller(column + held.c, p.hidden - 1);
    float mean = 0;
    for (uint s = 0; s < p.hc_count; s++) {
      const ulong first = ulong(s) * p.hidden;
      const float y = product<T, M>(w, first + column, first + p.hidden - 1, rows, lane);
      mean = fma(sigmoid(y), float(normed[(ulong(r) * p.hc_count + s) * p.hidden + c]), mean);
    }
    if (held.first && row + held.m < n_rows && column + held.c < p.hidden) {
      out[ulong(r) * p.hidden + c] = T(mean / float(p.hc_count));
    }
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kProductThreads)]] void hc_mix(
    device const Counts* counts [[buffer(0)]],
    device const T* low [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const bfloat* scales [[buffer(3)]],
    device const bfloat* biases [[buffer(4)]],
    device const T* normed [[buffer(5)]],
    device T* out [[buffer(6)]],
    constant HcMixParams& p [[buffer(7)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n_rows = uint(counts->n[p.count]);
  const uint column = tgid.x * kProductTile + sg * kSimdColumns, first = tgid.y * kRowBlock;
  if (first >= n_rows || column >= p.hidden) return;
  const Stored w = stored(codes, scales, biases, p.format, p.rank);
  const Mix<T> body = {w, low, normed, out, p, column, n_rows, lane};
  each_block(first, smaller(first + kRowBlock, n_rows), body);
}

template [[host_name("hc_norm_bf16")]] [[kernel]] decltype(hc_norm<bfloat>) hc_norm<bfloat>;
template [[host_name("hc_norm_f32")]] [[kernel]] decltype(hc_norm<float>) hc_norm<float>;
template [[host_name("hc_mix_bf16")]] [[kernel]] decltype(hc_mix<bfloat>) hc_mix<bfloat>;
template [[host_name("hc_mix_f32")]] [[kernel]] decltype(hc_mix<float>) hc_mix<float>;
