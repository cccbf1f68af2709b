// delta_prep, delta_rule: the gated delta rule.
//
//   q, k normalized over a head (epsilon inside the sum), q / sqrt(Dk); beta = sigmoid(b)
//   decay = exp(-rate * softplus(a + dt_bias)), rate = exp(A_log)
//   M <- decay * M; delta = beta * (v - M^T k); M <- M + k delta^T; o = M^T q
//   out = o / sqrt(mean(o^2) + eps) * norm * gate(z)
//
// delta_prep: 0 counts, 1 conv T[R, 2 Hk Dk + Hv Dv] (q | k | v), 2 b, 3 a float[R, Hv], 4 rate, 5 dt_bias
// float[Hv], 6 q, 7 k float[R, Hk Dk], 8 beta, 9 decay float[R, Hv], 10 DeltaPrepParams. Grid (R),
// kRowThreads threads, a simdgroup a head of keys; a lane squares values lane, lane + 32, ... delta_rule: 0
// counts, 1 sequences, 2 q, 3 k float[R, Hk Dk], 4 conv T[R, ..] (v: its last Hv Dv columns), 5 beta, 6 decay
// float[R, Hv], 7 z T[R, Hv Dv], 8 norm float[Dv], 9 out T[R, Hv Dv], 10 DeltaRuleParams. Grid (sequences,
// Hv), kDeltaThreads threads. Dk a multiple of 4 up to 256, Dv up to 256. Settles M float[Hv, Dk, Dv], also
// at marks.
//
// A column of M depends on no other. Four lanes, 8 apart, have two columns each: the four chains of the key
// dimension (index mod 4), added as (0+2)+(1+3). M stays in their registers while all rows pass, and marks
// get it as it stands behind theirs; o of kStep rows waits in threadgroup memory, where a simdgroup a row
// norms it. A NaN reaches M, and from there every later row of its head.
#include "metal/lib/math.h"
#include "metal/lib/sums.h"

