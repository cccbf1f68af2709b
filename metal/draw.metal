// draw_max, draw_blocks, draw_pick: the tokens of a pass, as `draw` of cpp/rounds/sampler.h draws them, bit
// for bit.
//
//   distance  = (value - largest) / temperature, 0 for the largest; weight = e^distance
//   drawn     = the kept id whose distance + noise is largest; noise is a function of (seed, position, id)
//
// draw_max: 0 counts, 1 draws, 2 logits float[L, vocab], 3 maxima BlockMax[L, B], 4 DrawParams. Grid (B, L),
// kBlockThreads threads, a threadgroup a block of kSamplerBlock ids.
// draw_blocks: 0 counts, 1 draws, 2 logits, 3 maxima, 4 parts BlockPart[L, B], 5 DrawParams. Likewise.
// draw_pick: 0 counts, 1 draws, 2 logits, 3 maxima, 4 parts, 5 out int32[L], 6 DrawParams. Grid (L),
// kPickThreads threads, 18 KB of threadgroup memory.
//
// Sums over the vocabulary run by ascending id in a block, and over blocks in order; sums over candidates in
// their order. 1 <= n_valid <= kMaxDrawn. A NaN is never drawn, and
// an id that a mask leaves out has the value NaN.
#include "metal/lib/candidates.h"
#include "metal/lib/math.h"

FLASHNEXT_CONSTANT float kMaxNoise = 16.7;  // -log(-log(1 - 2^-24)) is 16.64
FLASHNEXT_CONSTANT uint kBlockSimdgroups = kBlockThreads / kSimdLanes;

