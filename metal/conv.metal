// ple_conv, delta_conv: depthwise causal convolutions over a sequence's rows.
//
//   c_t = silu(sum over taps j, ascending, of w_j * x_{t - (n_taps - 1 - j) * dilation})
//   delta_conv: out = c; ple_conv: h += U + c with x = N
//
// ple_conv: 0 counts, 1 sequences, 2 normed T[R, W], 3 gated T[R, W], 4 taps float[n_taps, W], 5 streams T[R,
// W], 6 PleConvParams. delta_conv: 0 counts, 1 sequences, 2 x T[R, C], 3 taps float[n_taps, C], 4 out T[R,
// C], 5 DeltaConvParams.
//
// Grid (sequences, ceil(columns / kColumnThreads)), a thread a column: columns are independent, so a thread
// settles and moves the tail of its own, to marks too, and passes its rows in order. 1 <= n_taps <= 8,
// dilation >= 1. A NaN reaches the rows whose taps read it, in its own column.
#include "metal/lib/math.h"
#include "metal/lib/memory.h"

struct Conv {
  uint width, n_taps, dilation;
  ulong state_offset, unsettled_offset;
};

// The last values of a column's tail followed by n_new values, as many as the tail has, into `out`, which may
// be the tail itself. Values are `width` apart.
template <typename T>
METAL_FUNC void last_values(
    device T* out, device const T* tail, int n_tail, device const T* values, int n_new, ulong width) {
  for (int i = 0; i < n_tail; i++) {
    const int from = i + n_new;  // never before i
    out[i * width] = from < n_tail ? tail[from * width] : values[ulong(from - n_tail) * width];
  }
}

// finish(row of the pass, column, c) for every row of a sequence.
template <typename T, typename Finish>
METAL_FUNC void convolve(device const Sequence& seq,
                         Conv p,
                         device const T* x,
                         device const float* taps,
                         uint column,
                         Finish finish) {
  const ulong W = p.width;
  const int n_tail = int((p.n_taps - 1) * p.dilation);
  device T* tail = at<T>(seq.state, p.state_offset) + column;
  last_values(tail, tail, n_tail, at<const T>(seq.kept, p.unsettled_offset) + column, seq.n_kept, W);
  device const T* rows = x + ulong(seq.first_row) * W + column;
  for (int r = 0; r < seq.n_rows; r++) {
    float sum = 0;
    for (uint j = 0; j < p.n_taps; j++) {
      const int row = r - int((p.n_taps - 1 - j) * p.dilation);
      const float value = row >= 0 ? float(rows[ulong(row) * W]) : float(tail[ulong(n_tail + row) * W]);
      sum = fma(taps[j * W + column], value, sum);
    }
    finish(ulong(seq.first_row + r), column, silu(sum));
    if (seq.is_window) at<T>(seq.unsettled, p.unsettled_offset)[ulong(r) * W + column] = rows[ulong(r) * W];
  }
  device const Mark* marks = at<const Mark>(seq.marks);
  for (int m = 0; m < seq.n_marks; m++) {
    last_values(at<T>(marks[m].state, p.state_offset) + column, tail, n_tail, rows, marks[m].n_rows, W);
  }
  if (!seq.is_window) last_values(tail, tail, n_tail, rows, seq.n_rows, W);
}

template <typename T>
struct AddToStream {
  device T* streams;
  device const T* gated;
  ulong width;

  METAL_FUNC void operator()(ulong row, uint column, float c) const {
    const ulong here = row * width + column;
    streams[here] = T(float(streams[here]) + (float(gated[here]) + c));
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kColumnThreads)]] void ple_conv(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const T* normed [[buffer(2)]],
    device const T* gated [[buffer(3)]],
    device const float* taps [[buffer(4)]],
    device T* streams [[buffer(5)]],
    constant PleConvParams& p [[buffer(6)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint column = tgid.y * kColumnThreads + tid;
  if (int(tgid.x) >= counts->n[kCountSequences] || column >= p.width) return;
  const Conv conv = {p.width, p.n_taps, p.dilation, p.state_offset, p.unsettled_offset};
  const AddToStream<T> finish = {streams, gated, p.width};
  convolve(sequences[tgid.x], conv, normed, taps, column, finish);
}

template <typename T>
struct StoreColumn {
  device T* out;
  ulong width;

  METAL_FUNC void operator()(ulong row, uint column, float c) const { out[row * width + column] = T(c); }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kColumnThreads)]] void delta_conv(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const T* x [[buffer(2)]],
    device const float* taps [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant DeltaConvParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint column = tgid.y * kColumnThreads + tid;
  if (int(tgid.x) >= counts->n[kCountSequences] || column >= p.channels) return;
  const Conv conv = {p.channels, p.n_taps, 1, p.state_offset, p.unsettled_offset};
  const StoreColumn<T> finish = {out, p.channels};
  convolve(sequences[tgid.x], conv, x, taps, column, finish);
}

template [[host_name("ple_conv_bf16")]] [[kernel]] decltype(ple_conv<bfloat>) ple_conv<bfloat>;
template [[host_name("ple_conv_f32")]] [[kernel]] decltype(ple_conv<float>) ple_conv<float>;
template [[host_name("delta_conv_bf16")]] [[kernel]] decltype(delta_conv<bfloat>) delta_conv<bfloat>;
template [[host_name("delta_conv_f32")]] [[kernel]] decltype(delta_conv<float>) delta_conv<float>;