FLASHNEXT_CONSTANT int kStep = kDeltaThreads / kSimdLanes;  // rows whose o is normed together
FLASHNEXT_CONSTANT int kDeltaColumns = kDeltaThreads / 2;   // largest Dv

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void delta_prep(
    device const Counts* counts [[buffer(0)]],
    device const T* conv [[buffer(1)]],
    device const float* b [[buffer(2)]],
    device const float* a [[buffer(3)]],
    device const float* rate [[buffer(4)]],
    device const float* dt_bias [[buffer(5)]],
    device float* q [[buffer(6)]],
    device float* k [[buffer(7)]],
    device float* beta [[buffer(8)]],
    device float* decay [[buffer(9)]],
    constant DeltaPrepParams& p [[buffer(10)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  if (int(tgid.x) >= counts->n[kCountRows]) return;
  const ulong r = tgid.x, keys = ulong(p.k_heads) * p.k_dim, width = 2 * keys + ulong(p.v_heads) * p.v_dim;
  for (uint h = sg; h < 2 * p.k_heads; h += kRowThreads / kSimdLanes) {
    const bool is_key = h >= p.k_heads;
    const ulong head = ulong(is_key ? h - p.k_heads : h) * p.k_dim;
    device const T* x = conv + r * width + (is_key ? keys : 0) + head;
    device float* out = (is_key ? k : q) + r * keys + head;
    const float factor = is_key ? 1.0 : 1.0 / precise::sqrt(float(p.k_dim));
    const float sum = add_lanes(squares(x, p.k_dim, lane, kSimdLanes));
    const float inverse = factor / precise::sqrt(sum + 1e-6);
    for (uint i = lane; i < p.k_dim; i += kSimdLanes) out[i] = float(x[i]) * inverse;
  }
  for (uint h = tid; h < p.v_heads; h += kRowThreads) {
    const ulong here = r * p.v_heads + h;
    beta[here] = sigmoid(b[here]);
    const float x = a[here] + dt_bias[h];
    const float softplus = (x < 0 ? 0.0 : x) + log_of_one_plus(exponential(-fabs(x)));  // NaN stays
    decay[here] = exponential(-(rate[h] * softplus));
  }
}

// Where a sequence's head finds its inputs, row after row.
template <typename T>
struct Inputs {
  device const float* k;
  device const float* q;
  device const T* v;
  device const float* beta;
  device const float* decay;
  ulong keys, values, heads;  // from one row to the next
};

// A thread's part of M: keys `chain`, chain + 4, ... of the columns `column` and, where there is one,
// `second`.
template <int N>
struct State {
  float m[2][N];
  uint chain, column, second, k_dim;

  METAL_FUNC void load(device const float* from, uint v_dim, bool first, bool both) {
    for (int i = 0; i < N; i++) {
      const uint key = uint(4 * i) + chain;
      m[0][i] = first && key < k_dim ? from[ulong(key) * v_dim + column] : 0.0;
      m[1][i] = both && key < k_dim ? from[ulong(key) * v_dim + second] : 0.0;
    }
  }
  METAL_FUNC void save(device float* to, uint v_dim, bool first, bool both) const {
    for (int i = 0; i < N; i++) {
      const uint key = uint(4 * i) + chain;
      if (first && key < k_dim) to[ulong(key) * v_dim + column] = m[0][i];
      if (both && key < k_dim) to[ulong(key) * v_dim + second] = m[1][i];
    }
  }

  METAL_FUNC static float add_chains(float sum) {
    sum += simd_shuffle_xor(sum, ushort(16));  // 0+2, 1+3
    return sum + simd_shuffle_xor(sum, ushort(8));
  }

  // One row's step; o of both columns. Beyond Dk keys, queries and M are 0.
  METAL_FUNC float2
  step(device const float* k, device const float* q, float beta, float decay, float v0, float v1) {
    float sums[2] = {0, 0};
    for (int i = 0; i < N; i++) {
      const uint at = uint(4 * i) + chain;
      const float key = at < k_dim ? k[at] : 0.0;
      for (int c = 0; c < 2; c++) {
        m[c][i] = decay * m[c][i];
        sums[c] = fma(key, m[c][i], sums[c]);
      }
    }
    const float delta[2] = {beta * (v0 - add_chains(sums[0])), beta * (v1 - add_chains(sums[1]))};
    sums[0] = sums[1] = 0;
    for (int i = 0; i < N; i++) {
      const uint at = uint(4 * i) + chain;
      const float key = at < k_dim ? k[at] : 0.0, query = at < k_dim ? q[at] : 0.0;
      for (int c = 0; c < 2; c++) {
        m[c][i] = at < k_dim ? fma(key, delta[c], m[c][i]) : 0.0;
        sums[c] = fma(query, m[c][i], sums[c]);
      }
    }
    return float2(add_chains(sums[0]), add_chains(sums[1]));
  }
};

template <typename T>
struct DeltaRule {
  device const Sequence& seq;
  constant DeltaRuleParams& p;
  Inputs<T> kept, given;
  ulong of_head;  // its M, in those of all heads
  device const T* z;
  device const float* norm;
  device T* out;
  threadgroup float* o;  // [kStep][kDeltaColumns]
  uint lane, sg;

  template <int N>
  METAL_FUNC void run() const {
    State<N> s;
    s.chain = lane / 8;
    s.k_dim = p.k_dim;
    // Beyond Dv a thread takes the last column's values to a state of zeros, and stores nothing.
    const uint column = sg * 16 + lane % 8;
    const bool first = column < p.v_dim, both = column + 8 < p.v_dim;
    s.column = smaller(column, p.v_dim - 1);
    s.second = smaller(column + 8, p.v_dim - 1);
    s.load(m_of(seq.state), p.v_dim, first, both);
    // Simdgroups whose columns all lie beyond Dv only norm.
    const bool steps = sg * 16 < p.v_dim;
    for (int r = 0; steps && r < seq.n_kept; r++) step(s, kept, r);
    if (seq.is_window && seq.n_kept) s.save(m_of(seq.state), p.v_dim, first, both);
    device const Mark* mark = at<const Mark>(seq.marks);
    device const Mark* no_mark = mark + seq.n_marks;
    for (int row = 0; row < seq.n_rows; row += kStep) {
      const int n = smaller(seq.n_rows - row, kStep);
      for (int r = 0; steps && r < n; r++) {
        const float2 y = step(s, given, row + r);
        if (s.chain == 0 && first) o[r * kDeltaColumns + int(s.column)] = y.x;
        if (s.chain == 0 && both) o[r * kDeltaColumns + int(s.second)] = y.y;
        if (mark != no_mark && mark->n_rows == row + r + 1) {
          s.save(m_of(mark->state), p.v_dim, first, both);
          mark++;
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (int(sg) < n) finish(row + int(sg), o + sg * kDeltaColumns);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (!seq.is_window) s.save(m_of(seq.state), p.v_dim, first, both);
  }

  METAL_FUNC device float* m_of(ulong block) const { return at<float>(block, p.state_offset) + of_head; }

  template <int N>
  METAL_FUNC float2 step(thread State<N>& s, Inputs<T> x, int r) const {
    device const T* v = x.v + r * x.values;
    return s.step(x.k + r * x.keys, x.q + r * x.keys, x.beta[r * x.heads], x.decay[r * x.heads],
                  float(v[s.column]), float(v[s.second]));
  }

  // Norms and gates a row's o: a simdgroup.
  METAL_FUNC void finish(int r, threadgroup const float* row) const {
    float sum = 0;
    for (uint i = lane; i < p.v_dim; i += kSimdLanes) {
      const float y = row[i];
      sum = fma(y, y, sum);
    }
    const float inverse = inverse_rms(add_lanes(sum), p.v_dim, p.eps);
    const ulong here = ulong(r) * p.v_heads * p.v_dim;
    for (uint i = lane; i < p.v_dim; i += kSimdLanes) {
      const float x = float(z[here + i]), gate = p.gate_silu ? silu(x) : sigmoid(x);
      out[here + i] = T(row[i] * inverse * norm[i] * gate);
    }
  }
};

template <typename T>
[[kernel, max_total_threads_per_threadgroup(kDeltaThreads)]] void delta_rule(
    device const Counts* counts [[buffer(0)]],
    device const Sequence* sequences [[buffer(1)]],
    device const float* q [[buffer(2)]],
    device const float* k [[buffer(3)]],
    device const T* conv [[buffer(4)]],
    device const float* beta [[buffer(5)]],
    device const float* decay [[buffer(6)]],
    device const T* z [[buffer(7)]],
    device const float* norm [[buffer(8)]],
    device T* out [[buffer(9)]],
    constant DeltaRuleParams& p [[buffer(10)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float o[kStep * kDeltaColumns];
  if (int(tgid.x) >= counts->n[kCountSequences]) return;
  device const Sequence& seq = sequences[tgid.x];
  const uint head = tgid.y, key_head = head / (p.v_heads / p.k_heads);
  const ulong keys = ulong(p.k_heads) * p.k_dim, values = ulong(p.v_heads) * p.v_dim,
              width = 2 * keys + values;
  const ulong row = ulong(seq.first_row), of_key = ulong(key_head) * p.k_dim,
              of_value = ulong(head) * p.v_dim;
  device const float* kept_k = at<const float>(seq.kept, p.k_offset) + of_key;
  const Inputs<T> kept = {kept_k,
                          kept_k,
                          at<const T>(seq.kept, p.v_offset) + of_value,
                          at<const float>(seq.kept, p.beta_offset) + head,
                          at<const float>(seq.kept, p.decay_offset) + head,
                          keys,
                          values,
                          p.v_heads};
  const Inputs<T> given = {k + row * keys + of_key,
                           q + row * keys + of_key,
                           conv + row * width + 2 * keys + of_value,
                           beta + row * p.v_heads + head,
                           decay + row * p.v_heads + head,
                           keys,
                           width,
                           p.v_heads};
  const DeltaRule<T> rule = {seq,
                             p,
                             kept,
                             given,
                             ulong(head) * p.k_dim * p.v_dim,
                             z + row * values + of_value,
                             norm,
                             out + row * values + of_value,
                             o,
                             lane,
                             sg};
  if (p.k_dim <= 64) {
    rule.template run<16>();
  } else if (p.k_dim <= 128) {
    rule.template run<32>();
  } else {
    rule.template run<64>();
  }
  if (!seq.is_window) return;
  for (int r = 0; r < seq.n_rows; r++) {
    if (tid < p.v_dim)
      at<T>(seq.unsettled, p.v_offset)[r * values + of_value + tid] = given.v[r * width + tid];
    if (tid == 0) {
      at<float>(seq.unsettled, p.beta_offset)[ulong(r) * p.v_heads + head] = given.beta[ulong(r) * p.v_heads];
      at<float>(seq.unsettled, p.decay_offset)[ulong(r) * p.v_heads + head] =
          given.decay[ulong(r) * p.v_heads];
    }
    if (head % (p.v_heads / p.k_heads) == 0 && tid < p.k_dim) {
      at<float>(seq.unsettled, p.k_offset)[r * keys + of_key + tid] = given.k[r * keys + tid];
    }
  }
}

template [[host_name("delta_prep_bf16")]] [[kernel]] decltype(delta_prep<bfloat>) delta_prep<bfloat>;
template [[host_name("delta_prep_f32")]] [[kernel]] decltype(delta_prep<float>) delta_prep<float>;
template [[host_name("delta_rule_bf16")]] [[kernel]] decltype(delta_rule<bfloat>) delta_rule<bfloat>;
template [[host_name("delta_rule_f32")]] [[kernel]] decltype(delta_rule<float>) delta_rule<float>;
