// draw_max, draw_blocks, draw_pick: the tokens of a pass, as `draw` of rounds/sampler.h draws them.
//
//   distance  = (value - largest) / temperature, 0 for the largest; weight = e^distance
//   drawn     = the kept id whose distance + noise is largest; noise is a function of (seed, position, id)
//
// Noise costs a hash and two logarithms, so it is computed only for ids that can still win: those for which
// 1 - u <= e^(distance - best so far), since noise(u) >= t means -log u <= e^-t, and 1 - u <= -log u. Of a
// block the distance of its largest value will do, so that all but a few ids cost a hash and a comparison.
#include "kernels/cpu/descending.h"
#include "kernels/cpu/sampler.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

// Room for rounding in what excludes an id: noise is within 1e-4 of its formula.
constexpr float kRoom = 1.001f;
constexpr float kMaxNoise = 16.7f;  // -log(-log(1 - 2^-24)) is 16.64

// A row's distances.
struct Scale {
  float max, temperature;

  F operator()(F x) const { return drop_equal(x, set1(max), (x - set1(max)) / set1(temperature)); }
  float operator()(float x) const { return x == max ? 0.0f : (x - max) / temperature; }
};

// The best of the noisy distances so far.
struct Winner {
  uint64_t key;
  float value = negative_infinity();
  int32_t id = -1;
  float reach = std::bit_cast<float>(0x7f800000u);  // e^-value and some room

  void set(float v, int32_t i) {
    value = v;
    id = i;
    reach = exp(-v) * kRoom;
  }
  void consider(float distance, int32_t i) {
    const float noisy = distance + noise(key, i);
    if (noisy > value || (noisy == value && i < id)) set(noisy, i);
  }
};

BlockMax max_of(const BlockValues& v) {
  F best[4];
  for (F& b : best) b = set1(negative_infinity());
  uint32_t n_nan = 0;
  const auto take = [&](F x, F& b) {
    const uint32_t numbers = ge_bits(x, x);
    if (numbers != kAllLanes) n_nan += static_cast<uint32_t>(__builtin_popcount(~numbers & kAllLanes));
    b = max(x, b);
  };
  const uint32_t n = v.padded();
  uint32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (uint32_t k = 0; k < 4; ++k) take(load(v.x + i + k * kLanes), best[k]);
  }
  for (; i < n; i += kLanes) take(load(v.x + i), best[0]);
  float lanes[kLanes];
  store(lanes, max(max(best[0], best[1]), max(best[2], best[3])));
  float most = lanes[0];
  for (const float x : lanes) most = x > most ? x : most;
  most += 0.0f;  // -0 is 0, whichever came first
  const auto numbers = static_cast<int16_t>(n - n_nan);
  return {most, most, numbers, numbers, 0};
}

void draw_max(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.y) >= t.slot<const Counts>(0)->n[p.count]) return;
  const DrawnRow r = drawn_row(t, t.y);
  auto* room = reinterpret_cast<float*>(t.scratch);
  BlockMax* out = t.slot<BlockMax>(3) + size_t{t.y} * r.n_blocks;
  for (uint32_t b = t.x * kTileBlocks; b < (t.x + 1) * kTileBlocks && b < r.n_blocks; ++b) {
    out[b] = max_of(block_logits(r, b, room));
    if (!r.has_rules()) continue;
    const BlockValues v = copied_logits(r, b, room);
    out[b].changed = apply_rules(r, v.first, v.n, ~0u, room);
    if (!out[b].changed) continue;
    const BlockMax after = max_of(v);
    out[b].value = after.value;
    out[b].drawable = after.drawable;
  }
}

// What decides how a row is drawn.
struct Plan {
  RowMax best;
  Scale scale;
  bool draws;  // has numbers and a temperature
  bool cuts_k, cuts_p;
};

Plan plan_of(const DrawnRow& r, const BlockMax* maxima) {
  const ReplyState& s = *r.rules;
  const RowMax best = row_max(maxima, r.n_blocks, false);
  return {best,
          {best.max, s.temperature},
          best.numbers > 0 && s.temperature != 0,
          s.top_k > 0 && static_cast<uint32_t>(s.top_k) < best.numbers,
          s.top_p < 1};
}

int32_t best_id(const DrawnRow& r, const BlockMax* maxima, const RowMax& best, float* room) {
  return first_of(block_values(r, best.block, maxima[best.block].changed, room), best.max);
}

// The smallest distance that can have a weight of at least min_p.
float least_distance(float min_p) {
  return min_p < 0x1p-120f ? negative_infinity() : exact_log(min_p) - 0.01f;
}
bool keeps(float distance, float min_p) {
  return !(min_p > 0) || (distance == 0 ? 1.0f : exact_exp(distance)) >= min_p;
}

