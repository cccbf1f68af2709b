#include "rounds/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/exact_math.h"
#include "base/hash.h"
#include "metal/params.h"

namespace flashnext {
namespace {

struct Candidate {
  float value;
  int32_t id;
};

bool before(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// Sum of e^(value - max) in blocks of kSamplerBlock ids; `values` is in id order.
float vocabulary_sum(const std::vector<Candidate>& values, float max) {
  float total = 0;
  size_t i = 0;
  for (int32_t end = kSamplerBlock; i < values.size(); end += kSamplerBlock) {
    float block = 0;
    for (; i < values.size() && values[i].id < end; ++i) block += exact_exp(values[i].value - max);
    total += block;
  }
  return total;
}

void require(bool ok, const std::string& name, double value, const char* rule) {
  if (!ok) throw InvalidArgument(name + " is " + std::to_string(value) + ", expected " + rule);
}

}  // namespace

void Sampling::check(int n_valid) const {
  require(std::isfinite(temperature) && temperature >= 0, "temperature", temperature,
          "a finite number of at least 0");
  require(top_k >= 0, "top_k", top_k, "0 (all) or more");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "more than 0 and at most 1");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "0 to 1");
  require(std::isfinite(presence), "presence_penalty", presence, "a finite number");
  require(std::isfinite(frequency), "frequency_penalty", frequency, "a finite number");
  require(std::isfinite(repetition) && repetition > 0, "repetition_penalty", repetition,
          "a finite number above 0");
  for (const auto& [id, value] : bias) {
    require(id >= 0 && id < n_valid, "logit_bias token id", id, "an id of the vocabulary");
    require(std::isfinite(value), "logit_bias value", value, "a finite number");
  }
}

float gumbel(uint64_t seed, int64_t position, int32_t id) { return noise(noise_key(seed, position), id); }

uint64_t choice_seed(uint64_t seed, int choice) {
  return choice == 0 ? seed : splitmix64(seed ^ splitmix64(static_cast<uint64_t>(choice)));
}

int32_t draw(std::span<const float> logits, int n_valid, const Sampling& s, const TokenCounts* counts,
             int64_t position) {
  std::vector<Candidate> all(static_cast<size_t>(n_valid));
  for (int32_t i = 0; i < n_valid; ++i) all[static_cast<size_t>(i)] = {logits[static_cast<size_t>(i)], i};
  for (const auto& [id, value] : s.bias) all[static_cast<size_t>(id)].value += value;
  if (counts && s.penalizes()) {
    for (size_t i = 0; i < all.size(); ++i) {
      float& x = all[i].value;
      if (counts->prompt[i] || counts->reply[i]) x = x > 0 ? x / s.repetition : x * s.repetition;
      if (counts->reply[i]) x = std::fmaf(-s.frequency, static_cast<float>(counts->reply[i]), x) - s.presence;
    }
  }
  std::erase_if(all, [](const Candidate& c) { return c.value != c.value; });
  if (all.empty()) return 0;
  if (s.temperature == 0) return std::min_element(all.begin(), all.end(), before)->id;
  // Measured from the best one, so that no temperature, however small, makes several of them infinite.
  const float best_value = std::min_element(all.begin(), all.end(), before)->value;
  for (Candidate& c : all) c.value = c.value == best_value ? 0.0f : (c.value - best_value) / s.temperature;

  // `all` stays in id order until a rule needs the candidates sorted.
  const bool by_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < all.size();
  const auto weight = [](const Candidate& c) { return c.value == 0 ? 1.0f : exact_exp(c.value); };
  if (by_k) {
    std::partial_sort(all.begin(), all.begin() + s.top_k, all.end(), before);
    all.resize(static_cast<size_t>(s.top_k));
  }
  if (s.top_p < 1) {
    float total = 0;
    if (by_k) {
      for (const Candidate& c : all) total += weight(c);
    } else {
      total = vocabulary_sum(all, 0);
      std::sort(all.begin(), all.end(), before);
    }
    float sum = 0;
    size_t n = 0;
    while (n < all.size() && (n == 0 || sum < s.top_p * total)) sum += weight(all[n++]);
    all.resize(n);
  }
  if (s.min_p > 0) std::erase_if(all, [&](const Candidate& c) { return weight(c) < s.min_p; });
  Candidate best = {0, -1};
  for (const Candidate& c : all) {
    const Candidate noisy = {c.value + gumbel(s.seed, position, c.id), c.id};
    if (best.id < 0 || before(noisy, best)) best = noisy;
  }
  return best.id;
}

Logprobs logprobs(std::span<const float> logits, int n_valid, int32_t token, int n_top) {
  std::vector<Candidate> all;
  for (int32_t i = 0; i < n_valid; ++i) {
    const float x = logits[static_cast<size_t>(i)];
    if (x == x) all.push_back({x, i});
  }
  Logprobs out;
  if (all.empty()) return out;
  const float max = std::min_element(all.begin(), all.end(), before)->value;
  const bool sound = std::isfinite(max);
  const float log_sum = sound ? exact_log(vocabulary_sum(all, max)) : 0;
  const auto value = [&](float x) {
    return sound ? (x - max) - log_sum : std::numeric_limits<float>::quiet_NaN();
  };
  out.chosen = value(logits[static_cast<size_t>(token)]);
  const size_t n = std::min(static_cast<size_t>(std::max(n_top, 0)), all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(n), all.end(), before);
  for (size_t i = 0; i < n; ++i) out.top.emplace_back(all[i].id, value(all[i].value));
  return out;
}

}  // namespace flashnext
