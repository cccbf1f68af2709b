// The reference sampler: what every device's sampler has to equal, token for token.
//
// Order: bias, penalties, temperature, top-k, top-p, min-p, draw. Values are divided by the temperature as
// distances from the best one, so that a small one makes none infinite. Candidates stand by value descending,
// then id; sums over candidates run in that order, sums over the vocabulary in blocks of kSamplerBlock ids,
// the blocks ascending. The draw is Gumbel-max with noise that is a function of (seed, position, id) alone.
// Source: the draw law in docs/architecture.md.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace flashnext {

struct Sampling {
  float temperature = 1;  // 0: the largest value, ties to the lower id
  int top_k = 0;          // 0: all
  float top_p = 1;        // keeps the fewest candidates whose share reaches it
  float min_p = 0;        // keeps candidates of at least this share of the best one's probability
  uint64_t seed = 0;
  float presence = 0, frequency = 0;  // subtracted for ids in the reply: once, and for each time
  float repetition = 1;  // divides positive and multiplies negative values of ids in prompt or reply
  std::vector<std::pair<int32_t, float>> bias;
  int logprobs = -1;  // -1: none; else how many of the likeliest ids to list

  bool penalizes() const { return presence != 0 || frequency != 0 || repetition != 1; }
  // The draw is the largest logit.
  bool is_argmax() const { return temperature == 0 && bias.empty() && !penalizes(); }
  // Throws InvalidArgument naming the first value out of range (temperature and penalties finite, top_p in
  // (0, 1], ...).
  void check(int n_valid) const;
};

// How often each id occurred; kept only for sequences whose sampling penalizes.
struct TokenCounts {
  std::vector<int32_t> prompt, reply;  // [n_valid]
};

struct Logprobs {
  float chosen = 0;
  std::vector<std::pair<int32_t, float>> top;  // by value descending, then id
};

// Noise of id at a position: -log(-log(u)), u = (top 23 bits of a hash + 0.5) * 2^-23.
float gumbel(uint64_t seed, int64_t position, int32_t id);
// The seed of choice i of a request; choice 0 draws with the seed itself.
uint64_t choice_seed(uint64_t seed, int choice);

// Draws the token at `position`. logits: [n_valid or more]; ids at or beyond n_valid are never drawn. counts
// may be null where nothing is penalized. Logits that are all NaN give id 0.
int32_t draw(std::span<const float> logits, int n_valid, const Sampling& sampling, const TokenCounts* counts,
             int64_t position);

// Log-probability of `token` and of the likeliest ids under the unmodified distribution; NaN where the
// largest logit is infinite.
Logprobs logprobs(std::span<const float> logits, int n_valid, int32_t token, int n_top);

}  // namespace flashnext