// Below the value returned every value is at a smaller distance than `distance`.
float value_floor(const Scale& scale, float distance) {
  const float floor = scale.max + (distance - 0.01f) * scale.temperature;
  const float rounded = floor - ::fabsf(floor) * 0x1p-21f;
  return rounded - rounded == 0 ? rounded : negative_infinity();
}

// The best noisy distance of a block whose largest value is `largest`, if it is not below `start`.
void noisy_best(const BlockValues& v, float largest, const Scale& scale, const ReplyState& s,
                const Winner& start, BlockPart& out) {
  Winner best = start;
  best.id = -1;
  const float least = least_distance(s.min_p);
  float floor = 0, reach = 0;  // what a value, and its noise's rarity, have to come to at least
  const auto rise = [&] {
    const float needed = best.value - kMaxNoise;
    floor = value_floor(scale, needed > least ? needed : least);
    reach = exp(scale(largest) - best.value) * kRoom;
  };
  rise();
  for (uint32_t i = 0; i < v.padded(); i += kLanes) {
    const F x = load(v.x + i);
    uint32_t bits = ge_bits(x, set1(floor));
    if (!bits) continue;
    const F rare = rarity(best.key, v.first + i);
    bits &= ge_bits(set1(reach), rare);
    if (!bits) continue;
    bits &= ge_bits(exp(scale(x) - set1(best.value)) * set1(kRoom), rare);
    for (; bits; bits &= bits - 1) {
      const auto lane = static_cast<uint32_t>(__builtin_ctz(bits));
      const auto id = static_cast<int32_t>(v.first + i + lane);
      const float d = scale(v.x[i + lane]), noisy = d + noise(best.key, id);
      // Ids ascend, so that an equal one loses, but to the row's start.
      if ((noisy > best.value || (noisy == best.value && best.id < 0)) && keeps(d, s.min_p)) {
        best.value = noisy;
        best.id = id;
        rise();
      }
    }
  }
  if (best.id < 0) return;
  out.value = best.value;
  out.id = best.id;
}

// Sums of e^distance of the blocks first .. first + n - 1.
void sum_weights(const DrawnRow& r, const BlockMax* maxima, const Scale& scale, uint32_t first, uint32_t n,
                 float* room, BlockPart* out) {
  float* terms = room + kBlock;
  for (uint32_t b = 0; b < n; ++b, terms += kBlock) {
    const BlockMax& m = maxima[first + b];
    const bool any = m.drawable && scale(m.value) >= -87.0f;
    const BlockValues v = any ? block_values(r, first + b, m.changed, room) : BlockValues{};
    for (uint32_t i = 0; i < v.padded(); i += kLanes) store(terms + i, exact_exp(scale(load(v.x + i))));
    std::memset(terms + v.padded(), 0, (kBlock - v.padded()) * sizeof *terms);
  }
  float sums[kTileBlocks];
  sum_blocks(room + kBlock, n, sums);
  for (uint32_t b = 0; b < n; ++b) out[first + b].sum = sums[b];
}

void draw_blocks(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.y) >= t.slot<const Counts>(0)->n[p.count]) return;
  const DrawnRow r = drawn_row(t, t.y);
  const BlockMax* maxima = t.slot<const BlockMax>(3) + size_t{t.y} * r.n_blocks;
  BlockPart* out = t.slot<BlockPart>(4) + size_t{t.y} * r.n_blocks;
  const uint32_t first = t.x * kTileBlocks, rest = r.n_blocks - first;
  const uint32_t n = rest < kTileBlocks ? rest : kTileBlocks;
  for (uint32_t b = first; b < first + n; ++b) out[b] = {0, 0, -1};
  const Plan plan = plan_of(r, maxima);
  if (!plan.draws || plan.cuts_k) return;
  auto* room = reinterpret_cast<float*>(t.scratch);
  if (plan.cuts_p) sum_weights(r, maxima, plan.scale, first, n, room, out);
  // The row's largest value with its noise is what the others have to reach.
  Winner start = {noise_key(r.rules->seed, r.position)};
  start.consider(0, best_id(r, maxima, plan.best, room));
  for (uint32_t b = first; b < first + n; ++b) {
    if (!maxima[b].drawable || !(plan.scale(maxima[b].value) >= start.value - kMaxNoise)) continue;
    noisy_best(block_values(r, b, maxima[b].changed, room), maxima[b].value, plan.scale, *r.rules, start,
               out[b]);
  }
}

