// ple_conv, delta_conv: depthwise causal convolutions over a sequence's rows. Source:
// tests/support/reference, primitives.py (`depthwise_causal`) and decoder.py (`ple`, `deltanet`).
//
//   c_t = silu(sum over taps j, ascending, of w_j * x_{t - (n_taps - 1 - j) * dilation})
//   delta_conv: out = c; ple_conv: h += U + c with x = N
//
// Rows before the pass come from the tail in the recurrent block. Columns are independent, so a task settles
// and moves the tail of its own columns, to marks too.
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/tail.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kMaxTaps = 8;
constexpr uint32_t kConvColumns = 512;

struct Conv {
  uint32_t width, n_taps, dilation;
  uint32_t state_offset, unsettled_offset;
};

// Convolves the task's columns of the task's sequence: finish(row of the pass, column, c) takes kLanes
// values. x: T[R, width].
template <class T, class Finish>
void convolve(const Task& t, const Conv& p, const T* x, const float* taps, Finish finish) {
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountSequences]) return;
  const Sequence& seq = t.slot<Sequence>(1)[t.x];
  const uint32_t first = t.y * kConvColumns;
  const uint32_t n = p.width - first < kConvColumns ? p.width - first : kConvColumns;
  const uint32_t n_tail = (p.n_taps - 1) * p.dilation;
  const size_t W = p.width;
  T* tail = at<T>(seq.state, p.state_offset);
  last_rows(tail, tail, n_tail, at<T>(seq.kept, p.unsettled_offset), seq.n_kept, W, first, n);
  x += seq.first_row * W;
  for (int32_t r = 0; r < seq.n_rows; ++r) {
    const T* sources[kMaxTaps];
    for (uint32_t j = 0; j < p.n_taps; ++j) {
      const int32_t row = r - static_cast<int32_t>((p.n_taps - 1 - j) * p.dilation);
      sources[j] = row >= 0 ? x + row * W : tail + (int32_t(n_tail) + row) * W;
    }
    for (uint32_t c = first; c < first + n; c += kLanes) {
      F sum = zero();
      for (uint32_t j = 0; j < p.n_taps; ++j) sum = fma(load(taps + j * W + c), load(sources[j] + c), sum);
      finish(static_cast<size_t>(seq.first_row + r), c, silu(sum));
    }
    if (seq.is_window) {
      std::memcpy(at<T>(seq.unsettled, p.unsettled_offset) + r * W + first, x + r * W + first, n * sizeof(T));
    }
  }
  const auto* marks = at<const Mark>(seq.marks);
  for (int32_t m = 0; m < seq.n_marks; ++m) {
    last_rows(at<T>(marks[m].state, p.state_offset), tail, n_tail, x, marks[m].n_rows, W, first, n);
  }
  if (!seq.is_window) last_rows(tail, tail, n_tail, x, seq.n_rows, W, first, n);
}

template <class T>
void ple_conv(const Task& t) {
  const auto& p = t.get<PleConvParams>();
  const Conv conv = {p.width, p.n_taps, p.dilation, p.state_offset, p.unsettled_offset};
  convolve(t, conv, t.slot<const T>(2), t.slot<const float>(4), [&](size_t row, uint32_t c, F value) {
    const size_t here = row * p.width + c;
    T* stream = t.slot<T>(5) + here;
    store(stream, load(stream) + (load(t.slot<const T>(3) + here) + value));
  });
}

template <class T>
void delta_conv(const Task& t) {
  const auto& p = t.get<DeltaConvParams>();
  const Conv conv = {p.channels, p.n_taps, 1, p.state_offset, p.unsettled_offset};
  convolve(t, conv, t.slot<const T>(2), t.slot<const float>(3),
           [&](size_t row, uint32_t c, F value) { store(t.slot<T>(4) + row * p.channels + c, value); });
}

constexpr KernelEntry kEntries[] = {
    {"ple_conv_bf16", ple_conv<bfloat16>, kConvColumns},
    {"ple_conv_f32", ple_conv<float>, kConvColumns},
    {"delta_conv_bf16", delta_conv<bfloat16>, kConvColumns},
    {"delta_conv_f32", delta_conv<float>, kConvColumns},
};

}  // namespace

KernelList conv_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
