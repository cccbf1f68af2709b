// rope, attention_prep, attention: QSA without its indexer. Source: tests/support/reference, decoder.py
// (`sparse_attention`) and rope.py.
//
// A query reads the blocks it selected and the unfinished tail, by ascending position. Positions are cut into
// absolute spans of kAttentionSpan; a span gives a partial softmax (its keys by ascending position) and the
// parts merge in ascending order:
//   m' = max(m, m_s), l' = l * e^(m - m') + l_s * e^(m_s - m'), likewise the weighted values.
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kMaxHeadDim = 512;

void rope(const Task& t) {
  const auto& p = t.get<RopeParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const Row& row = t.slot<const Row>(2)[t.x];
  rope_row(row.rotary, t.slot<const float>(3), p.half_dim, p.section, p.attention_factor,
           t.slot<float>(4) + t.x * p.half_dim, t.slot<float>(5) + t.x * p.half_dim);
  const Sequence& seq = t.slot<const Sequence>(1)[row.sequence];
  std::memcpy(in_page<int32_t>(seq, row.position, p.rotary_offset) + row.position % kPageTokens * 3,
              row.rotary, sizeof row.rotary);
}

template <class T>
void attention_prep(const Task& t) {
  const auto& p = t.get<AttentionPrepParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const size_t r = t.x, hd = p.head_dim;
  const Row& row = t.slot<const Row>(2)[r];
  const Sequence& seq = t.slot<const Sequence>(1)[row.sequence];
  const size_t in_row = static_cast<size_t>(row.position % kPageTokens);
  const float *cos = t.slot<const float>(10) + r * p.half_dim,
              *sin = t.slot<const float>(11) + r * p.half_dim;
  float head[kMaxHeadDim];
  const auto prepare = [&](const T* x, const float* gamma, uint32_t n, T* out) {
    rms_norm(x, gamma, n, p.eps, head);
    rotate(head, cos, sin, p.half_dim);
    for (uint32_t i = 0; i < n; i += kLanes) store(out + i, load(head + i));
  };
  for (uint32_t h = 0; h < p.n_heads; ++h) {
    prepare(t.slot<const T>(3) + (r * p.n_heads + h) * 2 * hd, t.slot<const float>(7), p.head_dim,
            t.slot<T>(12) + (r * p.n_heads + h) * hd);
  }
  for (uint32_t h = 0; h < p.n_kv_heads; ++h) {
    const size_t from = (r * p.n_kv_heads + h) * hd, to = (h * size_t{kPageTokens} + in_row) * hd;
    prepare(t.slot<const T>(4) + from, t.slot<const float>(8), p.head_dim,
            in_page<T>(seq, row.position, p.k_offset) + to);
    std::memcpy(in_page<T>(seq, row.position, p.v_offset) + to, t.slot<const T>(5) + from, hd * sizeof(T));
  }
  const T* index = t.slot<const T>(6) + r * (p.index_n_heads + 1) * p.index_dim;
  for (uint32_t h = 0; h < p.index_n_heads; ++h) {
    prepare(index + h * p.index_dim, t.slot<const float>(9), p.index_dim,
            t.slot<T>(13) + (r * p.index_n_heads + h) * p.index_dim);
  }
  std::memcpy(in_page<T>(seq, row.position, p.raw_offset) + in_row * p.index_dim,
              index + p.index_n_heads * p.index_dim, p.index_dim * sizeof(T));
}

constexpr uint32_t kHeads = 4;  // heads of one kv head that share the loads of keys and values

// A partial softmax of kHeads heads.
struct Part {
  float max[kHeads], sum[kHeads];
  alignas(64) float values[kHeads][kMaxHeadDim];

  void clear(uint32_t heads, uint32_t dim) {
    for (uint32_t h = 0; h < heads; ++h) {
      max[h] = -__builtin_huge_valf();
      sum[h] = 0;
      std::memset(values[h], 0, dim * sizeof(float));
    }
  }

  void merge(const Part& part, uint32_t heads, uint32_t dim) {
    for (uint32_t h = 0; h < heads; ++h) {
      const float m = max[h] > part.max[h] ? max[h] : part.max[h];
      const float a = exp(max[h] - m), b = exp(part.max[h] - m);
      max[h] = m;
      sum[h] = sum[h] * a + part.sum[h] * b;
      for (uint32_t i = 0; i < dim; i += kLanes) {
        store(values[h] + i, fma(load(part.values[h] + i), set1(b), load(values[h] + i) * set1(a)));
      }
    }
  }
};

struct AttentionScratch {
  alignas(64) float q[kHeads][kMaxHeadDim];
  alignas(64) float scores[kHeads][kAttentionSpan];
  int32_t positions[kAttentionSpan];
  Part total, part;
};

