// Launchers: each records one kernel of metal/params.h with its grid, slots and argument struct.
//
// A caller passes upper bounds of rows and sequences; the kernels read the true counts. Launchers never
// record barriers.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "device/device.h"
#include "metal/params.h"

namespace flashnext {

// A stored matrix [n_out, n_in], or a batch of them.
struct StoredMatrix {
  Slice codes, scales, biases;
  Format format = {16, 0};
  uint32_t n_out = 0, n_in = 0;
  uint64_t codes_stride = 0, scales_stride = 0;  // bytes from one of a batch to the next

  size_t size_bytes() const;  // of one
};

// The rows of a pass: tables on the device and bounds the host knows.
struct Batch {
  Slice counts, sequences, rows, logit_rows;
  uint32_t max_rows = 0, max_sequences = 0, max_logits = 0;
  uint32_t hc_count = 1;  // streams of a row

  uint32_t bound(CountIndex count) const {
    switch (count) {
      case kCountSequences: return max_sequences;
      case kCountLogits: return max_logits;
      case kCountStreams: return max_rows * hc_count;
      default: return max_rows;
    }
  }
};

// The tables of a round's rows, filled on the device.
struct RoundTables {
  Slice counts, sequences, rows, logit_rows, draws;
};

// The tables of a step of the draft head: step 0 absorbs rows, those behind it one row a sequence.
struct HeadTables {
  Slice counts, sequences, rows, sources, logit_rows, draws, drafted;
  Slice replies, last_rows;  // step 0
};

// What copy_drafts reads and writes, by window of a round.
struct CopyTables {
  Slice counts, replies, limits, n_copied;
};

// What becomes of the sums of a product (Epilogue).
struct Finish {
  Epilogue epilogue = kStore;
  float alpha = 1, beta = 1;
  Slice gates = {};       // kResidual: float[R, hc_count]
  uint32_t hc_count = 0;  // kResidual
};

class Launcher {
 public:
  // Resolves every kernel of the activation type; throws InvalidArgument where the device lacks one.
  Launcher(const Device& device, DType dtype);

  void embed(CommandBuffer& cb, const Batch& b, const StoredMatrix& table, uint32_t hc_count,
             Slice streams) const;
  // features: uint64 addresses by row, 0 for none.
  void embed_media(CommandBuffer& cb, const Batch& b, Slice features, Slice streams,
                   const EmbedMediaParams& p) const;
  void matmul(CommandBuffer& cb, const Batch& b, Slice x, const StoredMatrix& w, Slice out,
              const Finish& finish = {}, CountIndex count = kCountRows) const;
  void hc_norm(CommandBuffer& cb, const Batch& b, Slice streams, Slice gamma, Slice out,
               HcNormParams p) const;
  void hc_mix(CommandBuffer& cb, const Batch& b, Slice low, const StoredMatrix& up, Slice normed, Slice out,
              uint32_t hc_count, CountIndex count) const;

  void ngram_ids(CommandBuffer& cb, const Batch& b, Slice multipliers, Slice sizes, Slice offsets, Slice ids,
                 const NgramIdsParams& p) const;
  void ngram_gather(CommandBuffer& cb, const Batch& b, Slice ids, Slice shards, Slice out,
                    const NgramGatherParams& p) const;
  void ple_gate(CommandBuffer& cb, const Batch& b, Slice key, Slice value, Slice streams, Slice gamma_key,
                Slice gamma_query, Slice gamma_conv, Slice gated, Slice normed, const PleGateParams& p) const;
  void ple_conv(CommandBuffer& cb, const Batch& b, Slice normed, Slice gated, Slice taps, Slice streams,
                const PleConvParams& p) const;

  void delta_conv(CommandBuffer& cb, const Batch& b, Slice x, Slice taps, Slice out,
                  const DeltaConvParams& p) const;
  void delta_prep(CommandBuffer& cb, const Batch& b, Slice conv, Slice beta_in, Slice decay_in, Slice rate,
                  Slice dt_bias, Slice q, Slice k, Slice beta, Slice decay, const DeltaPrepParams& p) const;
  void delta_rule(CommandBuffer& cb, const Batch& b, Slice q, Slice k, Slice conv, Slice beta, Slice decay,
                  Slice z, Slice norm, Slice out, const DeltaRuleParams& p) const;

