// delta_prep, delta_rule: the gated delta rule. Source: tests/support/reference/decoder.py
// (`deltanet`).
//
//   q, k normalized over a head (epsilon inside the sum), q / sqrt(Dk); beta = sigmoid(b)
//   decay = exp(-rate * softplus(a + dt_bias)), rate = exp(A_log)
//   M <- decay * M; delta = beta * (v - M^T k); M <- M + k delta^T; o = M^T q
//   out = o / sqrt(mean(o^2) + eps) * norm * gate(z)
//
// A column of M depends on no other, so a head runs in strips of columns that stay in the first cache while
// all rows pass, and marks get it as it stands behind their rows. Sums over the key dimension run in four
// chains (index mod 4), added as (0+2)+(1+3).
#include "kernels/cpu/norm.h"
#include "kernels/cpu/tables.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

template <class T>
void delta_prep(const Task& t) {
  const auto& p = t.get<DeltaPrepParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const size_t r = t.x, keys = size_t{p.k_heads} * p.k_dim, width = 2 * keys + size_t{p.v_heads} * p.v_dim;
  const T* conv = t.slot<const T>(1) + r * width;
  for (uint32_t h = 0; h < p.k_heads; ++h) {
    const auto normalize = [&](const T* x, float factor, float* out) {
      const F inverse = set1(factor / ::sqrtf(sum_of_squares(x, p.k_dim) + 1e-6f));
      for (uint32_t i = 0; i < p.k_dim; i += kLanes) store(out + i, load(x + i) * inverse);
    };
    const size_t at = h * size_t{p.k_dim};
    normalize(conv + at, 1.0f / ::sqrtf(static_cast<float>(p.k_dim)), t.slot<float>(6) + r * keys + at);
    normalize(conv + keys + at, 1.0f, t.slot<float>(7) + r * keys + at);
  }
  for (uint32_t h = 0; h < p.v_heads; ++h) {
    const size_t at = r * p.v_heads + h;
    t.slot<float>(8)[at] = sigmoid(t.slot<const float>(2)[at]);
    // In double: exp of a product of two exponentials would otherwise lose several bits, which every later
    // row inherits.
    const double x = double{t.slot<const float>(3)[at]} + t.slot<const float>(5)[h];
    const double softplus = (x < 0 ? 0 : x) + ::log1p(::exp(-::fabs(x)));  // NaN stays
    t.slot<float>(9)[at] = static_cast<float>(::exp(-double{t.slot<const float>(4)[h]} * softplus));
  }
}

constexpr uint32_t kStrip = 2 * kLanes;  // columns of M that pass together
constexpr uint32_t kMaxKeyDim = 256;

// One row's step of a strip: the new M in place and, where out is given, o.
inline void step(float* m, uint32_t k_dim, const float* k, const float* q, float beta, float decay, F v0,
                 F v1, float* out) {
  F sum[4][2];
  for (int i = 0; i < 4; ++i) sum[i][0] = sum[i][1] = zero();
  const F d = set1(decay);
  for (uint32_t i = 0; i < k_dim; i += 4) {
    for (int j = 0; j < 4; ++j) {
      float* row = m + (i + j) * kStrip;
      const F key = set1(k[i + j]), a = d * load(row), b = d * load(row + kLanes);
      store(row, a);
      store(row + kLanes, b);
      sum[j][0] = fma(key, a, sum[j][0]);
      sum[j][1] = fma(key, b, sum[j][1]);
    }
  }
  const F delta0 = set1(beta) * (v0 - ((sum[0][0] + sum[2][0]) + (sum[1][0] + sum[3][0])));
  const F delta1 = set1(beta) * (v1 - ((sum[0][1] + sum[2][1]) + (sum[1][1] + sum[3][1])));
  for (int i = 0; i < 4; ++i) sum[i][0] = sum[i][1] = zero();
  for (uint32_t i = 0; i < k_dim; i += 4) {
    for (int j = 0; j < 4; ++j) {
      float* row = m + (i + j) * kStrip;
      const F key = set1(k[i + j]), query = set1(q[i + j]);
      const F a = fma(key, delta0, load(row)), b = fma(key, delta1, load(row + kLanes));
      store(row, a);
      store(row + kLanes, b);
      sum[j][0] = fma(query, a, sum[j][0]);
      sum[j][1] = fma(query, b, sum[j][1]);
    }
  }
  if (!out) return;
  store(out, (sum[0][0] + sum[2][0]) + (sum[1][0] + sum[3][0]));
  store(out + kLanes, (sum[0][1] + sum[2][1]) + (sum[1][1] + sum[3][1]));
}

