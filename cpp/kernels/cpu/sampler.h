// What the sampler's kernels share: a row of logits under its reply's rules, its blocks, and exact exp.
#pragma once

#include <math.h>

#include "base/exact_math.h"
#include "device/cpu/task.h"
#include "kernels/cpu/simd.h"
#include "metal/params.h"

namespace flashnext::cpu::FLASHNEXT_PATH {

constexpr uint32_t kBlock = kSamplerBlock;
constexpr uint32_t kTileBlocks =
    8;  // blocks of a grid step: as many chains of sums as hide an addition's latency

#if defined(__AVX2__)
inline F exact_fma(F a, F b, F c) { return fma(a, b, c); }

// The low halves of 64-bit products.
inline __m256i multiply(__m256i a, uint64_t b) {
  const __m256i low = _mm256_set1_epi64x(static_cast<int64_t>(b));
  const __m256i high = _mm256_set1_epi64x(static_cast<int64_t>(b >> 32));
  const __m256i cross =
      _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), low), _mm256_mul_epu32(a, high));
  return _mm256_add_epi64(_mm256_mul_epu32(a, low), _mm256_slli_epi64(cross, 32));
}
// splitmix64 of four values, its upper 23 bits inverted.
inline __m256i inverted_hash(__m256i x) {
  x = _mm256_add_epi64(x, _mm256_set1_epi64x(static_cast<int64_t>(0x9e3779b97f4a7c15u)));
  x = multiply(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), 0xbf58476d1ce4e5b9u);
  x = multiply(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), 0x94d049bb133111ebu);
  x = _mm256_xor_si256(x, _mm256_srli_epi64(x, 31));
  return _mm256_srli_epi64(_mm256_xor_si256(x, _mm256_set1_epi64x(-1)), 41);
}
// 1 - u of the noise of ids id .. id + kLanes - 1.
inline F rarity(uint64_t key, uint32_t id) {
  const __m256i k = _mm256_set1_epi64x(static_cast<int64_t>(key));
  const __m256i ids = _mm256_add_epi64(_mm256_set1_epi64x(id), _mm256_setr_epi64x(0, 1, 2, 3));
  const __m256i a = inverted_hash(_mm256_xor_si256(k, ids));
  const __m256i b = inverted_hash(_mm256_xor_si256(k, _mm256_add_epi64(ids, _mm256_set1_epi64x(4))));
  const __m256i mixed = _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b),
                                                              0x88));  // low halves: a a b b a a b b
  const F n = {_mm256_cvtepi32_ps(_mm256_permute4x64_epi64(mixed, 0xd8))};
  return (n + set1(0.5f)) * set1(0x1p-23f);
}
#else
inline F exact_fma(F a, F b, F c) {  // rounds once, unlike this path's fma
  F r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = ::fmaf(a.v[i], b.v[i], c.v[i]);
  return r;
}

// 1 - u of the noise of ids id .. id + kLanes - 1.
inline F rarity(uint64_t key, uint32_t id) {
  F r;
  for (int i = 0; i < kLanes; ++i) {
    const uint64_t h = ~splitmix64(key ^ (id + static_cast<uint32_t>(i))) >> 41;
    r.v[i] = (static_cast<float>(static_cast<int32_t>(h)) + 0.5f) * 0x1p-23f;
  }
  return r;
}
#endif

using flashnext::exact_exp;
// exact_exp(float) in every lane, for x <= 0; 0 for NaN.
inline F exact_exp(F x) {
  const F bounded = max(x, set1(-87.0f));
  const F n = round(bounded * set1(1.44269504088896341f));
  F r = exact_fma(n, set1(-0.693145751953125f), bounded);
  r = exact_fma(n, set1(-1.42860682030941723212e-6f), r);
  F p = set1(1.9841270e-4f);
  p = exact_fma(p, r, set1(1.3888889e-3f));
  p = exact_fma(p, r, set1(8.3333333e-3f));
  p = exact_fma(p, r, set1(4.1666667e-2f));
  p = exact_fma(p, r, set1(1.6666667e-1f));
  p = exact_fma(p, r, set1(0.5f));
  p = exact_fma(p, r, set1(1.0f));
  p = exact_fma(p, r, set1(1.0f));
  return keep_ge(x, set1(-87.0f), p * pow2(n));
}

constexpr uint32_t kAllLanes = (1u << kLanes) - 1;

inline float negative_infinity() { return std::bit_cast<float>(0xff800000u); }
inline float quiet_nan() { return std::bit_cast<float>(0x7fc00000u); }

