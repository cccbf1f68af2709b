// hc_norm, hc_mix: the read side of a hyper-connection. Source:
// tests/support/reference/decoder.py (`Mixer`).
//
//   n = rms_D(h; hc_norm)                 one mean square a stream, over D values
//   u = mean over streams of sigmoid(W_up r) * n, the streams added by ascending s
#include "kernels/cpu/norm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

template <class T>
void hc_norm(const Task& t) {
  const auto& p = t.get<HcNormParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[p.count]) return;
  const size_t at = (size_t{t.x} * p.hc_count + t.y) * p.hidden;
  rms_norm(t.slot<const T>(1) + at, t.slot<const float>(2) + size_t{t.y} * p.hidden, p.hidden, p.eps,
           t.slot<T>(3) + at);
}

constexpr uint32_t kMixColumns = 64;

template <class T>
void hc_mix(const Task& t) {
  const auto& p = t.get<HcMixParams>();
  const uint32_t n_rows = t.slot<Counts>(0)->n[p.count];
  if (n_rows == 0) return;
  const Matrix w = matrix(t.slots[2], t.slots[3], t.slots[4], p.format, p.rank);
  const uint32_t d0 = t.x * kMixColumns;
  const uint32_t n = p.hidden - d0 < kMixColumns ? p.hidden - d0 : kMixColumns;
  auto& scratch = product_scratch(t);
  // Rows go in runs, so that the means of a run stay in fast memory while the streams are added.
  float mean[kPanelRows][kMixColumns];
  for (uint32_t r0 = 0; r0 < n_rows; r0 += kPanelRows) {
    const uint32_t rows = n_rows - r0 < kPanelRows ? n_rows - r0 : kPanelRows;
    std::memset(mean, 0, sizeof mean);
    for (uint32_t s = 0; s < p.hc_count; ++s) {
      const Rows<T> low = {t.slot<const T>(1) + size_t{r0} * p.rank, p.rank};
      const Matrix ahead =
          w.from_row(s + 1 < p.hc_count ? (s + 1) * p.hidden + d0 : t.next_x() * kMixColumns);
      product(w, s * p.hidden + d0, n, low, rows, ahead, scratch, [&](uint32_t r, const float* y) {
        const T* normed = t.slot<const T>(5) + ((size_t{r0} + r) * p.hc_count + s) * p.hidden + d0;
        for (uint32_t c = 0; c < n; ++c)
          mean[r][c] = scalar_fma(sigmoid(y[c]), to_float(normed[c]), mean[r][c]);
      });
    }
    for (uint32_t r = 0; r < rows; ++r) {
      T* out = t.slot<T>(6) + (size_t{r0} + r) * p.hidden + d0;
      for (uint32_t c = 0; c < n; ++c) put(out + c, mean[r][c] / static_cast<float>(p.hc_count));
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {"hc_norm_bf16", hc_norm<bfloat16>, 1},
    {"hc_norm_f32", hc_norm<float>, 1},
    {"hc_mix_bf16", hc_mix<bfloat16>, kMixColumns},
    {"hc_mix_f32", hc_mix<float>, kMixColumns},
};

}  // namespace

KernelList hyper_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
