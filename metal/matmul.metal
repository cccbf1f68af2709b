// matmul: y = x W^T for a stored matrix W, with what a projection does to y before it is stored (Epilogue).
//
//   store      out = y                        silu       out = silu(alpha y)
//   store_f32  out = y, fp32                  sigmoid    out = beta sigmoid(alpha y), fp32
//   residual   stream s += gates[r, s] * round_T(y)
//
// slot  name     shape
// 0     counts   Counts; rows are counts[p.count]
// 1     x        T[R, n_in]
// 2..4  codes, scales, biases of W [n_out, n_in]
// 5     out      as the epilogue says
// 6     gates    float[R, hc_count]; residual only
// 7     p        MatmulParams
//
// Grid (ceil(n_out / kProductTile), ceil(R / kRowBlock)), kProductThreads threads, no threadgroup memory;
// each simdgroup has kSimdColumns columns. n_in a multiple of 32 and of the group, any n_out and R. Order of
// sums: lib/product.h. A NaN or infinity reaches every output it is multiplied into. Source: docs/model.md.
#include "metal/lib/math.h"
#include "metal/lib/product.h"

template <typename T>
struct Matmul {
  Stored w;
  device const T* x;
  device void* out;
  device const float* gates;
  constant MatmulParams& p;
  uint column, n_rows, lane;

  template <int M>
  METAL_FUNC void run(uint row) const {
    Rows<T, M> rows;
    for (int m = 0; m < M; m++) rows.row[m] = x + ulong(smaller(row + m, n_rows - 1)) * p.n_in;
    const float y = product<T, M>(w, column, p.n_out - 1, rows, lane);
    const Held<M> held(lane);
    if (held.first && row + held.m < n_rows && column + held.c < p.n_out) {
      finish(row + held.m, column + held.c, y);
    }
  }

  METAL_FUNC void finish(uint r, uint c, float y) const {
    const ulong here = ulong(r) * p.n_out + c;
    switch (p.epilogue) {
      case kStore: reinterpret_cast<device T*>(out)[here] = T(y); break;
      case kStoreF32: reinterpret_cast<device float*>(out)[here] = y; break;
      case kSilu: reinterpret_cast<device T*>(out)[here] = T(silu(p.alpha * y)); break;
      case kSigmoid: reinterpret_cast<device float*>(out)[here] = p.beta * sigmoid(p.alpha * y); break;
      default:
        for (uint s = 0; s < p.hc_count; s++) {
          device T* stream = reinterpret_cast<device T*>(out) + (ulong(r) * p.hc_count + s) * p.n_out + c;
          *stream = T(fma(gates[ulong(r) * p.hc_count + s], rounded<T>(y), float(*stream)));
        }
    }
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kProductThreads)]] void matmul(
    device const Counts* counts [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const uchar* codes [[buffer(2)]],
    device const bfloat* scales [[buffer(3)]],
    device const bfloat* biases [[buffer(4)]],
    device uchar* out [[buffer(5)]],
    device const float* gates [[buffer(6)]],
    constant MatmulParams& p [[buffer(7)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  const uint n_rows = uint(counts->n[p.count]);
  const uint column = tgid.x * kProductTile + sg * kSimdColumns, first = tgid.y * kRowBlock;
  if (first >= n_rows || column >= p.n_out) return;
  const Stored w = stored(codes, scales, biases, p.format, p.n_in);
  const Matmul<T> body = {w, x, out, gates, p, column, n_rows, lane};
  each_block(first, smaller(first + kRowBlock, n_rows), body);
}

template [[host_name("matmul_bf16")]] [[kernel]] decltype(matmul<bfloat>) matmul<bfloat>;
template [[host_name("matmul_f32")]] [[kernel]] decltype(matmul<float>) matmul<float>;