// Adds all ids of a distance of at least `floor`.
void gather(const DrawnRow& r, const BlockMax* maxima, const Scale& scale, float floor, Descending& to,
            float* room) {
  to.clear();
  for (uint32_t b = 0; b < r.n_blocks; ++b) {
    if (!maxima[b].drawable || !(scale(maxima[b].value) >= floor)) continue;
    const BlockValues v = block_values(r, b, maxima[b].changed, room);
    for (uint32_t i = 0; i < v.padded(); i += kLanes) {
      const F distance = scale(load(v.x + i));
      uint32_t bits = ge_bits(distance, set1(floor));
      if (!bits) continue;
      float d[kLanes];
      store(d, distance);
      for (; bits; bits &= bits - 1) {
        const int lane = __builtin_ctz(bits);
        to.add(d[lane], static_cast<int32_t>(v.first + i + static_cast<uint32_t>(lane)));
      }
    }
  }
  to.start();
}

// Weights of the sorted candidates from `begin`, a chunk of at most `n`, padded by zeros.
constexpr uint32_t kChunk = 256;
void weigh(const Descending& c, uint32_t begin, uint32_t n, float* weights) {
  for (uint32_t i = 0; i < n; ++i) weights[i] = c.value(begin + i);
  for (uint32_t i = n; i % kLanes; ++i) weights[i] = negative_infinity();
  for (uint32_t i = 0; i < n; i += kLanes) store(weights + i, exact_exp(load(weights + i)));
}

// Walks the sorted candidates up to `limit` or until their weights reach `goal`, and draws from those; false
// where candidates ran out before.
bool walk(Descending& c, uint32_t limit, float goal, float min_p, Winner& best, float* weights) {
  float sum = 0;
  for (uint32_t done = 0; done < limit;) {
    if (done > 0 && !(sum < goal)) return true;
    uint32_t sorted = c.sort_to(done + 1);
    if (sorted <= done) return false;
    sorted = sorted < limit ? sorted : limit;
    const uint32_t n = sorted - done < kChunk ? sorted - done : kChunk;
    weigh(c, done, n, weights);
    for (uint32_t i = 0; i < n; ++i) {
      if (done + i > 0 && !(sum < goal)) return true;
      const float weight = weights[i];
      sum += weight;
      if (min_p > 0 && !(weight >= min_p)) continue;
      const int32_t id = c.id(done + i);
      const uint64_t h = splitmix64(best.key ^ static_cast<uint64_t>(static_cast<uint32_t>(id)));
      const float rare = (static_cast<float>(static_cast<int32_t>(~h >> 41)) + 0.5f) * 0x1p-23f;
      if (rare <= weight * best.reach) best.consider(c.value(done + i), id);
    }
    done += n;
  }
  return true;
}

// A distance that about n ids reach or more: n of the blocks do, each with its largest. Where blocks are
// fewer, if ids above a distance were spread evenly, 1.5 n of them would leave out e^(-1.5 n / blocks) of the
// blocks; that may be wrong, so that the caller counts.
float reached_by(uint32_t n, const DrawnRow& r, const BlockMax* maxima, const Scale& scale, Descending& c) {
  c.clear();
  for (uint32_t b = 0; b < r.n_blocks; ++b) {
    if (maxima[b].drawable) c.add(scale(maxima[b].value), static_cast<int32_t>(b));
  }
  const uint32_t size = c.size();
  if (size < n) {
    const float blocks = static_cast<float>(size);
    n = size - static_cast<uint32_t>(blocks * exp(-1.5f * static_cast<float>(n) / blocks));
  }
  c.start();
  c.sort_to(n);
  return c.value(n - 1);
}

BlockPart best_part(const BlockPart* parts, uint32_t n_blocks) {
  BlockPart best = {0, 0, -1};
  for (uint32_t b = 0; b < n_blocks; ++b) {
    if (parts[b].id >= 0 && (best.id < 0 || parts[b].value > best.value)) best = parts[b];
  }
  return best;
}

float value_of(const DrawnRow& r, const BlockMax* maxima, int32_t id, float* room) {
  const auto i = static_cast<uint32_t>(id);
  const BlockValues v = block_values(r, i / kBlock, maxima[i / kBlock].changed, room);
  return v.x[i - v.first];
}

enum Side { kBelow, kOpen, kAbove };

