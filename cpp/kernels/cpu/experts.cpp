// router_topk, expert_sort, expert_gate_up, glu, expert_down: the mixture of experts. Source:
// tests/support/reference/decoder.py (`experts`).
//
// The rows of a pass are sorted by expert, so that each expert's weights are read once. A row's own sum runs
// over its experts by ascending id, the shared expert last: y = 0, y = fma(weight_e, down_e(act_e), y), ...,
// rounded once.
#include "kernels/cpu/norm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kMaxTopK = 64;

void router_topk(const Task& t) {
  const auto& p = t.get<RouterParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const float* logits = t.slot<const float>(1) + size_t{t.x} * p.n_experts;
  // Insertion keeps the best so far by descending value; an equal value goes behind, so the lower id wins.
  uint32_t best[kMaxTopK];
  uint32_t n = 0;
  for (uint32_t e = 0; e < p.n_experts; ++e) {
    const auto beats = [&](uint32_t other) {
      return logits[e] > logits[other] || (logits[other] != logits[other] && logits[e] == logits[e]);
    };
    if (n == p.top_k && !beats(best[n - 1])) continue;
    uint32_t at = n < p.top_k ? n++ : n - 1;
    for (; at > 0 && beats(best[at - 1]); --at) best[at] = best[at - 1];
    best[at] = e;
  }
  const float max = logits[best[0]];
  for (uint32_t i = 1; i < n; ++i) {  // by ascending id
    const uint32_t e = best[i];
    uint32_t at = i;
    for (; at > 0 && best[at - 1] > e; --at) best[at] = best[at - 1];
    best[at] = e;
  }
  float weights[kMaxTopK], sum = 0;
  for (uint32_t i = 0; i < n; ++i) sum += weights[i] = exp(logits[best[i]] - max);
  for (uint32_t i = 0; i < n; ++i) {
    t.slot<int32_t>(2)[size_t{t.x} * p.top_k + i] = static_cast<int32_t>(best[i]);
    t.slot<float>(3)[size_t{t.x} * p.top_k + i] = weights[i] / sum;
  }
}

void expert_sort(const Task& t) {
  const auto& p = t.get<RouterParams>();
  const uint32_t n_pairs = t.slot<Counts>(0)->n[kCountRows] * p.top_k;
  const int32_t* ids = t.slot<const int32_t>(1);
  int32_t *active = t.slot<int32_t>(2), *starts = t.slot<int32_t>(3), *pairs = t.slot<int32_t>(4);
  auto* next = reinterpret_cast<int32_t*>(t.scratch);
  std::memset(next, 0, p.n_experts * sizeof *next);
  for (uint32_t i = 0; i < n_pairs; ++i) ++next[ids[i]];
  int32_t n_active = 0, at = 0;
  for (uint32_t e = 0; e < p.n_experts; ++e) {
    const int32_t n = next[e];
    next[e] = at;
    if (n == 0) continue;
    starts[n_active] = at;
    active[1 + n_active++] = static_cast<int32_t>(e);
    at += n;
  }
  active[0] = n_active;
  starts[n_active] = at;
  for (uint32_t i = 0; i < n_pairs; ++i) pairs[next[ids[i]]++] = static_cast<int32_t>(i);
}

constexpr uint32_t kGluColumns = 64;

struct GluScratch {
  PanelScratch panel;
  float gate[kPanelRows][kGluColumns];
};

// act[r] = silu(gate x_r) * (up x_r) for columns col0 .. col0 + n.
template <class T>
void glu_columns(const Matrix& gate, const Matrix& up, uint32_t col0, uint32_t n, Rows<T> x, uint32_t n_rows,
                 uint32_t next_col, T* act, size_t width, GluScratch& s) {
  for (uint32_t r0 = 0; r0 < n_rows; r0 += kPanelRows) {
    const uint32_t rows = n_rows - r0 < kPanelRows ? n_rows - r0 : kPanelRows;
    const Rows<T> some =
        x.index ? Rows<T>{x.base, x.stride, x.index + r0} : Rows<T>{x.base + r0 * x.stride, x.stride};
    product(gate, col0, n, some, rows, up.from_row(col0), s.panel,
            [&](uint32_t r, const float* y) { std::memcpy(s.gate[r], y, n * sizeof(float)); });
    product(up, col0, n, some, rows, gate.from_row(next_col), s.panel, [&](uint32_t r, const float* y) {
      T* out = act + (size_t{r0} + r) * width + col0;
      for (uint32_t c = 0; c < n; ++c) put(out + c, silu(s.gate[r][c]) * y[c]);
    });
  }
}

