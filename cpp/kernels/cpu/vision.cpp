// layer_norm, linear, patch_place, patch_turn: the vision tower without its attention. Source:
// tests/support/reference/vision.py.
//
// All of it is float32 with both activation types. Order of sums: linear as panel.h, the bias last; mean and
// variance a chain a lane, then the tree of reduce_add.
#include <math.h>

#include "kernels/cpu/gelu.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

void layer_norm(const Task& t) {
  const auto& p = t.get<LayerNormParams>();
  const uint32_t n = p.width;
  const float *x = t.slot<const float>(0) + size_t{t.x} * n, *weight = t.slot<const float>(1),
              *bias = t.slot<const float>(2);
  float* out = t.slot<float>(3) + size_t{t.x} * n;
  F sum = zero();
  for (uint32_t i = 0; i < n; i += kLanes) sum = sum + load(x + i);
  const F mean = set1(reduce_add(sum) / static_cast<float>(n));
  F square = zero();
  for (uint32_t i = 0; i < n; i += kLanes) {
    const F d = load(x + i) - mean;
    square = fma(d, d, square);
  }
  const F inverse = set1(inverse_rms(reduce_add(square), n, p.eps));
  for (uint32_t i = 0; i < n; i += kLanes) {
    store(out + i, fma((load(x + i) - mean) * inverse, load(weight + i), load(bias + i)));
  }
}

// Calls each(i, x) for all n values of y + bias, several at a time where `each` takes a vector.
template <class Each>
void with_bias(const float* y, const float* bias, uint32_t n, Each each) {
  const uint32_t whole = n / kLanes * kLanes;
  for (uint32_t i = 0; i < whole; i += kLanes) each(i, load(y + i) + load(bias + i));
  for (uint32_t i = whole; i < n; ++i) each(i, y[i] + bias[i]);
}
inline void keep(float* p, F x) { store(p, x); }
inline void keep(float* p, float x) { *p = x; }
inline F there(const float* p, F) { return load(p); }
inline float there(const float* p, float) { return *p; }

void linear(const Task& t) {
  const auto& p = t.get<LinearParams>();
  const Matrix w = matrix(t.slots[1], nullptr, nullptr, {p.bits, 0}, p.n_in);
  const uint32_t col0 = t.x * kPanelColumns;
  const uint32_t n = p.n_out - col0 < kPanelColumns ? p.n_out - col0 : kPanelColumns;
  const float* bias = t.slot<const float>(2) + col0;
  const auto finish = [&](auto&& emit) {
    product_floats(w, col0, n, Rows<float>{t.slot<const float>(0), p.n_in}, p.n_rows, product_scratch(t).f,
                   [&](uint32_t r, const float* y) {
                     float* out = t.slot<float>(3) + size_t{r} * p.n_out + col0;
                     with_bias(y, bias, n, [&](uint32_t i, auto x) { emit(out + i, x); });
                   });
  };
  switch (p.finish) {
    case kLinearStore: return finish([](float* out, auto x) { keep(out, x); });
    case kLinearGeluTanh: return finish([](float* out, auto x) { keep(out, gelu_tanh(x)); });
    case kLinearGelu: return finish([](float* out, auto x) { keep(out, gelu(x)); });
    default: return finish([](float* out, auto x) { keep(out, there(out, x) + x); });
  }
}

// Where the i-th of n patches lies on an axis of the table: between places low and high, so far from low.
struct Between {
  size_t low, high;
  float far;

  Between(int32_t i, int32_t n, uint32_t side) {
    const uint32_t steps = n > 1 ? static_cast<uint32_t>(n - 1) : 1,
                   at = static_cast<uint32_t>(i) * (side - 1);
    low = at / steps;
    high = low + 1 < side ? low + 1 : low;
    far = static_cast<float>(at % steps) / static_cast<float>(steps);
  }
};

void patch_place(const Task& t) {
  const auto& p = t.get<PatchPlaceParams>();
  const Patch& patch = t.slot<const Patch>(0)[t.x];
  const float *table = t.slot<const float>(1), *inv_freq = t.slot<const float>(2);
  float *x = t.slot<float>(3) + size_t{t.x} * p.width, *cos = t.slot<float>(4) + size_t{t.x} * 2 * p.quarter,
        *sin = t.slot<float>(5) + size_t{t.x} * 2 * p.quarter;
  const Between row(patch.row, patch.n_rows, p.side), col(patch.col, patch.n_cols, p.side);
  const auto place = [&](size_t r, size_t c) { return table + (r * p.side + c) * p.width; };
  const float *a = place(row.low, col.low), *b = place(row.low, col.high), *c = place(row.high, col.low),
              *d = place(row.high, col.high);
  const F down = set1(row.far), right = set1(col.far), up = set1(1.0f) - down, left = set1(1.0f) - right;
  for (uint32_t i = 0; i < p.width; i += kLanes) {
    const F above = fma(right, load(b + i), left * load(a + i)),
            below = fma(right, load(d + i), left * load(c + i));
    store(x + i, load(x + i) + fma(down, below, up * above));
  }
  for (uint32_t j = 0; j < 2 * p.quarter; ++j) {
    const int32_t at = j < p.quarter ? patch.row : patch.col;
    const double angle = static_cast<float>(at) * inv_freq[j % p.quarter];
    cos[j] = static_cast<float>(::cos(angle));
    sin[j] = static_cast<float>(::sin(angle));
  }
}

void patch_turn(const Task& t) {
  const auto& p = t.get<PatchTurnParams>();
  const float *cos = t.slot<const float>(0) + size_t{t.x} * p.half_dim,
              *sin = t.slot<const float>(1) + size_t{t.x} * p.half_dim;
  float* qkv = t.slot<float>(2) + size_t{t.x} * p.n_heads * p.half_dim * 6;
  for (uint32_t h = 0; h < 2 * p.n_heads; ++h) rotate(qkv + size_t{h} * 2 * p.half_dim, cos, sin, p.half_dim);
}

constexpr KernelEntry kEntries[] = {
    {"layer_norm", layer_norm, 1},
    {"linear", linear, kPanelColumns},
    {"patch_place", patch_place, 1},
    {"patch_turn", patch_turn, 1},
};

}  // namespace

KernelList vision_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
