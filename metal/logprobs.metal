// logprob_sums, token_logprobs: log-probabilities of the unmodified logits, as `logprobs` of
// cpp/rounds/sampler.h gives them, bit for bit; logits_hash: what tests compare logits by.
//
// logprob_sums: 0 counts, 1 draws, 2 logits float[L, vocab], 3 maxima BlockMax[L, B], 4 sums float[L, B], 5
// DrawParams. Grid (B, L), kBlockThreads threads, a threadgroup a block; terms are added by ascending id.
// token_logprobs: 0 counts, 1 draws, 2 logits, 3 maxima, 4 sums, 5 tokens int32[L], 6 chosen float[L], 7 top
// ids int32[L, kMaxTop], 8 top values float[L, kMaxTop], 9 DrawParams. Grid (L), kPickThreads threads.
// logits_hash: 0 counts, 1 logits, 2 out uint64[L], 3 DrawParams. Grid (L), kPickThreads threads; a sum
// modulo 2^64, in any order.
//
// A NaN is never listed; where the largest logit is infinite all log-probabilities are NaN.
#include "metal/lib/candidates.h"

FLASHNEXT_CONSTANT uint kQuietNan = 0x7fc00000u;

METAL_FUNC bool is_finite(float x) { return x - x == 0; }

[[kernel, max_total_threads_per_threadgroup(kBlockThreads)]] void logprob_sums(
    device const Counts* counts [[buffer(0)]],
    device const DrawRow* draws [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const BlockMax* maxima [[buffer(3)]],
    device float* sums [[buffer(4)]],
    constant DrawParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  constexpr uint n_sg = kBlockThreads / kSimdLanes;
  threadgroup float terms[kSamplerBlock];
  threadgroup float values[n_sg];
  threadgroup uint ids[n_sg];
  threadgroup uint numbers[n_sg];
  if (int(tgid.y) >= counts->n[p.count]) return;
  const Drawn r = drawn_row(draws[tgid.y], logits, p, tgid.y);
  const BestMemory s = {values, ids, numbers};
  const Best best = row_max(maxima + ulong(tgid.y) * r.n_blocks, r.n_blocks, true, s, tid, lane, sg, n_sg);
  device float& out = sums[ulong(tgid.y) * r.n_blocks + tgid.x];
  if (r.rules->n_logprobs < 0 || best.n == 0 || !is_finite(best.value)) {
    if (tid == 0) out = 0;
    return;
  }
  for (uint i = tid; i < kSamplerBlock; i += kBlockThreads) {
    const uint id = tgid.x * kSamplerBlock + i;
    terms[i] = id < r.n_valid ? exact_exp(r.logits[id] - best.value) : 0.0;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) out = add_in_order(terms, kSamplerBlock);
}

// Logits of a row, as candidates.
struct Logits {
  Drawn r;
  device const BlockMax* maxima;

  METAL_FUNC float of(uint id) const { return r.logits[id]; }
  METAL_FUNC float most(uint block) const { return maxima[block].numbers ? maxima[block].logit : -INFINITY; }
};

METAL_FUNC float log_probability(float x, float max, float log_sum) {
  const float v = (x - max) - log_sum + 0.0;  // -0 is 0
  return is_finite(max) && !isnan(v) ? v : as_type<float>(kQuietNan);
}

[[kernel, max_total_threads_per_threadgroup(kPickThreads)]] void token_logprobs(
    device const Counts* counts [[buffer(0)]],
    device const DrawRow* draws [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const BlockMax* all_maxima [[buffer(3)]],
    device const float* all_sums [[buffer(4)]],
    device const int* tokens [[buffer(5)]],
    device float* chosen [[buffer(6)]],
    device int* top_ids [[buffer(7)]],
    device float* top_values [[buffer(8)]],
    constant DrawParams& p [[buffer(9)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  FLASHNEXT_CHUNK_MEMORY(chunk);
  threadgroup float values[kPickSimdgroups];
  threadgroup uint ids[kPickSimdgroups];
  threadgroup uint numbers[kPickSimdgroups];
  if (int(tgid.x) >= counts->n[p.count]) return;
  const Drawn r = drawn_row(draws[tgid.x], logits, p, tgid.x);
  device const BlockMax* maxima = all_maxima + ulong(tgid.x) * r.n_blocks;
  const BestMemory s = {values, ids, numbers};
  const Best best = row_max(maxima, r.n_blocks, true, s, tid, lane, sg, kPickSimdgroups);
  const bool asked = r.rules->n_logprobs >= 0 && best.n > 0;
  float log_sum = 0;
  if (asked && is_finite(best.value)) {
    float total = 0;
    for (uint b = 0; b < r.n_blocks; b++) total += all_sums[ulong(tgid.x) * r.n_blocks + b];
    log_sum = exact_log(total);
  }
  if (tid == 0) {
    const float nan = as_type<float>(kQuietNan);
    const int token = tokens[tgid.x];
    chosen[tgid.x] = asked && token >= 0 ? log_probability(r.logits[token], best.value, log_sum) : nan;
  }
  uint n = 0;
  if (asked) n = smaller(uint(smaller(r.rules->n_logprobs, kMaxTop)), best.n);
  if (n > 0) {
    Candidates<Logits> c = {{r, maxima}, chunk, -INFINITY, r.n_valid, tid, lane, sg, 0, 0, false};
    c.next(n);
  }
  if (tid < uint(kMaxTop)) {
    const ulong here = ulong(tgid.x) * kMaxTop + tid;
    const float value =
        tid < n ? log_probability(value_of(chunk.keys[tid]), best.value, log_sum) : as_type<float>(kQuietNan);
    top_ids[here] = tid < n ? int(chunk.ids[tid]) : -1;
    top_values[here] = value;
  }
}

[[kernel, max_total_threads_per_threadgroup(kPickThreads)]] void logits_hash(
    device const Counts* counts [[buffer(0)]],
    device const float* logits [[buffer(1)]],
    device ulong* out [[buffer(2)]],
    constant DrawParams& p [[buffer(3)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  threadgroup ulong parts[kPickThreads];
  if (int(tgid.x) >= counts->n[p.count]) return;
  device const float* own = logits + ulong(tgid.x) * p.vocab;
  ulong sum = 0;
  for (uint i = tid; i < p.n_valid; i += kPickThreads)
    sum += splitmix64(ulong(i) << 32 | as_type<uint>(own[i]));
  parts[tid] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid > 0) return;
  for (uint i = 1; i < uint(kPickThreads); i++) sum += parts[i];
  out[tgid.x] = sum;
}
