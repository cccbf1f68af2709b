// slice_attention: patches of the vision tower attend to all patches of their slice. Source:
// tests/support/reference/vision.py.
//
// The slice's keys are cut into spans of kSliceSpan from its first one. A span gives a partial softmax, its
// keys by ascending position: a score is one chain of fma over the head's dimensions, the sum of weights a
// chain a lane and the tree of reduce_add, a value one chain over keys. Parts merge in ascending order:
//   m' = max(m, m_s), l' = l * e^(m - m') + l_s * e^(m_s - m'), likewise the weighted values.
// A tile's patches share the loads of keys and values and nothing else.
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tables.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kTilePatches = 64;
constexpr uint32_t kTogether = 4;  // patches whose sums are in registers at once
constexpr uint32_t kSpan = kSliceSpan, kMaxDim = kMaxSliceDim;
constexpr float kInfinity = __builtin_huge_valf();

struct SliceScratch {
  alignas(64) float keys[kMaxDim][kSpan];  // of a span, by dimension
  alignas(64) float values[kSpan][kMaxDim];
  alignas(64) float weights[kTogether][kSpan];
  alignas(64) float totals[kTilePatches][kMaxDim];
  float max[kTilePatches], sum[kTilePatches];
};
static_assert(sizeof(SliceScratch) <= kScratchBytes);

// Keys and values of a span, behind them zeros up to a whole vector of values and two of keys.
void load_span(const float* k, const float* v, size_t stride, uint32_t n, uint32_t dim, SliceScratch& s) {
  const uint32_t n_whole = (n + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
  const uint32_t wide = (dim + kLanes - 1) / kLanes * kLanes;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t d = 0; d < dim; ++d) s.keys[d][i] = k[i * stride + d];
    std::memcpy(s.values[i], v + i * stride, dim * sizeof(float));
    for (uint32_t d = dim; d < wide; ++d) s.values[i][d] = 0;
  }
  for (uint32_t d = 0; d < dim; ++d) {
    for (uint32_t i = n; i < n_whole; ++i) s.keys[d][i] = 0;
  }
}

// Weights of kR patches for a span, and their largest score and sum.
template <uint32_t kR>
void weigh(const float* q, size_t stride, uint32_t dim, uint32_t n, float scale, SliceScratch& s, float* max,
           float* sum) {
  for (uint32_t i = 0; i < n; i += 2 * kLanes) {
    F acc[kR][2];
    for (uint32_t r = 0; r < kR; ++r) acc[r][0] = acc[r][1] = zero();
    for (uint32_t d = 0; d < dim; ++d) {
      const F a = load(s.keys[d] + i), b = load(s.keys[d] + i + kLanes);
      for (uint32_t r = 0; r < kR; ++r) {
        const F x = set1(q[r * stride + d]);
        acc[r][0] = fma(x, a, acc[r][0]);
        acc[r][1] = fma(x, b, acc[r][1]);
      }
    }
    for (uint32_t r = 0; r < kR; ++r) {
      store(s.weights[r] + i, acc[r][0] * set1(scale));
      store(s.weights[r] + i + kLanes, acc[r][1] * set1(scale));
    }
  }
  for (uint32_t r = 0; r < kR; ++r) {
    float* w = s.weights[r];
    const uint32_t end = (n + kLanes - 1) / kLanes * kLanes;
    for (uint32_t i = n; i < end; ++i) w[i] = -kInfinity;
    F most = set1(-kInfinity);
    for (uint32_t i = 0; i < end; i += kLanes) most = flashnext::cpu::FLASHNEXT_PATH::max(most, load(w + i));
    float lanes[kLanes];
    store(lanes, most);
    max[r] = lanes[0];
    for (int l = 1; l < kLanes; ++l) max[r] = lanes[l] > max[r] ? lanes[l] : max[r];
    // Where all keys score minus infinity they weigh nothing beside those of other spans.
    const F base = set1(max[r] == -kInfinity ? 0.0f : max[r]);
    F all = zero();
    for (uint32_t i = 0; i < end; i += kLanes) {
      const F e = exp(load(w + i) - base);
      store(w + i, e);
      all = all + e;
    }
    sum[r] = reduce_add(all);
  }
}