#define FLASHNEXT_BEST_MEMORY(name, n) \
  threadgroup float name##_values[n];  \
  threadgroup uint name##_ids[n];      \
  threadgroup uint name##_counts[n];   \
  const BestMemory name = {name##_values, name##_ids, name##_counts}

[[kernel, max_total_threads_per_threadgroup(kBlockThreads)]] void draw_max(
    device const Counts* counts [[buffer(0)]],
    device const DrawRow* draws [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device BlockMax* maxima [[buffer(3)]],
    constant DrawParams& p [[buffer(4)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float most_values[kBlockSimdgroups];
  threadgroup float most_logits[kBlockSimdgroups];
  threadgroup uint n_numbers[kBlockSimdgroups];
  threadgroup uint n_drawable[kBlockSimdgroups];
  threadgroup uint changed_groups[kBlockSimdgroups];
  if (int(tgid.y) >= counts->n[p.count]) return;
  const Drawn r = drawn_row(draws[tgid.y], logits, p, tgid.y);
  const bool has_rules = r.has_rules();
  float value = -INFINITY, logit = -INFINITY;
  uint numbers = 0, drawable = 0, changed = 0;
  // A simdgroup has 32 ids at a time: those of one bit.
  for (uint i = tid; i < kSamplerBlock; i += kBlockThreads) {
    const uint id = tgid.x * kSamplerBlock + i;
    bool applies = false;
    if (id < r.n_valid) {
      const float x = r.logits[id], y = has_rules ? r.apply_rules(id, applies) : x;
      numbers += isnan(x) ? 0 : 1;
      drawable += isnan(y) ? 0 : 1;
      logit = x > logit ? x : logit;
      value = y > value ? y : value;
    }
    if (simd_any(applies)) changed |= 1u << i / kGroupIds;
  }
  value = simd_max(value);
  logit = simd_max(logit);
  numbers = simd_sum(numbers);
  drawable = simd_sum(drawable);
  if (lane == 0) {
    most_values[sg] = value;
    most_logits[sg] = logit;
    n_numbers[sg] = numbers;
    n_drawable[sg] = drawable;
    changed_groups[sg] = changed;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid > 0) return;
  for (uint i = 1; i < kBlockSimdgroups; i++) {
    value = most_values[i] > value ? most_values[i] : value;
    logit = most_logits[i] > logit ? most_logits[i] : logit;
    numbers += n_numbers[i];
    drawable += n_drawable[i];
    changed |= changed_groups[i];
  }
  device BlockMax& out = maxima[ulong(tgid.y) * r.n_blocks + tgid.x];
  out.value = value + 0.0;  // -0 is 0
  out.logit = logit + 0.0;
  out.numbers = short(numbers);
  out.drawable = short(drawable);
  out.changed = changed;
}

// What decides how a row is drawn.
struct Plan {
  Best best;  // id: the block
  Scale scale;
  bool draws;  // has numbers and a temperature
  bool cuts_k, cuts_p;
};
METAL_FUNC Plan plan_of(Drawn r, Best best) {
  device const ReplyState& s = *r.rules;
  return {best,
          {best.value, s.temperature},
          best.n > 0 && s.temperature != 0,
          s.top_k > 0 && uint(s.top_k) < best.n,
          s.top_p < 1};
}

// The lowest id of a block that has the row's largest value, in every thread.
METAL_FUNC uint best_id(Drawn r,
                        device const BlockMax* maxima,
                        Best best,
                        BestMemory s,
                        uint tid,
                        uint n_threads,
                        uint lane,
                        uint sg,
                        uint n_simdgroups) {
  uint id = ~0u;
  for (uint i = tid; i < kSamplerBlock && id == ~0u; i += n_threads) {
    const uint at = best.id * kSamplerBlock + i;
    if (at < r.n_valid && r.value(at, maxima[best.id].changed) >= best.value) id = at;
  }
  return best_of(id == ~0u ? -1.0 : 0.0, id, 0, s, lane, sg, n_simdgroups).id;
}

METAL_FUNC bool keeps(float distance, float min_p) {
  return !(min_p > 0) || (distance == 0 ? 1.0 : exact_exp(distance)) >= min_p;
}

[[kernel, max_total_threads_per_threadgroup(kBlockThreads)]] void draw_blocks(
    device const Counts* counts [[buffer(0)]],
    device const DrawRow* draws [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const BlockMax* all_maxima [[buffer(3)]],
    device BlockPart* parts [[buffer(4)]],
    constant DrawParams& p [[buffer(5)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float terms[kSamplerBlock];
  FLASHNEXT_BEST_MEMORY(of_row, kBlockSimdgroups);
  FLASHNEXT_BEST_MEMORY(of_id, kBlockSimdgroups);
  FLASHNEXT_BEST_MEMORY(of_block, kBlockSimdgroups);
  if (int(tgid.y) >= counts->n[p.count]) return;
  const Drawn r = drawn_row(draws[tgid.y], logits, p, tgid.y);
  device const BlockMax* maxima = all_maxima + ulong(tgid.y) * r.n_blocks;
  device BlockPart& out = parts[ulong(tgid.y) * r.n_blocks + tgid.x];
  const Plan plan = plan_of(r, row_max(maxima, r.n_blocks, false, of_row, tid, lane, sg, kBlockSimdgroups));
  if (tid == 0) {
    out.sum = out.value = 0;
    out.id = -1;
  }
  if (!plan.draws || plan.cuts_k) return;
  const uint first = tgid.x * kSamplerBlock, changed = maxima[tgid.x].changed;
  if (plan.cuts_p) {
    for (uint i = tid; i < kSamplerBlock; i += kBlockThreads) {
      terms[i] = first + i < r.n_valid ? exact_exp(plan.scale(r.value(first + i, changed))) : 0.0;
    }
  }
  // The row's largest value with its noise is what the others have to reach.
  const ulong key = noise_key(r.rules->seed, r.position);
  const uint start_id = best_id(r, maxima, plan.best, of_id, tid, kBlockThreads, lane, sg, kBlockSimdgroups);
  if (tid == 0 && plan.cuts_p) out.sum = add_in_order(terms, kSamplerBlock);
  const float start = noise(key, start_id), min_p = r.rules->min_p;
  if (!maxima[tgid.x].drawable || !(plan.scale(maxima[tgid.x].value) >= start - kMaxNoise)) return;
  float value = -INFINITY;
  uint id = ~0u;
  for (uint i = tid; i < kSamplerBlock && first + i < r.n_valid; i += kBlockThreads) {
    const float d = plan.scale(r.value(first + i, changed));
    if (!(d >= start - kMaxNoise)) continue;
    const float noisy = d + noise(key, first + i);
    if (noisy >= start && noisy > value && keeps(d, min_p)) {
      value = noisy;
      id = first + i;
    }
  }
  const Best best = best_of(value, id, 0, of_block, lane, sg, kBlockSimdgroups);
  if (tid == 0 && best.id != ~0u) {
    out.value = best.value;
    out.id = int(best.id);
  }
}

// Distances of a row, as candidates.
struct Distances {
  Drawn r;
  device const BlockMax* maxima;
  Scale scale;

  METAL_FUNC float of(uint id) const { return scale(r.value(id, maxima[id / kSamplerBlock].changed)); }
  METAL_FUNC float most(uint block) const {
    return maxima[block].drawable ? scale(maxima[block].value) : -INFINITY;
  }
};

// The winner so far and how far candidates have been walked: of the whole threadgroup.
struct Walk {
  threadgroup float* weights;  // kChunkIds
  threadgroup float* noisy;    // kChunkIds; -infinity for those that min_p leaves out
  threadgroup float* sum;      // of weights; value of the winner
  threadgroup int* winner;     // its id; whether the walk has ended
};

// The largest noisy distance of the candidates whose weights before them sum up to less than `goal`, at most
// `limit` of them; the id, in every thread.
template <typename Values>
METAL_FUNC int draw_sorted(Candidates<Values> c, Walk w, ulong key, float min_p, uint limit, float goal) {
  if (c.tid == 0) {
    w.sum[0] = 0;
    w.sum[1] = -INFINITY;
    w.winner[0] = -1;
    w.winner[1] = 0;
  }
  for (uint done = 0; done < limit;) {
    const uint n = c.next(smaller(limit - done, kChunkIds));
    if (n == 0) {
      if (c.floor == -INFINITY) break;
      c.floor = -INFINITY;  // rounded sums want more than lies above the floor
      continue;
    }
    if (c.tid < n) {
      const float d = value_of(c.s.keys[c.tid]), weight = exact_exp(d);
      w.weights[c.tid] = weight;
      w.noisy[c.tid] = min_p > 0 && !(weight >= min_p) ? -INFINITY : d + noise(key, c.s.ids[c.tid]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (c.tid == 0) {
      float sum = w.sum[0], value = w.sum[1];
      int id = w.winner[0];
      for (uint i = 0; i < n; i++) {
        if (done + i > 0 && !(sum < goal)) {
          w.winner[1] = 1;
          break;
        }
        sum += w.weights[i];
        const float noisy = w.noisy[i];
        const int other = int(c.s.ids[i]);
        if (noisy > value || (noisy == value && noisy > -INFINITY && other < id)) {
          value = noisy;
          id = other;
        }
      }
      w.sum[0] = sum;
      w.sum[1] = value;
      w.winner[0] = id;
    }
    done += n;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (w.winner[1]) break;
  }
  return w.winner[0];
}

// The sum of the weights of the first `limit` candidates, in their order; in every thread.
template <typename Values>
METAL_FUNC float sum_sorted(Candidates<Values> c, Walk w, uint limit) {
  if (c.tid == 0) w.sum[0] = 0;
  for (uint done = 0; done < limit;) {
    const uint n = c.next(smaller(limit - done, kChunkIds));
    if (n == 0) {
      if (c.floor == -INFINITY) break;
      c.floor = -INFINITY;
      continue;
    }
    if (c.tid < n) w.weights[c.tid] = exact_exp(value_of(c.s.keys[c.tid]));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (c.tid == 0) {
      float sum = w.sum[0];
      for (uint i = 0; i < n; i++) sum += w.weights[i];
      w.sum[0] = sum;
    }
    done += n;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  const float sum = w.sum[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return sum;
}

// What at least k candidates reach: the k-th largest of the blocks' largest, where there are as many. `room`
// has one for all; all threads arrive.
METAL_FUNC float reached_by(uint k, Distances values, threadgroup float* room, uint tid) {
  if (tid == 0) *room = -INFINITY;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint n = values.r.n_blocks;
  if (tid < n && values.maxima[tid].drawable) {
    const float own = values.most(tid);
    uint before = 0;
    for (uint b = 0; b < n; b++) {
      const float other = values.most(b);
      before += values.maxima[b].drawable && (other > own || (other == own && b < tid)) ? 1 : 0;
    }
    if (before + 1 == k) *room = own;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return *room;
}

[[kernel, max_total_threads_per_threadgroup(kPickThreads)]] void draw_pick(
    device const Counts* counts [[buffer(0)]],
    device const DrawRow* draws [[buffer(1)]],
    device const float* logits [[buffer(2)]],
    device const BlockMax* all_maxima [[buffer(3)]],
    device const BlockPart* all_parts [[buffer(4)]],
    device int* out [[buffer(5)]],
    constant DrawParams& p [[buffer(6)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  FLASHNEXT_CHUNK_MEMORY(chunk);
  FLASHNEXT_BEST_MEMORY(of_row, kPickSimdgroups);
  FLASHNEXT_BEST_MEMORY(of_parts, kPickSimdgroups);
  threadgroup float weights[kChunkIds];
  threadgroup float noisy[kChunkIds];
  threadgroup float sums[2];
  threadgroup int winner[2];
  threadgroup float floats[kPickSimdgroups + 1];
  if (int(tgid.x) >= counts->n[p.count]) return;
  const Drawn r = drawn_row(draws[tgid.x], logits, p, tgid.x);
  device const BlockMax* maxima = all_maxima + ulong(tgid.x) * r.n_blocks;
  device const BlockPart* parts = all_parts + ulong(tgid.x) * r.n_blocks;
  const Plan plan = plan_of(r, row_max(maxima, r.n_blocks, false, of_row, tid, lane, sg, kPickSimdgroups));
  device const ReplyState& rules = *r.rules;
  if (plan.best.n == 0) {
    if (tid == 0) out[tgid.x] = -1;
    return;
  }
  if (!plan.draws) {
    const uint id = best_id(r, maxima, plan.best, of_parts, tid, kPickThreads, lane, sg, kPickSimdgroups);
    if (tid == 0) out[tgid.x] = int(id);
    return;
  }
  const ulong key = noise_key(rules.seed, r.position);
  const Distances values = {r, maxima, plan.scale};
  const Walk walk = {weights, noisy, sums, winner};
  Candidates<Distances> c = {values, chunk, -INFINITY, r.n_valid, tid, lane, sg, 0, 0, false};
  if (plan.cuts_k) {
    const uint k = uint(rules.top_k);
    c.floor = reached_by(k, values, floats, tid);
    const float goal = plan.cuts_p ? rules.top_p * sum_sorted(c, walk, k) : INFINITY;
    const int id = draw_sorted(c, walk, key, rules.min_p, k, goal);
    if (tid == 0) out[tgid.x] = id;
    return;
  }
  // The best of all ids, ties to the lower one.
  const bool has = tid < r.n_blocks && parts[tid].id >= 0;
  const Best best = best_of(has ? parts[tid].value : -INFINITY, has ? uint(parts[tid].id) : ~0u, 0, of_parts,
                            lane, sg, kPickSimdgroups);
  if (!plan.cuts_p) {
    if (tid == 0) out[tgid.x] = int(best.id);
    return;
  }
  float total = 0;
  for (uint b = 0; b < r.n_blocks; b++) total += parts[b].sum;
  const float goal = rules.top_p * total;
  // Whatever lies below this distance weighs less than half of what may be left out.
  c.floor = exact_log((1 - rules.top_p) * total * 0.5 / float(plan.best.n));
  // Whether the best of all is kept hangs on the weights before it. A sum of n terms of one sign in whatever
  // order is within n * 2^-24 of the exact one, and this one, of at most 252 in a chain and 11 levels, within
  // 300 of them: only where that leaves it open have candidates to be sorted.
  const float distance = values.of(best.id);
  float mine = 0;
  uint n = 0;
  for (uint first = 0; first < r.n_valid; first += kSamplerBlock) {
    if (!(values.most(first / kSamplerBlock) >= distance)) continue;
    const uint i = first + tid;
    const float d = i < r.n_valid ? values.of(i) : -INFINITY;
    if (d > distance || (d == distance && i < best.id)) {
      mine += exact_exp(d);
      n += 1;
    }
  }
  const float sum = add_threads(mine, floats, lane, sg, kPickSimdgroups);
  n = count_threads(n, chunk.parts, lane, sg, kPickSimdgroups).all;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float room = (2.1 * float(n) + 600.0) * 5.9604644775390625e-08;
  int id = int(best.id);
  if (n > 0 && !(sum * (1.0 + room) < goal)) {
    if (sum * (1.0 - room) >= goal && distance > c.floor) c.floor = distance;
    id = draw_sorted(c, walk, key, rules.min_p, plan.best.n, goal);
  }
  if (tid == 0) out[tgid.x] = id;
}