// The partial softmax of `n` positions of one span.
template <class T>
void attend(const AttentionParams& p, const Sequence& seq, uint32_t kv_head, uint32_t heads, uint32_t n,
            AttentionScratch& s) {
  const uint32_t hd = p.head_dim;
  s.part.clear(heads, hd);
  const auto row = [&](uint32_t i, uint32_t offset) {
    const int32_t at = s.positions[i];
    return in_page<const T>(seq, at, offset) + (kv_head * size_t{kPageTokens} + at % kPageTokens) * hd;
  };
  for (uint32_t i = 0; i < n; ++i) {
    const T* k = row(i, p.k_offset);
    for (uint32_t h = 0; h < heads; ++h) {
      s.scores[h][i] = dot(k, s.q[h], hd) * p.scale;
      if (!(s.scores[h][i] <= s.part.max[h])) s.part.max[h] = s.scores[h][i];
    }
  }
  for (uint32_t h = 0; h < heads; ++h) {
    const uint32_t whole = n / kLanes * kLanes;
    for (uint32_t i = 0; i < whole; i += kLanes) {
      store(s.scores[h] + i, exp(load(s.scores[h] + i) - set1(s.part.max[h])));
    }
    for (uint32_t i = whole; i < n; ++i) s.scores[h][i] = exp(s.scores[h][i] - s.part.max[h]);
    for (uint32_t i = 0; i < n; ++i) s.part.sum[h] += s.scores[h][i];
  }
  for (uint32_t i = 0; i < n; ++i) {
    const T* v = row(i, p.v_offset);
    for (uint32_t h = 0; h < heads; ++h) {
      const F weight = set1(s.scores[h][i]);
      float* values = s.part.values[h];
      for (uint32_t d = 0; d < hd; d += kLanes) store(values + d, fma(weight, load(v + d), load(values + d)));
    }
  }
  s.total.merge(s.part, heads, hd);
}

// kReversed: rows of prompt chunks add the positions of each span from the last to the first, so that prompt
// and window rows have different bits on purpose.
template <class T, bool kReversed = false>
void attention(const Task& t) {
  const auto& p = t.get<AttentionParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const size_t r = t.x, hd = p.head_dim;
  const uint32_t group = p.n_heads / p.n_kv_heads, tiles = (group + kHeads - 1) / kHeads;
  const uint32_t kv_head = t.y / tiles, first = kv_head * group + t.y % tiles * kHeads;
  const uint32_t end = (kv_head + 1) * group, heads = end - first < kHeads ? end - first : kHeads;
  const Row& row = t.slot<const Row>(2)[r];
  const Sequence& seq = t.slot<const Sequence>(1)[row.sequence];
  auto& s = *reinterpret_cast<AttentionScratch*>(t.scratch);
  for (uint32_t h = 0; h < heads; ++h) {
    to_floats(t.slot<const T>(3) + (r * p.n_heads + first + h) * hd, p.head_dim, s.q[h]);
  }
  s.total.clear(heads, p.head_dim);
  uint32_t n = 0;
  int32_t span = 0;
  const auto attend_span = [&] {
    if (kReversed && !seq.is_window) {
      for (uint32_t i = 0, j = n; i + 1 < j; ++i) {
        const int32_t first = s.positions[i];
        s.positions[i] = s.positions[--j];
        s.positions[j] = first;
      }
    }
    attend<T>(p, seq, kv_head, heads, n, s);
  };
  const auto take = [&](int32_t position) {
    if (position / kAttentionSpan != span) {
      if (n) attend_span();
      n = 0;
      span = position / kAttentionSpan;
    }
    s.positions[n++] = position;
  };
  const int32_t* blocks = t.slot<const int32_t>(5) + r * p.budget_blocks;
  const int32_t ratio = static_cast<int32_t>(p.ratio);
  for (int32_t i = 0; i < t.slot<const int32_t>(6)[r]; ++i) {
    for (int32_t j = 0; j < ratio; ++j) take(blocks[i] * ratio + j);
  }
  for (int32_t at = (row.position + 1) / ratio * ratio; at <= row.position; ++at) take(at);
  attend_span();

  for (uint32_t h = 0; h < heads; ++h) {
    const T* gate = t.slot<const T>(4) + ((r * p.n_heads + first + h) * 2 + 1) * hd;
    T* out = t.slot<T>(7) + (r * p.n_heads + first + h) * hd;
    for (uint32_t d = 0; d < hd; d += kLanes) {
      store(out + d, load(s.total.values[h] + d) / set1(s.total.sum[h]) * sigmoid(load(gate + d)));
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {"rope", rope, 1},
    {"attention_prep_bf16", attention_prep<bfloat16>, 1},
    {"attention_prep_f32", attention_prep<float>, 1},
    {"attention_bf16", attention<bfloat16>, kHeads},
    {"attention_f32", attention<float>, kHeads},
    {"reversed_attention_bf16", attention<bfloat16, true>, kHeads},
    {"reversed_attention_f32", attention<float, true>, kHeads},
};

}  // namespace

KernelList attention_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
