#include "kernels/launch.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "kernels/grid.h"

namespace flashnext {

size_t StoredMatrix::size_bytes() const {
  const size_t values = size_t{n_out} * n_in;
  return values * format.bits / 8 + (format.bits < 16 ? values / format.group * 4 : 0);
}

struct Launcher::Kernels {
  Kernels(const Device& d, const std::string& t)
      : embed(d.kernel("embed_" + t)),
        embed_media(d.kernel("embed_media_" + t)),
        matmul(d.kernel("matmul_" + t)),
        hc_norm(d.kernel("hc_norm_" + t)),
        hc_mix(d.kernel("hc_mix_" + t)),
        ngram_ids(d.kernel("ngram_ids")),
        ngram_gather(d.kernel("ngram_gather_" + t)),
        ple_gate(d.kernel("ple_gate_" + t)),
        ple_conv(d.kernel("ple_conv_" + t)),
        delta_conv(d.kernel("delta_conv_" + t)),
        delta_prep(d.kernel("delta_prep_" + t)),
        delta_rule(d.kernel("delta_rule_" + t)),
        rope(d.kernel("rope")),
        attention_prep(d.kernel("attention_prep_" + t)),
        index_pool(d.kernel("index_pool_" + t)),
        index_score(d.kernel("index_score_" + t)),
        index_select(d.kernel("index_select")),
        attention(d.kernel("attention_" + t)),
        router_topk(d.kernel("router_topk")),
        expert_sort(d.kernel("expert_sort")),
        expert_gate_up(d.kernel("expert_gate_up_" + t)),
        glu(d.kernel("glu_" + t)),
        expert_down(d.kernel("expert_down_" + t)),
        copy_rows(d.kernel("copy_rows_" + t)),
        round_rows(d.kernel("round_rows")),
        verdict(d.kernel("verdict")),
        absorb_rows(d.kernel("absorb_rows")),
        keep_streams(d.kernel("keep_streams_" + t)),
        draft_rows(d.kernel("draft_rows")),
        copy_drafts(d.kernel("copy_drafts")),
        draw_max(d.kernel("draw_max")),
        draw_blocks(d.kernel("draw_blocks")),
        draw_pick(d.kernel("draw_pick")),
        logprob_sums(d.kernel("logprob_sums")),
        token_logprobs(d.kernel("token_logprobs")),
        logits_hash(d.kernel("logits_hash")) {}

