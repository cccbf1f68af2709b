// index_pool, index_score, index_select: which blocks of positions a query reads. Source:
// tests/support/reference/decoder.py (`pool`, `select`).
//
//   pooled_c = rope(rms(round(mean of the block's raw keys)), position of the block's first row)
//   score_c = sum over index heads of max(0, <q_h, pooled_c>) / sqrt(index_dim)
//   the best `budget_blocks` complete blocks, ties to the lower id, listed by ascending id
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kMaxIndexDim = 512;

template <class T>
void index_pool(const Task& t) {
  const auto& p = t.get<IndexPoolParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const Row& row = t.slot<const Row>(2)[t.x];
  const int32_t ratio = static_cast<int32_t>(p.ratio);
  if ((row.position + 1) % ratio != 0) return;
  const Sequence& seq = t.slot<const Sequence>(1)[row.sequence];
  // A block never leaves its page: the ratio divides kPageTokens.
  const size_t first = static_cast<size_t>((row.position + 1 - ratio) % kPageTokens);
  const T* raw = in_page<T>(seq, row.position, p.raw_offset) + first * p.index_dim;
  float key[kMaxIndexDim], cos[kMaxIndexDim / 2], sin[kMaxIndexDim / 2];
  for (uint32_t i = 0; i < p.index_dim; i += kLanes) {
    F sum = zero();
    for (int32_t j = 0; j < ratio; ++j) sum = sum + load(raw + j * p.index_dim + i);
    store(key + i, sum / set1(static_cast<float>(ratio)));
  }
  for (uint32_t i = 0; i < p.index_dim; ++i) key[i] = rounded<T>(key[i]);
  rms_norm(key, t.slot<const float>(3), p.index_dim, p.eps, key);
  rope_row(in_page<int32_t>(seq, row.position, p.rotary_offset) + first * 3, t.slot<const float>(4),
           p.half_dim, p.section, p.attention_factor, cos, sin);
  rotate(key, cos, sin, p.half_dim);
  T* out = in_page<T>(seq, row.position, p.pooled_offset) + first / p.ratio * p.index_dim;
  for (uint32_t i = 0; i < p.index_dim; i += kLanes) store(out + i, load(key + i));
}

constexpr uint32_t kScoreBlocks = 256;

template <class T>
void index_score(const Task& t) {
  const auto& p = t.get<IndexScoreParams>();
  const uint32_t r = p.first_row + t.y;
  if (int32_t(r) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const Row& row = t.slot<const Row>(2)[r];
  const uint32_t n_blocks = static_cast<uint32_t>(row.position + 1) / p.ratio;
  const uint32_t first = t.x * kScoreBlocks;
  if (n_blocks <= p.budget_blocks || first >= n_blocks) return;
  const uint32_t end = first + kScoreBlocks < n_blocks ? first + kScoreBlocks : n_blocks;
  const Sequence& seq = t.slot<const Sequence>(1)[row.sequence];
  const size_t width = size_t{p.index_n_heads} * p.index_dim;
  auto* q = reinterpret_cast<float*>(t.scratch);
  to_floats(t.slot<const T>(3) + r * width, static_cast<uint32_t>(width), q);
  const float scale = 1.0f / ::sqrtf(static_cast<float>(p.index_dim));
  float* scores = t.slot<float>(4) + size_t{t.y} * p.stride;
  const uint32_t in_page_blocks = kPageTokens / p.ratio;
  for (uint32_t b = first; b < end; ++b) {
    const T* key = in_page<T>(seq, static_cast<int32_t>(b * p.ratio), p.pooled_offset) +
                   b % in_page_blocks * p.index_dim;
    float sum = 0;
    for (uint32_t h = 0; h < p.index_n_heads; ++h) {
      const float x = dot(key, q + h * p.index_dim, p.index_dim);
      sum += x < 0 ? 0.0f : x;  // NaN stays
    }
    scores[b] = sum * scale;
  }
}

// Larger scores have larger keys. Scores are never below zero; NaN of either sign counts as the largest.
inline uint32_t order(float score) {
  const uint32_t u = std::bit_cast<uint32_t>(score);
  return score != score ? 0xffffffffu : u & 0x80000000u ? 0u : u;
}

void index_select(const Task& t) {
  const auto& p = t.get<IndexSelectParams>();
  const uint32_t r = p.first_row + t.x;
  if (int32_t(r) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const uint32_t n_blocks = static_cast<uint32_t>(t.slot<const Row>(1)[r].position + 1) / p.ratio;
  int32_t* out = t.slot<int32_t>(3) + size_t{r} * p.budget_blocks;
  if (n_blocks <= p.budget_blocks) {
    for (uint32_t b = 0; b < n_blocks; ++b) out[b] = static_cast<int32_t>(b);
    t.slot<int32_t>(4)[r] = static_cast<int32_t>(n_blocks);
    return;
  }
  const float* scores = t.slot<const float>(2) + size_t{t.x} * p.stride;
  // The key of the last block taken, one byte of it at a time; `left` is how many are still to be taken among
  // equals.
  uint32_t key = 0, mask = 0, left = p.budget_blocks;
  for (int shift = 24; shift >= 0; shift -= 8) {
    uint32_t count[256] = {};
    for (uint32_t b = 0; b < n_blocks; ++b) {
      const uint32_t k = order(scores[b]);
      if ((k & mask) == key) ++count[k >> shift & 255];
    }
    uint32_t digit = 255;
    while (count[digit] < left) left -= count[digit--];
    key |= digit << shift;
    mask |= 255u << shift;
  }
  uint32_t n = 0;
  for (uint32_t b = 0; b < n_blocks && n < p.budget_blocks; ++b) {
    const uint32_t k = order(scores[b]);
    if (k > key || (k == key && left > 0)) {
      left -= k == key;
      out[n++] = static_cast<int32_t>(b);
    }
  }
  t.slot<int32_t>(4)[r] = static_cast<int32_t>(n);
}

constexpr KernelEntry kEntries[] = {
    {"index_pool_bf16", index_pool<bfloat16>, 1},
    {"index_pool_f32", index_pool<float>, 1},
    {"index_score_bf16", index_score<bfloat16>, kScoreBlocks},
    {"index_score_f32", index_score<float>, kScoreBlocks},
    {"index_select", index_select, 1},
};

}  // namespace

KernelList index_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