template <class T>
void expert_gate_up(const Task& t) {
  const auto& p = t.get<GluParams>();
  const int32_t* active = t.slot<const int32_t>(1);
  if (int32_t(t.y) >= active[0]) return;
  const size_t expert = static_cast<size_t>(active[1 + t.y]);
  const int32_t start = t.slot<const int32_t>(2)[t.y];
  const auto n_rows = static_cast<uint32_t>(t.slot<const int32_t>(2)[t.y + 1] - start);
  const auto weights = [&](int slot) {
    return matrix(t.slots[slot], t.slots[slot + 1], t.slots[slot + 2], p.format, p.n_in)
        .of_batch(expert, p.codes_stride, p.scales_stride);
  };
  auto& s = product_scratch<GluScratch>(t);
  auto* index = reinterpret_cast<int32_t*>(&s + 1);
  for (uint32_t i = 0; i < n_rows; ++i)
    index[i] = t.slot<const int32_t>(3)[start + i] / static_cast<int32_t>(p.top_k);
  const uint32_t col0 = t.x * kGluColumns, n = p.width - col0 < kGluColumns ? p.width - col0 : kGluColumns;
  glu_columns(weights(5), weights(8), col0, n, Rows<T>{t.slot<const T>(4), p.n_in, index}, n_rows,
              t.next_x() * kGluColumns, t.slot<T>(11) + static_cast<size_t>(start) * p.width, p.width, s);
}

template <class T>
void glu(const Task& t) {
  const auto& p = t.get<GluParams>();
  const uint32_t n_rows = t.slot<Counts>(0)->n[kCountRows];
  if (n_rows == 0) return;
  const uint32_t col0 = t.x * kGluColumns, n = p.width - col0 < kGluColumns ? p.width - col0 : kGluColumns;
  glu_columns(matrix(t.slots[2], t.slots[3], t.slots[4], p.format, p.n_in),
              matrix(t.slots[5], t.slots[6], t.slots[7], p.format, p.n_in), col0, n,
              Rows<T>{t.slot<const T>(1), p.n_in}, n_rows, t.next_x() * kGluColumns, t.slot<T>(8), p.width,
              product_scratch<GluScratch>(t));
}

constexpr uint32_t kDownColumns = 64;

template <class T>
void expert_down(const Task& t) {
  const auto& p = t.get<ExpertDownParams>();
  const uint32_t n_rows = t.slot<Counts>(0)->n[kCountRows];
  if (n_rows == 0) return;
  const uint32_t d0 = t.x * kDownColumns, n = p.hidden - d0 < kDownColumns ? p.hidden - d0 : kDownColumns;
  auto& s = product_scratch(t);
  auto* sums = reinterpret_cast<float*>(&s + 1);  // [n_rows][kDownColumns]
  std::memset(sums, 0, size_t{n_rows} * kDownColumns * sizeof(float));
  const auto add = [&](uint32_t row, float weight, const float* y) {
    float* sum = sums + size_t{row} * kDownColumns;
    for (uint32_t c = 0; c < n; ++c) sum[c] = scalar_fma(weight, y[c], sum[c]);
  };
  const Matrix down = matrix(t.slots[6], t.slots[7], t.slots[8], p.format, p.width);
  const Matrix shared = matrix(t.slots[10], t.slots[11], t.slots[12], p.shared_format, p.shared_width);
  const int32_t* active = t.slot<const int32_t>(1);
  const auto expert = [&](int32_t a) {
    return down.of_batch(static_cast<size_t>(active[1 + a]), p.codes_stride, p.scales_stride);
  };
  for (int32_t a = 0; a < active[0]; ++a) {
    const int32_t start = t.slot<const int32_t>(2)[a], end = t.slot<const int32_t>(2)[a + 1];
    const Rows<T> act = {t.slot<const T>(5) + static_cast<size_t>(start) * p.width, p.width};
    const Matrix ahead = (a + 1 < active[0] ? expert(a + 1) : shared).from_row(d0);
    product(
        expert(a), d0, n, act, static_cast<uint32_t>(end - start), ahead, s, [&](uint32_t i, const float* y) {
          const auto pair = static_cast<uint32_t>(t.slot<const int32_t>(3)[start + static_cast<int32_t>(i)]);
          add(pair / p.top_k, t.slot<const float>(4)[pair], y);
        });
  }
  product(shared, d0, n, Rows<T>{t.slot<const T>(9), p.shared_width}, n_rows,
          expert(0).from_row(t.next_x() * kDownColumns), s,
          [&](uint32_t r, const float* y) { add(r, t.slot<const float>(13)[r], y); });
  for (uint32_t r = 0; r < n_rows; ++r) {
    for (uint32_t h = 0; h < p.hc_count; ++h) {
      const float gate = t.slot<const float>(14)[size_t{r} * p.hc_count + h];
      T* stream = t.slot<T>(15) + (size_t{r} * p.hc_count + h) * p.hidden + d0;
      for (uint32_t c = 0; c < n; ++c) {
        put(stream + c,
            scalar_fma(gate, rounded<T>(sums[size_t{r} * kDownColumns + c]), to_float(stream[c])));
      }
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {"router_topk", router_topk, 1},
    {"expert_sort", expert_sort, 1},
    {"expert_gate_up_bf16", expert_gate_up<bfloat16>, kGluColumns},
    {"expert_gate_up_f32", expert_gate_up<float>, kGluColumns},
    {"glu_bf16", glu<bfloat16>, kGluColumns},
    {"glu_f32", glu<float>, kGluColumns},
    {"expert_down_bf16", expert_down<bfloat16>, kDownColumns},
    {"expert_down_f32", expert_down<float>, kDownColumns},
};

}  // namespace

KernelList expert_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
