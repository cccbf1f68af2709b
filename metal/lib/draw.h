// What the sampler's kernels share: a row of logits under its reply's rules, its blocks, its largest value.
#pragma once

#include "metal/lib/exact.h"
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT uint kGroupIds = kSamplerBlock / 32;  // ids of a bit of BlockMax::changed

// A row of a draw, and what its reply's rules need.
struct Drawn {
  device const float* logits;
  uint n_valid, n_blocks;
  device const ReplyState* rules;
  device const BiasEntry* bias;
  device const int* prompt;  // how often ids occur; null where nothing is penalized
  device const int* reply;
  device const int* uncounted;  // further reply tokens
  int n_uncounted, position;
  device const uint* mask;  // ids that may be drawn; null for all

  METAL_FUNC bool has_rules() const { return rules->n_bias > 0 || reply || mask; }

  // The first bias entry of an id at or above `id`.
  METAL_FUNC int bias_from(uint id) const {
    int low = 0, high = rules->n_bias;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (uint(bias[middle].id) < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // The logit after bias and penalties, NaN where the mask leaves the id out; whether one applies.
  METAL_FUNC float apply_rules(uint id, thread bool& applies) const {
    if (mask && !(mask[id / 32] >> (id % 32) & 1)) {
      applies = true;
      return as_type<float>(0x7fc00000u);
    }
    float x = logits[id];
    applies = false;
    for (int i = bias_from(id); i < rules->n_bias && uint(bias[i].id) == id; i++) {
      x += bias[i].value;
      applies = true;
    }
    if (!reply) return x;
    int n_reply = reply[id];
    for (int i = 0; i < n_uncounted; i++) n_reply += uint(uncounted[i]) == id;
    if (prompt[id] || n_reply) {
      applies = true;
      x = x > 0 ? x / rules->repetition : x * rules->repetition;
    }
    if (n_reply) x = fma(-rules->frequency, float(n_reply), x) - rules->presence;
    return x;
  }

  // The value of an id of a block whose BlockMax has `changed`.
  METAL_FUNC float value(uint id, uint changed) const {
    bool applies;
    return changed >> (id % kSamplerBlock / kGroupIds) & 1 ? apply_rules(id, applies) : logits[id];
  }
};

METAL_FUNC Drawn drawn_row(device const DrawRow& draw,
                           device const float* logits,
                           constant DrawParams& p,
                           uint row) {
  Drawn r;
  r.logits = logits + ulong(row) * p.vocab;
  r.n_valid = p.n_valid;
  r.n_blocks = (p.n_valid + kSamplerBlock - 1) / kSamplerBlock;
  r.rules = at<const ReplyState>(draw.reply);
  r.bias = at<const BiasEntry>(r.rules->bias);
  r.prompt = r.reply = r.uncounted = nullptr;
  r.n_uncounted = 0;
  r.position = draw.position;
  r.mask = nullptr;
  device const ReplyState& s = *r.rules;
  if (s.masks && p.masked) {
    r.mask =
        at<const uint>(s.masks) + ulong(uint(draw.position) % uint(kMaxWindow)) * ((p.n_valid + 31) / 32);
  }
  if (s.counts && (s.presence != 0 || s.frequency != 0 || s.repetition != 1)) {
    r.prompt = at<const int>(s.counts);
    r.reply = r.prompt + p.n_valid;
    r.uncounted = at<const int>(s.text) + draw.n_counted;
    r.n_uncounted = draw.position - draw.n_counted;
  }
  return r;
}

// Of a threadgroup: the largest x, the lowest id that has it, and a sum of counts.
struct Best {
  float value;
  uint id, n;
};
struct BestMemory {
  threadgroup float* values;  // one a simdgroup, each
  threadgroup uint* ids;
  threadgroup uint* counts;
};
// A thread without one gives id ~0 and -infinity. All threads arrive; a barrier must pass before the memory
// is used again.
METAL_FUNC Best best_of(float value, uint id, uint n, BestMemory s, uint lane, uint sg, uint n_simdgroups) {
  const float most = simd_max(value);
  const uint lowest = simd_min(value == most ? id : ~0u), count = simd_sum(n);
  if (lane == 0) {
    s.values[sg] = most;
    s.ids[sg] = lowest;
    s.counts[sg] = count;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Best best = {-INFINITY, ~0u, 0};
  for (uint i = 0; i < n_simdgroups; i++) {
    const float v = s.values[i];
    const uint other = s.ids[i];
    if (v > best.value || (v == best.value && other < best.id)) {
      best.value = v;
      best.id = other;
    }
    best.n += s.counts[i];
  }
  return best;
}

// The largest value (or logit) of a row: its first block that has it, and how many are not NaN.
// Blocks are at most as many as threads.
METAL_FUNC Best row_max(device const BlockMax* maxima,
                        uint n_blocks,
                        bool of_logits,
                        BestMemory s,
                        uint tid,
                        uint lane,
                        uint sg,
                        uint n_simdgroups) {
  float value = -INFINITY;
  uint id = ~0u, n = 0;
  const uint numbers = tid >= n_blocks ? 0u : uint(of_logits ? maxima[tid].numbers : maxima[tid].drawable);
  if (numbers) {
    value = of_logits ? maxima[tid].logit : maxima[tid].value;
    id = tid;
    n = numbers;
  }
  return best_of(value, id, n, s, lane, sg, n_simdgroups);
}

// A row's distances.
struct Scale {
  float max, temperature;

  METAL_FUNC float operator()(float x) const { return x == max ? 0.0 : (x - max) / temperature; }
};

// Adds a block's terms by ascending id: one thread.
METAL_FUNC float add_in_order(threadgroup const float* terms, uint n) {
  float sum = 0;
  for (uint i = 0; i < n; i++) sum += terms[i];
  return sum;
}