  void rope(CommandBuffer& cb, const Batch& b, Slice inv_freq, Slice cos, Slice sin,
            const RopeParams& p) const;
  void attention_prep(CommandBuffer& cb, const Batch& b, Slice qg, Slice k, Slice v, Slice index_qk,
                      Slice gamma_q, Slice gamma_k, Slice gamma_index_q, Slice cos, Slice sin, Slice q,
                      Slice index_q, const AttentionPrepParams& p) const;
  void index_pool(CommandBuffer& cb, const Batch& b, Slice gamma, Slice inv_freq,
                  const IndexPoolParams& p) const;
  void index_score(CommandBuffer& cb, const Batch& b, Slice index_q, Slice scores, uint32_t max_blocks,
                   uint32_t n_rows, const IndexScoreParams& p) const;
  void index_select(CommandBuffer& cb, const Batch& b, Slice scores, Slice blocks, Slice n_selected,
                    uint32_t n_rows, const IndexSelectParams& p) const;
  void attention(CommandBuffer& cb, const Batch& b, Slice q, Slice qg, Slice blocks, Slice n_selected,
                 Slice out, const AttentionParams& p) const;

  void router_topk(CommandBuffer& cb, const Batch& b, Slice logits, Slice ids, Slice weights,
                   const RouterParams& p) const;
  void expert_sort(CommandBuffer& cb, const Batch& b, Slice ids, Slice active, Slice starts, Slice pairs,
                   const RouterParams& p) const;
  void expert_gate_up(CommandBuffer& cb, const Batch& b, Slice active, Slice starts, Slice pairs, Slice x,
                      const StoredMatrix& gate, const StoredMatrix& up, Slice act,
                      const RouterParams& p) const;
  void glu(CommandBuffer& cb, const Batch& b, Slice x, const StoredMatrix& gate, const StoredMatrix& up,
           Slice act) const;
  void expert_down(CommandBuffer& cb, const Batch& b, Slice active, Slice starts, Slice pairs, Slice weights,
                   Slice act, const StoredMatrix& down, Slice shared_act, const StoredMatrix& shared_down,
                   Slice shared_gate, Slice gates, Slice streams, uint32_t top_k, uint32_t hc_count) const;

  // map: int32 rows of the source.
  void copy_rows(CommandBuffer& cb, const Batch& b, Slice map, Slice source, Slice out, uint32_t width,
                 CountIndex count) const;
  void round_rows(CommandBuffer& cb, const RoundTables& t, Slice windows, uint32_t n_windows) const;
  void verdict(CommandBuffer& cb, Slice windows, Slice drawn, Slice landed, const CopyTables& copies,
               const VerdictParams& p) const;
  // n_copied: empty where nothing was copied; head: empty without one.
  void absorb_rows(CommandBuffer& cb, Slice windows, Slice landed, Slice n_copied, const HeadTables& head,
                   const AbsorbRowsParams& p) const;
  void keep_streams(CommandBuffer& cb, const HeadTables& head, uint32_t max_sequences, Slice streams,
                    const KeepStreamsParams& p) const;
  // next: empty behind the last step.
  void draft_rows(CommandBuffer& cb, const HeadTables& step, const HeadTables& next, Slice replies,
                  uint32_t max_sequences) const;
  void copy_drafts(CommandBuffer& cb, const CopyTables& copies, uint32_t max_sequences) const;

  // The sampler; kernels/sampler.h records all of it. Throw InvalidArgument where n_valid is above kMaxDrawn.
  void draw_max(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                const DrawParams& p) const;
  void draw_blocks(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima, Slice parts,
                   const DrawParams& p) const;
  void draw_pick(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima, Slice parts,
                 Slice out, const DrawParams& p) const;
  void logprob_sums(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima, Slice sums,
                    const DrawParams& p) const;
  void token_logprobs(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima, Slice sums,
                      Slice tokens, Slice chosen, Slice top_ids, Slice top_values, const DrawParams& p) const;
  void logits_hash(CommandBuffer& cb, const Batch& b, Slice logits, Slice out, const DrawParams& p) const;

 private:
  struct Kernels;
  std::shared_ptr<const Kernels> k_;
};

}  // namespace flashnext