// On which side of `goal` the weights before a candidate sum up to, added in sorted order: below, at or
// above, or open, where that hangs on how they are rounded. No order is needed for it: a sum of n terms of
// one sign is within n * 2^-24 of the exact one (and a little more), in whatever order.
Side compare_before(const DrawnRow& r, const BlockMax* maxima, const Scale& scale, float distance, int32_t id,
                    float goal, float* room) {
  double sum = 0, n = 0;
  for (uint32_t b = 0; b < r.n_blocks; ++b) {
    if (!maxima[b].drawable || !(scale(maxima[b].value) >= distance)) continue;
    const BlockValues v = block_values(r, b, maxima[b].changed, room);
    F part = zero();
    for (uint32_t i = 0; i < v.padded(); i += kLanes) {
      const F d = scale(load(v.x + i));
      uint32_t bits = ge_bits(d, set1(distance));
      if (!bits) continue;
      const uint32_t equal = ge_bits(set1(distance), d) & bits;
      if (equal) {  // those before the candidate come first, it and those behind it not at all
        float lanes[kLanes];
        const int64_t ahead = int64_t{id} - (v.first + i);
        bits &= ~equal | (ahead <= 0 ? 0 : ahead < kLanes ? (1u << ahead) - 1 : kAllLanes);
        store(lanes, exact_exp(d));
        for (int k = 0; k < kLanes; ++k) lanes[k] = bits >> k & 1 ? lanes[k] : 0;
        part = part + load(lanes);
      } else {
        part = part + keep_ge(d, set1(distance), exact_exp(d));
      }
      n += __builtin_popcount(bits);
    }
    sum += reduce_add(part);
  }
  if (n == 0) return kBelow;  // the first is always kept
  const double room_for_rounding = 2.1 * n * 0x1p-24;
  if (sum * (1 + room_for_rounding) < goal) return kBelow;
  return sum * (1 - room_for_rounding) >= goal ? kAbove : kOpen;
}

int32_t pick_sorted(const DrawnRow& r, const BlockMax* maxima, const BlockPart* parts, const Plan& plan,
                    std::byte* scratch) {
  const ReplyState& s = *r.rules;
  Descending c(scratch);
  auto* room = reinterpret_cast<float*>(c.end());
  float* weights = room + kBlock;
  Winner best = {noise_key(s.seed, r.position)};
  float goal = std::bit_cast<float>(0x7f800000u);
  if (plan.cuts_k) {
    const auto k = static_cast<uint32_t>(s.top_k);
    gather(r, maxima, plan.scale, reached_by(k, r, maxima, plan.scale, c), c, room);
    if (c.size() < k) gather(r, maxima, plan.scale, negative_infinity(), c, room);
    if (plan.cuts_p) {
      c.sort_to(k);
      float total = 0;
      for (uint32_t i = 0; i < k; i += kChunk) {
        const uint32_t n = k - i < kChunk ? k - i : kChunk;
        weigh(c, i, n, weights);
        for (uint32_t j = 0; j < n; ++j) total += weights[j];
      }
      goal = s.top_p * total;
    }
    walk(c, k, goal, s.min_p, best, weights);
    return best.id;
  }
  float total = 0;
  for (uint32_t b = 0; b < r.n_blocks; ++b) total += parts[b].sum;
  goal = s.top_p * total;
  // Whatever lies below this distance weighs less than half of what may be left out. Rounded sums can want
  // more, and then all ids are taken.
  float floor = exact_log((1 - s.top_p) * total * 0.5f / static_cast<float>(plan.best.numbers));
  const BlockPart winner = best_part(parts, r.n_blocks);
  const float distance = plan.scale(value_of(r, maxima, winner.id, room));
  switch (compare_before(r, maxima, plan.scale, distance, winner.id, goal, room)) {
    case kBelow: return winner.id;
    case kAbove: floor = distance > floor ? distance : floor; break;
    case kOpen: break;
  }
  gather(r, maxima, plan.scale, floor, c, room);
  if (!walk(c, plan.best.numbers, goal, s.min_p, best, weights)) {
    gather(r, maxima, plan.scale, negative_infinity(), c, room);
    walk(c, plan.best.numbers, goal, s.min_p, best, weights);
  }
  return best.id;
}

void draw_pick(const Task& t) {
  const auto& p = t.get<DrawParams>();
  if (int32_t(t.x) >= t.slot<const Counts>(0)->n[p.count]) return;
  const DrawnRow r = drawn_row(t, t.x);
  const BlockMax* maxima = t.slot<const BlockMax>(3) + size_t{t.x} * r.n_blocks;
  const BlockPart* parts = t.slot<const BlockPart>(4) + size_t{t.x} * r.n_blocks;
  int32_t* out = t.slot<int32_t>(5) + t.x;
  const Plan plan = plan_of(r, maxima);
  if (!plan.best.numbers) {
    *out = -1;
  } else if (!plan.draws) {
    *out = best_id(r, maxima, plan.best, reinterpret_cast<float*>(t.scratch));
  } else if (plan.cuts_k || plan.cuts_p) {
    *out = pick_sorted(r, maxima, parts, plan, t.scratch);
  } else {
    *out = best_part(parts, r.n_blocks).id;
  }
}

constexpr KernelEntry kEntries[] = {
    {"draw_max", draw_max, kTileBlocks * kBlock},
    {"draw_blocks", draw_blocks, kTileBlocks * kBlock},
    {"draw_pick", draw_pick, 1},
};

}  // namespace

KernelList draw_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