// A row of a draw, and what its reply's rules need.
struct DrawnRow {
  const float* logits;
  uint32_t n_valid, n_blocks;
  const ReplyState* rules;
  const BiasEntry* bias;
  const int32_t *prompt, *reply;  // how often ids occur; null where nothing is penalized
  const int32_t* uncounted;       // further reply tokens
  int32_t n_uncounted;
  int64_t position;
  const uint32_t* mask;  // ids that may be drawn; null for all

  bool has_rules() const { return rules->n_bias > 0 || reply || mask; }
};

inline DrawnRow drawn_row(const Task& t, uint32_t row) {
  const auto& p = t.get<DrawParams>();
  const DrawRow& draw = t.slot<const DrawRow>(1)[row];
  DrawnRow r = {};
  r.logits = t.slot<const float>(2) + size_t{row} * p.vocab;
  r.n_valid = p.n_valid;
  r.n_blocks = (p.n_valid + kBlock - 1) / kBlock;
  r.rules = reinterpret_cast<const ReplyState*>(draw.reply);
  r.position = draw.position;
  const ReplyState& s = *r.rules;
  r.bias = reinterpret_cast<const BiasEntry*>(s.bias);
  if (s.counts && (s.presence != 0 || s.frequency != 0 || s.repetition != 1)) {
    r.prompt = reinterpret_cast<const int32_t*>(s.counts);
    r.reply = r.prompt + p.n_valid;
    r.uncounted = reinterpret_cast<const int32_t*>(s.text) + draw.n_counted;
    r.n_uncounted = draw.position - draw.n_counted;
  }
  if (s.masks && p.masked) {
    const uint32_t row = static_cast<uint32_t>(draw.position) % kMaxWindow;
    r.mask = reinterpret_cast<const uint32_t*>(s.masks) + size_t{row} * ((p.n_valid + 31) / 32);
  }
  return r;
}

// A number of ids of a block: a float for each, behind them NaN up to a whole vector.
struct BlockValues {
  const float* x;
  uint32_t first, n;  // ids first .. first + n - 1

  uint32_t padded() const { return (n + kLanes - 1) / kLanes * kLanes; }
};

inline BlockValues block_of(const DrawnRow& r, uint32_t block) {
  const uint32_t first = block * kBlock, rest = r.n_valid - first;
  return {r.logits + first, first, rest < kBlock ? rest : kBlock};
}

// A block's logits in `room`, float[kBlock].
inline BlockValues copied_logits(const DrawnRow& r, uint32_t block, float* room) {
  BlockValues v = block_of(r, block);
  std::memcpy(room, v.x, v.n * sizeof *room);
  for (uint32_t i = v.n; i < v.padded(); ++i) room[i] = quiet_nan();
  v.x = room;
  return v;
}

// A block's logits, where they are or in `room`.
inline BlockValues block_logits(const DrawnRow& r, uint32_t block, float* room) {
  const BlockValues v = block_of(r, block);
  return v.n % kLanes ? copied_logits(r, block, room) : v;
}

inline float penalize(const ReplyState& s, float x, int32_t n_prompt, int32_t n_reply) {
  if (n_prompt || n_reply) x = x > 0 ? x / s.repetition : x * s.repetition;
  if (n_reply) x = ::fmaf(-s.frequency, static_cast<float>(n_reply), x) - s.presence;
  return x;
}