template <class T>
void delta_rule(const Task& t) {
  const auto& p = t.get<DeltaRuleParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountSequences]) return;
  const Sequence& seq = t.slot<Sequence>(1)[t.x];
  const uint32_t head = t.y, key_head = head / (p.v_heads / p.k_heads);
  const size_t keys = size_t{p.k_heads} * p.k_dim, values = size_t{p.v_heads} * p.v_dim,
               width = 2 * keys + values;
  const float* q = t.slot<const float>(2) + seq.first_row * keys + key_head * p.k_dim;
  const float* k = t.slot<const float>(3) + seq.first_row * keys + key_head * p.k_dim;
  const T* v = t.slot<const T>(4) + seq.first_row * width + 2 * keys + head * p.v_dim;
  const float* beta = t.slot<const float>(5) + seq.first_row * p.v_heads + head;
  const float* decay = t.slot<const float>(6) + seq.first_row * p.v_heads + head;
  T* out = t.slot<T>(9) + seq.first_row * values + head * p.v_dim;
  const size_t of_head = size_t{head} * p.k_dim * p.v_dim;
  float* state = at<float>(seq.state, p.state_offset) + of_head;
  const auto* marks = at<const Mark>(seq.marks);

  const float* kept_k = at<float>(seq.kept, p.k_offset) + key_head * p.k_dim;
  const T* kept_v = at<T>(seq.kept, p.v_offset) + head * p.v_dim;
  const float* kept_beta = at<float>(seq.kept, p.beta_offset) + head;
  const float* kept_decay = at<float>(seq.kept, p.decay_offset) + head;

  // Scratch: the strip, then o of all rows; a prompt chunk of 4 MiB of o is far beyond the envelope.
  auto* m = reinterpret_cast<float*>(t.scratch);
  float* o = m + kMaxKeyDim * kStrip;
  for (uint32_t c = 0; c < p.v_dim; c += kStrip) {
    for (uint32_t i = 0; i < p.k_dim; ++i) {
      store(m + i * kStrip, load(state + i * p.v_dim + c));
      store(m + i * kStrip + kLanes, load(state + i * p.v_dim + c + kLanes));
    }
    const auto save = [&](float* to) {
      for (uint32_t i = 0; i < p.k_dim; ++i)
        std::memcpy(to + i * p.v_dim + c, m + i * kStrip, kStrip * sizeof(float));
    };
    for (int32_t r = 0; r < seq.n_kept; ++r) {
      const T* value = kept_v + r * values + c;
      step(m, p.k_dim, kept_k + r * keys, kept_k + r * keys, kept_beta[r * p.v_heads],
           kept_decay[r * p.v_heads], load(value), load(value + kLanes), nullptr);
    }
    if (seq.is_window && seq.n_kept) save(state);
    int32_t r = 0;
    for (int32_t mark = 0; mark <= seq.n_marks; ++mark) {
      for (const int32_t end = mark < seq.n_marks ? marks[mark].n_rows : seq.n_rows; r < end; ++r) {
        const T* value = v + r * width + c;
        step(m, p.k_dim, k + r * keys, q + r * keys, beta[r * p.v_heads], decay[r * p.v_heads], load(value),
             load(value + kLanes), o + r * p.v_dim + c);
      }
      if (mark < seq.n_marks) save(at<float>(marks[mark].state, p.state_offset) + of_head);
    }
    if (!seq.is_window) save(state);
  }

  const T* z = t.slot<const T>(7) + seq.first_row * values + head * p.v_dim;
  const float* norm = t.slot<const float>(8);
  for (int32_t r = 0; r < seq.n_rows; ++r) {
    float* row = o + r * p.v_dim;
    const F inverse = set1(inverse_rms(sum_of_squares(row, p.v_dim), p.v_dim, p.eps));
    for (uint32_t i = 0; i < p.v_dim; i += kLanes) {
      const F zi = load(z + r * values + i), gate = p.gate_silu ? silu(zi) : sigmoid(zi);
      store(out + r * values + i, load(row + i) * inverse * load(norm + i) * gate);
    }
    if (!seq.is_window) continue;
    std::memcpy(at<T>(seq.unsettled, p.v_offset) + r * values + head * p.v_dim, v + r * width,
                p.v_dim * sizeof(T));
    at<float>(seq.unsettled, p.beta_offset)[r * p.v_heads + head] = beta[r * p.v_heads];
    at<float>(seq.unsettled, p.decay_offset)[r * p.v_heads + head] = decay[r * p.v_heads];
    if (head % (p.v_heads / p.k_heads) == 0) {
      std::memcpy(at<float>(seq.unsettled, p.k_offset) + r * keys + key_head * p.k_dim, k + r * keys,
                  p.k_dim * sizeof(float));
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {"delta_prep_bf16", delta_prep<bfloat16>, 1},
    {"delta_prep_f32", delta_prep<float>, 1},
    {"delta_rule_bf16", delta_rule<bfloat16>, 1},
    {"delta_rule_f32", delta_rule<float>, 1},
};

}  // namespace

KernelList delta_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