// Adds the weighted values of a span, kV vectors of them from dimension d on, to the totals of kR patches.
template <uint32_t kR, uint32_t kV>
void add_values(uint32_t n, uint32_t d, const float* before, const float* now, SliceScratch& s,
                float (*totals)[kMaxDim]) {
  F acc[kR][kV];
  for (uint32_t r = 0; r < kR; ++r) {
    for (uint32_t v = 0; v < kV; ++v) acc[r][v] = zero();
  }
  for (uint32_t i = 0; i < n; ++i) {
    F value[kV];
    for (uint32_t v = 0; v < kV; ++v) value[v] = load(s.values[i] + d + v * kLanes);
    for (uint32_t r = 0; r < kR; ++r) {
      const F w = set1(s.weights[r][i]);
      for (uint32_t v = 0; v < kV; ++v) acc[r][v] = fma(w, value[v], acc[r][v]);
    }
  }
  for (uint32_t r = 0; r < kR; ++r) {
    for (uint32_t v = 0; v < kV; ++v) {
      float* total = totals[r] + d + v * kLanes;
      store(total, fma(acc[r][v], set1(now[r]), load(total) * set1(before[r])));
    }
  }
}

// A span for patches first .. first + kR - 1 of a tile.
template <uint32_t kR>
void attend(const float* q, size_t stride, uint32_t dim, uint32_t n, float scale, uint32_t first,
            SliceScratch& s) {
  float max[kR], sum[kR], before[kR], now[kR];
  weigh<kR>(q + first * stride, stride, dim, n, scale, s, max, sum);
  for (uint32_t r = 0; r < kR; ++r) {
    float &total_max = s.max[first + r], &total_sum = s.sum[first + r];
    const float most = total_max > max[r] ? total_max : max[r], base = most == -kInfinity ? 0.0f : most;
    before[r] = exp(total_max - base);
    now[r] = exp(max[r] - base);
    total_max = most;
    total_sum = scalar_fma(sum[r], now[r], total_sum * before[r]);
  }
  uint32_t d = 0;
  for (; d + 3 * kLanes <= dim; d += 3 * kLanes) add_values<kR, 3>(n, d, before, now, s, s.totals + first);
  for (; d < dim; d += kLanes) add_values<kR, 1>(n, d, before, now, s, s.totals + first);
}

void slice_attention(const Task& t) {
  const auto& p = t.get<SliceAttentionParams>();
  const SliceTile& tile = t.slot<const SliceTile>(0)[t.x];
  auto& s = *reinterpret_cast<SliceScratch*>(t.scratch);
  const uint32_t dim = p.head_dim;
  const size_t width = size_t{p.n_heads} * dim, stride = 3 * width;
  const float* head = t.slot<const float>(1) + size_t{t.y} * dim;
  const float* q = head + static_cast<size_t>(tile.first_row) * stride;
  const float* keys = head + static_cast<size_t>(tile.first_key) * stride + width;
  const auto n_rows = static_cast<uint32_t>(tile.n_rows), n_keys = static_cast<uint32_t>(tile.n_keys);
  for (uint32_t r = 0; r < n_rows; ++r) {
    s.max[r] = -kInfinity;
    s.sum[r] = 0;
    std::memset(s.totals[r], 0, sizeof s.totals[r]);
  }
  for (uint32_t from = 0; from < n_keys; from += kSpan) {
    const uint32_t n = n_keys - from < kSpan ? n_keys - from : kSpan;
    load_span(keys + from * stride, keys + from * stride + width, stride, n, dim, s);
    uint32_t r = 0;
    for (; r + kTogether <= n_rows; r += kTogether) attend<kTogether>(q, stride, dim, n, p.scale, r, s);
    for (; r < n_rows; ++r) attend<1>(q, stride, dim, n, p.scale, r, s);
  }
  for (uint32_t r = 0; r < n_rows; ++r) {
    const size_t row = static_cast<size_t>(tile.first_row) - p.first_row + r;
    float* out = t.slot<float>(2) + row * width + size_t{t.y} * dim;
    for (uint32_t d = 0; d < dim; ++d) out[d] = s.totals[r][d] / s.sum[r];
  }
}

constexpr KernelEntry kEntries[] = {{"slice_attention", slice_attention, kTilePatches}};

}  // namespace

KernelList slice_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
