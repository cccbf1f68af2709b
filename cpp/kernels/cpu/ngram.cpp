// ngram_ids, ngram_gather, ple_gate: the hashed n-gram embedding and its gate on the streams; ple_conv of
// conv.cpp adds it to them. Source: tests/support/reference, ngram.py and decoder.py (`ple`).
//
//   row ids: mix_n = xor over s < n of b_s * m_s; head h of order n reads mix_n mod size_h + offset_h
//   k = rms_D(W_key e), q = rms_D(h), s_j = <k_j, q_j> / sqrt(D)
//   a_j = sigmoid(sign(s_j) * sqrt(max(|s_j|, 1e-6))), U = (a_j v), N = rms_D(U)
#include "kernels/cpu/norm.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/tail.h"

namespace flashnext::cpu::FLASHNEXT_PATH {
namespace {

constexpr uint32_t kMaxNgram = 8;

void ngram_ids(const Task& t) {
  const auto& p = t.get<NgramIdsParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountSequences]) return;
  const Sequence& seq = t.slot<Sequence>(1)[t.x];
  const Row* rows = t.slot<const Row>(2) + seq.first_row;
  const auto* multipliers = t.slot<const int64_t>(3);
  const auto* sizes = t.slot<const int64_t>(4);
  const auto* offsets = t.slot<const int64_t>(5);
  const uint32_t n_back = p.ngram - 1, n_heads = n_back * p.heads_per_ngram;
  auto* tail = at<int32_t>(seq.state, p.state_offset);
  last_rows(tail, tail, n_back, at<int32_t>(seq.kept, p.unsettled_offset), seq.n_kept, 1, 0, 1);
  const auto *mark = at<const Mark>(seq.marks), *no_mark = mark + seq.n_marks;

  int32_t back[kMaxNgram];  // the tokens before the row, newest last
  std::memcpy(back, tail, n_back * sizeof *tail);
  for (int32_t r = 0; r < seq.n_rows; ++r) {
    auto mix = static_cast<uint64_t>(rows[r].token) * static_cast<uint64_t>(multipliers[0]);
    uint32_t* ids = t.slot<uint32_t>(6) + size_t(seq.first_row + r) * n_heads;
    bool stopped = false;
    for (uint32_t s = 1; s <= n_back; ++s) {
      const int32_t token = back[n_back - s];
      stopped = stopped || token == p.segment_token;
      mix ^= static_cast<uint64_t>(stopped ? p.segment_token : token) * static_cast<uint64_t>(multipliers[s]);
      for (uint32_t h = (s - 1) * p.heads_per_ngram; h < s * p.heads_per_ngram; ++h) {
        ids[h] =
            static_cast<uint32_t>(mix % static_cast<uint64_t>(sizes[h]) + static_cast<uint64_t>(offsets[h]));
      }
    }
    for (uint32_t i = 0; i + 1 < n_back; ++i) back[i] = back[i + 1];
    if (n_back) back[n_back - 1] = rows[r].token;
    if (seq.is_window) at<int32_t>(seq.unsettled, p.unsettled_offset)[r] = rows[r].token;
    if (mark != no_mark && mark->n_rows == r + 1) {
      std::memcpy(at<int32_t>(mark++->state, p.state_offset), back, n_back * sizeof *tail);
    }
  }
  if (!seq.is_window) std::memcpy(tail, back, n_back * sizeof *tail);
}

template <class T>
void ngram_gather(const Task& t) {
  const auto& p = t.get<NgramGatherParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const uint32_t* ids = t.slot<const uint32_t>(1) + size_t{t.x} * p.n_heads;
  auto* row = reinterpret_cast<PanelScratch*>(t.scratch)->f.row;
  for (uint32_t h = 0; h < p.n_heads; ++h) {
    const uint64_t* shard = t.slot<const uint64_t>(2) + size_t{ids[h] / p.rows_per_shard} * 3;
    const Matrix table = {at<const uint8_t>(shard[0], 0), at<const bfloat16>(shard[1], 0),
                          at<const bfloat16>(shard[2], 0), p.format, p.row_width};
    decode(table, ids[h] % p.rows_per_shard, 0, p.row_width, row);
    T* out = t.slot<T>(3) + (size_t{t.x} * p.n_heads + h) * p.row_width;
    for (uint32_t i = 0; i < p.row_width; ++i) put(out + i, row[i] * p.scale);
  }
}

template <class T>
void ple_gate(const Task& t) {
  const auto& p = t.get<PleGateParams>();
  if (int32_t(t.x) >= t.slot<Counts>(0)->n[kCountRows]) return;
  const uint32_t D = p.hidden;
  const T* value = t.slot<const T>(2) + size_t{t.x} * D;
  auto* scratch = reinterpret_cast<float*>(t.scratch);
  float *k = scratch, *q = scratch + D, *u = scratch + 2 * size_t{D};
  for (uint32_t s = 0; s < p.hc_count; ++s) {
    const size_t here = (size_t{t.x} * p.hc_count + s) * D;
    rms_norm(t.slot<const T>(1) + here, t.slot<const float>(4) + size_t{s} * D, D, p.eps, k);
    rms_norm(t.slot<const T>(3) + here, t.slot<const float>(5) + size_t{s} * D, D, p.eps, q);
    const float score = dot(k, q, D) / ::sqrtf(static_cast<float>(D));
    const float size = ::sqrtf(::fabsf(score) > 1e-6f ? ::fabsf(score) : (score == score ? 1e-6f : score));
    const float gate = sigmoid(score > 0 ? size : score < 0 ? -size : score == 0 ? 0.0f : score);
    T* gated = t.slot<T>(7) + here;
    for (uint32_t i = 0; i < D; i += kLanes) {
      const F x = set1(gate) * load(value + i);
      store(u + i, x);
      store(gated + i, x);
    }
    rms_norm(u, t.slot<const float>(6) + size_t{s} * D, D, p.eps, t.slot<T>(8) + here);
  }
}

constexpr KernelEntry kEntries[] = {
    {"ngram_ids", ngram_ids, 1},
    {"ngram_gather_bf16", ngram_gather<bfloat16>, 1},
    {"ngram_gather_f32", ngram_gather<float>, 1},
    {"ple_gate_bf16", ple_gate<bfloat16>, 1},
    {"ple_gate_f32", ple_gate<float>, 1},
};

}  // namespace

KernelList ngram_kernels() { return {kEntries, sizeof kEntries / sizeof *kEntries}; }

}  // namespace flashnext::cpu::FLASHNEXT_PATH
