// logprob_sums, token_logprobs: log-probabilities of the unmodified logits, as `logprobs` of rounds/sampler.h
// gives them; logits_hash: what tests compare logits by.
#include "kernels/cpu/descending.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

bool finite(float x) { return x - x == 0; }

void logprob_sums(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.y) >= t.slot<const Counts>(0)->n[p.count]) return;
  const DrawnRow r = drawn_row(t, t.y);
  const BlockMax* maxima = t.slot<const BlockMax>(3) + size_t{t.y} * r.n_blocks;
  const uint32_t first = t.x * kTileBlocks, rest = r.n_blocks - first;
  const uint32_t n = rest < kTileBlocks ? rest : kTileBlocks;
  float* out = t.slot<float>(4) + size_t{t.y} * r.n_blocks + first;
  std::memset(out, 0, n * sizeof *out);
  const RowMax best = row_max(maxima, r.n_blocks, true);
  if (r.rules->n_logprobs < 0 || !best.numbers || !finite(best.max)) return;
  auto* room = reinterpret_cast<float*>(t.scratch);
  float* terms = room + kBlock;
  for (uint32_t b = 0; b < n; ++b, terms += kBlock) {
    const BlockValues v = block_logits(r, first + b, room);
    for (uint32_t i = 0; i < v.padded(); i += kLanes) {
      store(terms + i, exact_exp(load(v.x + i) - set1(best.max)));
    }
    std::memset(terms + v.padded(), 0, (kBlock - v.padded()) * sizeof *terms);
  }
  sum_blocks(room + kBlock, n, out);
}

// The n likeliest ids, from those that reach the n-th largest of the blocks.
void list_top(const DrawnRow& r, const BlockMax* maxima, uint32_t n, Descending& c, float* room) {
  c.clear();
  for (uint32_t b = 0; b < r.n_blocks; ++b) {
    if (maxima[b].numbers) c.add(maxima[b].logit, static_cast<int32_t>(b));
  }
  float floor = negative_infinity();
  if (c.size() >= n) {
    c.start();
    c.sort_to(n);
    floor = c.value(n - 1);
  }
  c.clear();
  for (uint32_t b = 0; b < r.n_blocks; ++b) {
    if (!maxima[b].numbers || !(maxima[b].logit >= floor)) continue;
    const BlockValues v = block_logits(r, b, room);
    for (uint32_t i = 0; i < v.padded(); i += kLanes) {
      for (uint32_t bits = ge_bits(load(v.x + i), set1(floor)); bits; bits &= bits - 1) {
        const uint32_t at = i + static_cast<uint32_t>(__builtin_ctz(bits));
        c.add(v.x[at], static_cast<int32_t>(v.first + at));
      }
    }
  }
  c.start();
  c.sort_to(n);
}

void token_logprobs(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.x) >= t.slot<const Counts>(0)->n[p.count]) return;
  const DrawnRow r = drawn_row(t, t.x);
  const BlockMax* maxima = t.slot<const BlockMax>(3) + size_t{t.x} * r.n_blocks;
  const float* sums = t.slot<const float>(4) + size_t{t.x} * r.n_blocks;
  float* chosen = t.slot<float>(6) + t.x;
  int32_t* ids = t.slot<int32_t>(7) + size_t{t.x} * kMaxTop;
  float* values = t.slot<float>(8) + size_t{t.x} * kMaxTop;
  *chosen = quiet_nan();
  for (int i = 0; i < kMaxTop; ++i) {
    ids[i] = -1;
    values[i] = quiet_nan();
  }
  const RowMax best = row_max(maxima, r.n_blocks, true);
  if (r.rules->n_logprobs < 0 || !best.numbers) return;
  float total = 0;
  for (uint32_t b = 0; b < r.n_blocks; ++b) total += sums[b];
  const bool sound = finite(best.max);
  const float log_sum = sound ? exact_log(total) : 0;
  const auto value = [&](float x) {
    const float v = (x - best.max) - log_sum + 0.0f;  // -0 is 0
    return sound && v == v ? v : quiet_nan();
  };
  const int32_t token = t.slot<const int32_t>(5)[t.x];
  if (token >= 0) *chosen = value(r.logits[token]);
  auto n = static_cast<uint32_t>(r.rules->n_logprobs < kMaxTop ? r.rules->n_logprobs : kMaxTop);
  n = n < best.numbers ? n : best.numbers;
  if (n == 0) return;
  Descending c(t.scratch);
  list_top(r, maxima, n, c, reinterpret_cast<float*>(c.end()));
  for (uint32_t i = 0; i < n; ++i) {
    ids[i] = c.id(i);
    values[i] = value(c.value(i));
  }
}

void logits_hash(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.x) >= t.slot<const Counts>(0)->n[p.count]) return;
  const float* logits = t.slot<const float>(1) + size_t{t.x} * p.vocab;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < p.n_valid; ++i) {
    sum += splitmix64(uint64_t{i} << 32 | std::bit_cast<uint32_t>(logits[i]));
  }
  t.slot<uint64_t>(2)[t.x] = sum;
}

constexpr KernelEntry kEntries[] = {
    {"logprob_sums", logprob_sums, kTileBlocks * kBlock},
    {"token_logprobs", token_logprobs, 1},
    {"logits_hash", logits_hash, 1},
};

}  // namespace

KernelList logprob_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