// The first bias entry of an id at or above `id`.
inline int32_t bias_from(const DrawnRow& r, uint32_t id) {
  int32_t low = 0, high = r.rules->n_bias;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (static_cast<uint32_t>(r.bias[middle].id) < id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

constexpr uint32_t kGroup = kBlock / 32;  // ids of a bit of BlockMax::changed

// Makes NaN of the ids that the mask leaves out, of a block's `groups`; returns the groups that have any.
inline uint32_t apply_mask(const DrawnRow& r, uint32_t first, uint32_t n, uint32_t groups, float* x) {
  static_assert(kGroup == 32, "a word of a mask is a group");
  uint32_t touched = 0;
  for (; groups; groups &= groups - 1) {
    const auto group = static_cast<uint32_t>(__builtin_ctz(groups));
    const uint32_t begin = group * kGroup;
    if (begin >= n) break;
    const uint32_t size = n - begin < kGroup ? n - begin : kGroup;
    const uint32_t allowed = r.mask[(first + begin) / kGroup] | static_cast<uint32_t>(~uint64_t{0} << size);
    if (allowed == ~0u) continue;
    touched |= 1u << group;
    for (uint32_t i = 0; i < size; ++i) x[begin + i] = allowed >> i & 1 ? x[begin + i] : quiet_nan();
  }
  return touched;
}

// Applies bias and penalties to the ids first .. first + n - 1 of a block in x; returns the groups of ids
// that they apply to. Counts are looked at in `groups` alone.
inline uint32_t apply_bias_and_penalties(const DrawnRow& r, uint32_t first, uint32_t n, uint32_t groups,
                                         float* x) {
  const ReplyState& s = *r.rules;
  uint32_t touched = 0;
  for (int32_t i = bias_from(r, first); i < s.n_bias; ++i) {
    const uint32_t at = static_cast<uint32_t>(r.bias[i].id) - first;
    if (at >= n) break;
    x[at] += r.bias[i].value;
    touched |= 1u << at / kGroup;
  }
  if (!r.reply) return touched;
  const int32_t *prompt = r.prompt + first, *reply = r.reply + first;
  for (; groups; groups &= groups - 1) {
    const auto group = static_cast<uint32_t>(__builtin_ctz(groups));
    const uint32_t begin = group * kGroup, end = begin + kGroup < n ? begin + kGroup : n;
    int32_t any = 0;
    for (uint32_t i = begin; i < end; ++i) any |= prompt[i] | reply[i];
    if (!any) continue;
    touched |= 1u << group;
    for (uint32_t i = begin; i < end; ++i) x[i] = penalize(s, x[i], prompt[i], reply[i]);
  }
  for (int32_t i = 0; i < r.n_uncounted; ++i) {
    const auto id = static_cast<uint32_t>(r.uncounted[i]);
    const uint32_t at = id - first;
    if (at >= n) continue;
    int32_t times = 0;
    for (int32_t j = 0; j < r.n_uncounted; ++j) times += r.uncounted[j] == r.uncounted[i];
    float value = r.logits[id];  // from the start: its penalty counts all of its occurrences at once
    for (int32_t j = bias_from(r, id); j < s.n_bias && static_cast<uint32_t>(r.bias[j].id) == id; ++j) {
      value += r.bias[j].value;
    }
    x[at] = penalize(s, value, prompt[at], reply[at] + times);
    touched |= 1u << at / kGroup;
  }
  return touched;
}

// Bias and penalties, then the mask.
inline uint32_t apply_rules(const DrawnRow& r, uint32_t first, uint32_t n, uint32_t groups, float* x) {
  const uint32_t touched = apply_bias_and_penalties(r, first, n, groups, x);
  return r.mask ? touched | apply_mask(r, first, n, groups, x) : touched;
}

// A block's values, where the logits are or in `room`; `changed` as in its BlockMax.
inline BlockValues block_values(const DrawnRow& r, uint32_t block, uint32_t changed, float* room) {
  if (!changed) return block_logits(r, block, room);
  const BlockValues v = copied_logits(r, block, room);
  apply_rules(r, v.first, v.n, changed, room);
  return v;
}

// The largest of a row, from its blocks; the lowest id is sought in `block`, the first that has it.
struct RowMax {
  float max;
  uint32_t block;
  uint32_t numbers;  // ids that are not NaN, of logits or of values
};

inline RowMax row_max(const BlockMax* maxima, uint32_t n_blocks, bool of_logits) {
  RowMax best = {negative_infinity(), 0, 0};
  for (uint32_t b = 0; b < n_blocks; ++b) {
    const int32_t numbers = of_logits ? maxima[b].numbers : maxima[b].drawable;
    if (!numbers) continue;
    const float x = of_logits ? maxima[b].logit : maxima[b].value;
    if (best.numbers == 0 || x > best.max) {
      best.max = x;
      best.block = b;
    }
    best.numbers += static_cast<uint32_t>(numbers);
  }
  return best;
}

// The lowest id that has the block's largest value.
inline int32_t first_of(const BlockValues& v, float max) {
  uint32_t i = 0;
  for (; i < v.padded(); i += kLanes) {
    const uint32_t bits = ge_bits(load(v.x + i), set1(max));
    if (bits) return static_cast<int32_t>(v.first + i + static_cast<uint32_t>(__builtin_ctz(bits)));
  }
  return -1;
}

// Sums each of the n rows of `weights` float[n][kBlock], n <= kTileBlocks, by ascending id. Behind its ids a
// block holds zeros.
inline void sum_blocks(const float* weights, uint32_t n, float* sums) {
  const float* t[kTileBlocks];
  for (uint32_t b = 0; b < kTileBlocks; ++b) t[b] = weights + (b < n ? b : 0) * kBlock;
  float a0 = 0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0, a6 = 0, a7 = 0;
  for (uint32_t i = 0; i < kBlock; ++i) {
    a0 += t[0][i];
    a1 += t[1][i];
    a2 += t[2][i];
    a3 += t[3][i];
    a4 += t[4][i];
    a5 += t[5][i];
    a6 += t[6][i];
    a7 += t[7][i];
  }
  const float all[] = {a0, a1, a2, a3, a4, a5, a6, a7};
  for (uint32_t b = 0; b < n; ++b) sums[b] = all[b];
}

}  // namespace flashnext::cpu::FLASHNEXT_PATH
