// matmul: y = x W^T with the epilogues of metal/params.h. Source: tests/support/reference,
// primitives.py (`linear`) and quant.py; order of sums: panel.h, codes.h.
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

template <class T>
void matmul(const Task& t) {
  const auto& p = t.get<MatmulParams>();
  const uint32_t n_rows = t.slot<Counts>(0)->n[p.count];
  if (n_rows == 0) return;
  const Matrix w = matrix(t.slots[2], t.slots[3], t.slots[4], p.format, p.n_in);
  const uint32_t col0 = t.x * kPanelColumns;
  const uint32_t n_cols = p.n_out - col0 < kPanelColumns ? p.n_out - col0 : kPanelColumns;
  auto& scratch = product_scratch(t);
  const Matrix ahead = w.from_row(t.next_x() * kPanelColumns);
  const Rows<T> x = {t.slot<const T>(1), p.n_in};
  const size_t stride = p.n_out;
  switch (p.epilogue) {
    case kStore:
      product(w, col0, n_cols, x, n_rows, ahead, scratch, [&](uint32_t r, const float* y) {
        T* out = t.slot<T>(5) + r * stride + col0;
        for (uint32_t c = 0; c < n_cols; ++c) put(out + c, y[c]);
      });
      break;
    case kStoreF32:
      product(w, col0, n_cols, x, n_rows, ahead, scratch, [&](uint32_t r, const float* y) {
        std::memcpy(t.slot<float>(5) + r * stride + col0, y, n_cols * sizeof(float));
      });
      break;
    case kSilu:
      product(w, col0, n_cols, x, n_rows, ahead, scratch, [&](uint32_t r, const float* y) {
        T* out = t.slot<T>(5) + r * stride + col0;
        for (uint32_t c = 0; c < n_cols; ++c) put(out + c, silu(p.alpha * y[c]));
      });
      break;
    case kSigmoid:
      product(w, col0, n_cols, x, n_rows, ahead, scratch, [&](uint32_t r, const float* y) {
        float* out = t.slot<float>(5) + r * stride + col0;
        for (uint32_t c = 0; c < n_cols; ++c) out[c] = p.beta * sigmoid(p.alpha * y[c]);
      });
      break;
    default:
      product(w, col0, n_cols, x, n_rows, ahead, scratch, [&](uint32_t r, const float* y) {
        const float* gates = t.slot<const float>(6) + size_t{r} * p.hc_count;
        for (uint32_t s = 0; s < p.hc_count; ++s) {
          T* stream = t.slot<T>(5) + (size_t{r} * p.hc_count + s) * p.n_out + col0;
          for (uint32_t c = 0; c < n_cols; ++c) {
            put(stream + c, scalar_fma(gates[s], rounded<T>(y[c]), to_float(stream[c])));
          }
        }
      });
  }
}

constexpr KernelEntry kEntries[] = {
    {"matmul_bf16", matmul<bfloat16>, kPanelColumns},
    {"matmul_f32", matmul<float>, kPanelColumns},
};

}  // namespace

KernelList matmul_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