  const Kernel &embed, &embed_media, &matmul, &hc_norm, &hc_mix, &ngram_ids, &ngram_gather, &ple_gate,
      &ple_conv, &delta_conv, &delta_prep, &delta_rule, &rope, &attention_prep, &index_pool, &index_score,
      &index_select, &attention, &router_topk, &expert_sort, &expert_gate_up, &glu, &expert_down, &copy_rows,
      &round_rows, &verdict, &absorb_rows, &keep_streams, &draft_rows, &copy_drafts, &draw_max, &draw_blocks,
      &draw_pick, &logprob_sums, &token_logprobs, &logits_hash;
};

Launcher::Launcher(const Device& device, DType dtype)
    : k_(std::make_shared<Kernels>(device, suffix(dtype))) {}

void Launcher::embed(CommandBuffer& cb, const Batch& b, const StoredMatrix& table, uint32_t hc_count,
                     Slice streams) const {
  cb.dispatch(k_->embed, {b.max_rows}, {b.counts, b.rows, table.codes, table.scales, table.biases, streams},
              EmbedParams{table.format, table.n_in, hc_count});
}

void Launcher::embed_media(CommandBuffer& cb, const Batch& b, Slice features, Slice streams,
                           const EmbedMediaParams& p) const {
  cb.dispatch(k_->embed_media, {b.max_rows}, {b.counts, features, streams}, p);
}

void Launcher::matmul(CommandBuffer& cb, const Batch& b, Slice x, const StoredMatrix& w, Slice out,
                      const Finish& f, CountIndex count) const {
  cb.dispatch(k_->matmul, {tiles(w.n_out, k_->matmul), row_blocks(b.bound(count), k_->matmul)},
              {b.counts, x, w.codes, w.scales, w.biases, out, f.gates},
              MatmulParams{w.format, w.n_in, w.n_out, f.epilogue, count, f.hc_count, f.alpha, f.beta});
}

void Launcher::hc_norm(CommandBuffer& cb, const Batch& b, Slice streams, Slice gamma, Slice out,
                       HcNormParams p) const {
  cb.dispatch(k_->hc_norm, {b.bound(CountIndex(p.count)), p.hc_count}, {b.counts, streams, gamma, out}, p);
}

void Launcher::hc_mix(CommandBuffer& cb, const Batch& b, Slice low, const StoredMatrix& up, Slice normed,
                      Slice out, uint32_t hc_count, CountIndex count) const {
  const uint32_t hidden = up.n_out / hc_count;
  cb.dispatch(k_->hc_mix, {tiles(hidden, k_->hc_mix), row_blocks(b.bound(count), k_->hc_mix)},
              {b.counts, low, up.codes, up.scales, up.biases, normed, out},
              HcMixParams{up.format, hidden, hc_count, up.n_in, count});
}

void Launcher::ngram_ids(CommandBuffer& cb, const Batch& b, Slice multipliers, Slice sizes, Slice offsets,
                         Slice ids, const NgramIdsParams& p) const {
  cb.dispatch(k_->ngram_ids, {b.max_sequences},
              {b.counts, b.sequences, b.rows, multipliers, sizes, offsets, ids}, p);
}

void Launcher::ngram_gather(CommandBuffer& cb, const Batch& b, Slice ids, Slice shards, Slice out,
                            const NgramGatherParams& p) const {
  cb.dispatch(k_->ngram_gather, {b.max_rows}, {b.counts, ids, shards, out}, p);
}

void Launcher::ple_gate(CommandBuffer& cb, const Batch& b, Slice key, Slice value, Slice streams,
                        Slice gamma_key, Slice gamma_query, Slice gamma_conv, Slice gated, Slice normed,
                        const PleGateParams& p) const {
  cb.dispatch(k_->ple_gate, {b.max_rows},
              {b.counts, key, value, streams, gamma_key, gamma_query, gamma_conv, gated, normed}, p);
}

void Launcher::ple_conv(CommandBuffer& cb, const Batch& b, Slice normed, Slice gated, Slice taps,
                        Slice streams, const PleConvParams& p) const {
  cb.dispatch(k_->ple_conv, {b.max_sequences, tiles(p.width, k_->ple_conv)},
              {b.counts, b.sequences, normed, gated, taps, streams}, p);
}

void Launcher::delta_conv(CommandBuffer& cb, const Batch& b, Slice x, Slice taps, Slice out,
                          const DeltaConvParams& p) const {
  cb.dispatch(k_->delta_conv, {b.max_sequences, tiles(p.channels, k_->delta_conv)},
              {b.counts, b.sequences, x, taps, out}, p);
}

void Launcher::delta_prep(CommandBuffer& cb, const Batch& b, Slice conv, Slice beta_in, Slice decay_in,
                          Slice rate, Slice dt_bias, Slice q, Slice k, Slice beta, Slice decay,
                          const DeltaPrepParams& p) const {
  cb.dispatch(k_->delta_prep, {b.max_rows},
              {b.counts, conv, beta_in, decay_in, rate, dt_bias, q, k, beta, decay}, p);
}

void Launcher::delta_rule(CommandBuffer& cb, const Batch& b, Slice q, Slice k, Slice conv, Slice beta,
                          Slice decay, Slice z, Slice norm, Slice out, const DeltaRuleParams& p) const {
  cb.dispatch(k_->delta_rule, {b.max_sequences, p.v_heads},
              {b.counts, b.sequences, q, k, conv, beta, decay, z, norm, out}, p);
}

void Launcher::rope(CommandBuffer& cb, const Batch& b, Slice inv_freq, Slice cos, Slice sin,
                    const RopeParams& p) const {
  cb.dispatch(k_->rope, {b.max_rows}, {b.counts, b.sequences, b.rows, inv_freq, cos, sin}, p);
}

void Launcher::attention_prep(CommandBuffer& cb, const Batch& b, Slice qg, Slice k, Slice v, Slice index_qk,
                              Slice gamma_q, Slice gamma_k, Slice gamma_index_q, Slice cos, Slice sin,
                              Slice q, Slice index_q, const AttentionPrepParams& p) const {
  cb.dispatch(k_->attention_prep, {b.max_rows},
              {b.counts, b.sequences, b.rows, qg, k, v, index_qk, gamma_q, gamma_k, gamma_index_q, cos, sin,
               q, index_q},
              p);
}

void Launcher::index_pool(CommandBuffer& cb, const Batch& b, Slice gamma, Slice inv_freq,
                          const IndexPoolParams& p) const {
  cb.dispatch(k_->index_pool, {b.max_rows}, {b.counts, b.sequences, b.rows, gamma, inv_freq}, p);
}

void Launcher::index_score(CommandBuffer& cb, const Batch& b, Slice index_q, Slice scores,
                           uint32_t max_blocks, uint32_t n_rows, const IndexScoreParams& p) const {
  cb.dispatch(k_->index_score, {tiles(max_blocks, k_->index_score), n_rows},
              {b.counts, b.sequences, b.rows, index_q, scores}, p);
}

void Launcher::index_select(CommandBuffer& cb, const Batch& b, Slice scores, Slice blocks, Slice n_selected,
                            uint32_t n_rows, const IndexSelectParams& p) const {
  cb.dispatch(k_->index_select, {n_rows}, {b.counts, b.rows, scores, blocks, n_selected}, p);
}

void Launcher::attention(CommandBuffer& cb, const Batch& b, Slice q, Slice qg, Slice blocks, Slice n_selected,
                         Slice out, const AttentionParams& p) const {
  const uint32_t group = p.n_heads / p.n_kv_heads;  // a tile of heads never spans two kv heads
  cb.dispatch(k_->attention, {b.max_rows, p.n_kv_heads * tiles(group, k_->attention)},
              {b.counts, b.sequences, b.rows, q, qg, blocks, n_selected, out}, p);
}

void Launcher::router_topk(CommandBuffer& cb, const Batch& b, Slice logits, Slice ids, Slice weights,
                           const RouterParams& p) const {
  cb.dispatch(k_->router_topk, {b.max_rows}, {b.counts, logits, ids, weights}, p);
}

void Launcher::expert_sort(CommandBuffer& cb, const Batch& b, Slice ids, Slice active, Slice starts,
                           Slice pairs, const RouterParams& p) const {
  cb.dispatch(k_->expert_sort, {1}, {b.counts, ids, active, starts, pairs}, p);
}

void Launcher::expert_gate_up(CommandBuffer& cb, const Batch& b, Slice active, Slice starts, Slice pairs,
                              Slice x, const StoredMatrix& gate, const StoredMatrix& up, Slice act,
                              const RouterParams& p) const {
  const uint32_t max_active = std::min(p.n_experts, b.max_rows * p.top_k);
  cb.dispatch(k_->expert_gate_up, {tiles(gate.n_out, k_->expert_gate_up), max_active},
              {b.counts, active, starts, pairs, x, gate.codes, gate.scales, gate.biases, up.codes, up.scales,
               up.biases, act},
              GluParams{gate.format, gate.n_in, gate.n_out, p.top_k, gate.codes_stride, gate.scales_stride});
}

void Launcher::glu(CommandBuffer& cb, const Batch& b, Slice x, const StoredMatrix& gate,
                   const StoredMatrix& up, Slice act) const {
  cb.dispatch(k_->glu, {tiles(gate.n_out, k_->glu), row_blocks(b.max_rows, k_->glu)},
              {b.counts, x, gate.codes, gate.scales, gate.biases, up.codes, up.scales, up.biases, act},
              GluParams{gate.format, gate.n_in, gate.n_out, 1, 0, 0});
}

void Launcher::expert_down(CommandBuffer& cb, const Batch& b, Slice active, Slice starts, Slice pairs,
                           Slice weights, Slice act, const StoredMatrix& down, Slice shared_act,
                           const StoredMatrix& shared_down, Slice shared_gate, Slice gates, Slice streams,
                           uint32_t top_k, uint32_t hc_count) const {
  cb.dispatch(
      k_->expert_down, {tiles(down.n_out, k_->expert_down), row_blocks(b.max_rows, k_->expert_down)},
      {b.counts, active, starts, pairs, weights, act, down.codes, down.scales, down.biases, shared_act,
       shared_down.codes, shared_down.scales, shared_down.biases, shared_gate, gates, streams},
      ExpertDownParams{down.format, shared_down.format, down.n_out, down.n_in, shared_down.n_in, top_k,
                       hc_count, down.codes_stride, down.scales_stride});
}

void Launcher::copy_rows(CommandBuffer& cb, const Batch& b, Slice map, Slice source, Slice out,
                         uint32_t width, CountIndex count) const {
  cb.dispatch(k_->copy_rows, {b.bound(count)}, {b.counts, map, source, out}, CopyRowsParams{width, count});
}

void Launcher::round_rows(CommandBuffer& cb, const RoundTables& t, Slice windows, uint32_t n_windows) const {
  cb.dispatch(k_->round_rows, {1}, {windows, t.counts, t.sequences, t.rows, t.logit_rows, t.draws},
              RoundRowsParams{n_windows});
}

void Launcher::verdict(CommandBuffer& cb, Slice windows, Slice drawn, Slice landed, const CopyTables& c,
                       const VerdictParams& p) const {
  cb.dispatch(k_->verdict, {1}, {windows, drawn, landed, c.replies, c.limits, c.counts}, p);
}

void Launcher::absorb_rows(CommandBuffer& cb, Slice windows, Slice landed, Slice n_copied,
                           const HeadTables& h, const AbsorbRowsParams& p) const {
  cb.dispatch(k_->absorb_rows, {1},
              {windows, landed, n_copied, h.counts, h.sequences, h.rows, h.sources, h.logit_rows, h.draws,
               h.replies, h.last_rows},
              p);
}

void Launcher::keep_streams(CommandBuffer& cb, const HeadTables& head, uint32_t max_sequences, Slice streams,
                            const KeepStreamsParams& p) const {
  cb.dispatch(k_->keep_streams, {max_sequences}, {head.counts, head.replies, head.last_rows, streams}, p);
}

void Launcher::draft_rows(CommandBuffer& cb, const HeadTables& step, const HeadTables& next, Slice replies,
                          uint32_t max_sequences) const {
  const Slice slots[] = {step.counts,    step.drafted,   step.logit_rows, step.rows,
                         step.sequences, step.draws,     replies,         next.counts,
                         next.rows,      next.sequences, next.sources,    next.draws};
  cb.dispatch(k_->draft_rows, {max_sequences}, slots, {});
}

void Launcher::copy_drafts(CommandBuffer& cb, const CopyTables& c, uint32_t max_sequences) const {
  cb.dispatch(k_->copy_drafts, {max_sequences}, {c.counts, c.replies, c.limits, c.n_copied},
              CopyDraftsParams{kLeastCopy, kMostMatch});
}

void Launcher::draw_max(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                        const DrawParams& p) const {
  cb.dispatch(k_->draw_max, {tiles(p.n_valid, k_->draw_max), b.bound(CountIndex(p.count))},
              {b.counts, draws, logits, maxima}, p);
}

void Launcher::draw_blocks(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                           Slice parts, const DrawParams& p) const {
  cb.dispatch(k_->draw_blocks, {tiles(p.n_valid, k_->draw_blocks), b.bound(CountIndex(p.count))},
              {b.counts, draws, logits, maxima, parts}, p);
}

void Launcher::draw_pick(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                         Slice parts, Slice out, const DrawParams& p) const {
  if (p.n_valid > kMaxDrawn) {
    throw InvalidArgument("draw_pick: " + std::to_string(p.n_valid) + " ids to draw from, at most " +
                          std::to_string(kMaxDrawn) + " are supported");
  }
  cb.dispatch(k_->draw_pick, {b.bound(CountIndex(p.count))}, {b.counts, draws, logits, maxima, parts, out},
              p);
}

void Launcher::logprob_sums(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                            Slice sums, const DrawParams& p) const {
  cb.dispatch(k_->logprob_sums, {tiles(p.n_valid, k_->logprob_sums), b.bound(CountIndex(p.count))},
              {b.counts, draws, logits, maxima, sums}, p);
}

void Launcher::token_logprobs(CommandBuffer& cb, const Batch& b, Slice draws, Slice logits, Slice maxima,
                              Slice sums, Slice tokens, Slice chosen, Slice top_ids, Slice top_values,
                              const DrawParams& p) const {
  cb.dispatch(k_->token_logprobs, {b.bound(CountIndex(p.count))},
              {b.counts, draws, logits, maxima, sums, tokens, chosen, top_ids, top_values}, p);
}

void Launcher::logits_hash(CommandBuffer& cb, const Batch& b, Slice logits, Slice out,
                           const DrawParams& p) const {
  cb.dispatch(k_->logits_hash, {b.bound(CountIndex(p.count))}, {b.counts, logits, out}, p);
}

}  // namespace flashnext
