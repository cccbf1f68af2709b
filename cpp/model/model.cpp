#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "model/layers.h"

namespace flashnext {
namespace {

uint32_t u(int x) { return static_cast<uint32_t>(x); }

}  // namespace

Batch Model::batch(Tables tables, const PassBounds& bounds) const {
  const RoundTables& t = tables == Tables::kHost ? host_ : round_;
  Batch b;
  b.counts = t.counts;
  b.sequences = t.sequences;
  b.rows = t.rows;
  b.logit_rows = t.logit_rows;
  b.max_rows = bounds.n_rows;
  b.max_sequences = bounds.n_sequences;
  b.hc_count = u(config_.hc_count);
  return b;
}

void Model::record_rows(CommandBuffer& cb, Tables tables, const PassBounds& bounds) const {
  const Config& c = config_;
  const Batch b = batch(tables, bounds);
  launch_.embed(cb, b, embed_, u(c.hc_count), s_->streams);
  RopeParams rope = {u(c.rotary_dim / 2), {}, options_.attention_factor, page_.rotary};
  for (size_t i = 0; i < 3; ++i) rope.section[i] = u(c.mrope_section[i]);
  launch_.rope(cb, b, inv_freq_, s_->cos, s_->sin, rope);
  if (bounds.shows_media) {
    cb.barrier();
    launch_.embed_media(cb, b, features_, s_->streams, {u(c.hidden_size), u(c.hc_count)});
  }
  for (const Layer& layer : layers_) {
    if (layer.ple) record_ple(cb, b, *layer.ple);
    cb.barrier();
    read(cb, b, s_->streams, layer.mixer_hc);
    if (layer.delta) record_delta(cb, b, layer);
    if (layer.attention) record_attention(cb, b, s_->streams, layer, bounds);
    cb.barrier();
    read(cb, b, s_->streams, layer.experts_hc);
    record_experts(cb, b, s_->streams, layer);
  }
  cb.barrier();
}

// Leaves the block input in s_->mixed and the write gates in s_->gates.
void Model::read(CommandBuffer& cb, const Batch& b, Slice streams, const HyperConnection& hc) const {
  const Config& c = config_;
  launch_.hc_norm(cb, b, streams, hc.norm, s_->normed,
                  {u(c.hidden_size), u(c.hc_count), kCountRows, c.rms_eps});
  cb.barrier();
  const float alpha = 1.0f / static_cast<float>(c.hc_count);
  launch_.matmul(cb, b, s_->normed, hc.down, s_->low, {kSilu, alpha});
  launch_.matmul(cb, b, s_->normed, *hc.inject, s_->gates, {kSigmoid, alpha, 2.0f});
  cb.barrier();
  launch_.hc_mix(cb, b, s_->low, hc.up, s_->normed, s_->mixed, u(c.hc_count), kCountRows);
  cb.barrier();
}

void Model::record_ple(CommandBuffer& cb, const Batch& b, const Ple& p) const {
  const Config& c = config_;
  // The ids need nothing but tokens; for the first layers this overlaps with what is before.
  launch_.ngram_ids(
      cb, b, p.multipliers, p.sizes, p.offsets, s_->ngram_ids,
      {u(c.ngram_size), u(c.heads_per_ngram), c.segment_token, p.state.tokens, p.state.row_tokens});
  cb.barrier();
  launch_.ngram_gather(cb, b, s_->ngram_ids, p.shards, s_->embedding, p.gather);
  cb.barrier();
  launch_.matmul(cb, b, s_->embedding, p.key, s_->ple_key);
  launch_.matmul(cb, b, s_->embedding, p.value, s_->ple_value);
  cb.barrier();
  launch_.ple_gate(cb, b, s_->ple_key, s_->ple_value, s_->streams, p.norm_key, p.norm_query, p.norm_conv,
                   s_->gated, s_->ple_normed, {u(c.hidden_size), u(c.hc_count), c.rms_eps});
  cb.barrier();
  launch_.ple_conv(cb, b, s_->ple_normed, s_->gated, p.taps, s_->streams,
                   {u(c.width()), u(c.ple_conv), u(c.ngram_size), p.state.conv, p.state.row_conv});
}

void Model::record_delta(CommandBuffer& cb, const Batch& b, const Layer& layer) const {
  const Config& c = config_;
  const DeltaNet& d = *layer.delta;
  const StateLayout::Delta& at = layer.state;
  launch_.matmul(cb, b, s_->mixed, d.qkv, s_->qkv);
  launch_.matmul(cb, b, s_->mixed, d.z, s_->z);
  launch_.matmul(cb, b, s_->mixed, d.b, s_->b, {kStoreF32});
  launch_.matmul(cb, b, s_->mixed, d.a, s_->a, {kStoreF32});
  cb.barrier();
  launch_.delta_conv(cb, b, s_->qkv, d.taps, s_->conv,
                     {u(c.conv_channels()), u(c.linear_conv), at.conv, at.row_conv});
  cb.barrier();
  launch_.delta_prep(cb, b, s_->conv, s_->b, s_->a, d.rate, d.dt_bias, s_->q, s_->k, s_->beta, s_->decay,
                     {u(c.linear_k_heads), u(c.linear_v_heads), u(c.linear_k_dim), u(c.linear_v_dim)});
  cb.barrier();
  launch_.delta_rule(
      cb, b, s_->q, s_->k, s_->conv, s_->beta, s_->decay, s_->z, d.norm, s_->core,
      {u(c.linear_k_heads), u(c.linear_v_heads), u(c.linear_k_dim), u(c.linear_v_dim),
       c.output_gate == "silu", c.rms_eps, at.state, at.row_k, at.row_v, at.row_beta, at.row_decay});
  cb.barrier();
  launch_.matmul(cb, b, s_->core, d.out, s_->streams, {kResidual, 1, 1, s_->gates, u(c.hc_count)});
}

void Model::record_attention(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer,
                             const PassBounds& bounds) const {
  const Config& c = config_;
  const Attention& a = *layer.attention;
  const PageLayout::Layer& at = layer.page;
  const uint32_t half = u(c.rotary_dim / 2), ratio = u(c.index_ratio), budget = u(c.budget_blocks());
  launch_.matmul(cb, b, s_->mixed, a.q, s_->qg);
  launch_.matmul(cb, b, s_->mixed, a.k, s_->key);
  launch_.matmul(cb, b, s_->mixed, a.v, s_->value);
  launch_.matmul(cb, b, s_->mixed, a.index, s_->index_qk);
  cb.barrier();
  launch_.attention_prep(cb, b, s_->qg, s_->key, s_->value, s_->index_qk, a.q_norm, a.k_norm, a.index_q_norm,
                         s_->cos, s_->sin, s_->query, s_->index_q,
                         {u(c.n_heads), u(c.n_kv_heads), u(c.head_dim), half, u(c.index_n_heads),
                          u(c.index_head_dim), c.rms_eps, at.k, at.v, at.raw});
  cb.barrier();
  IndexPoolParams pool = {u(c.index_head_dim), ratio,  half,      {},          options_.attention_factor,
                          c.rms_eps,           at.raw, at.pooled, page_.rotary};
  for (size_t i = 0; i < 3; ++i) pool.section[i] = u(c.mrope_section[i]);
  launch_.index_pool(cb, b, a.index_k_norm, inv_freq_, pool);
  cb.barrier();
  const uint32_t max_blocks = bounds.max_length / ratio;
  const uint32_t stride = u(options_.context) / ratio + 1;
  for (uint32_t first = 0; first < b.max_rows; first += kScoredRows) {
    const uint32_t n = std::min(kScoredRows, b.max_rows - first);
    if (max_blocks > budget) {
      launch_.index_score(cb, b, s_->index_q, s_->scores, max_blocks, n,
                          {u(c.index_n_heads), u(c.index_head_dim), ratio, budget, first, stride, at.pooled});
      cb.barrier();
    }
    launch_.index_select(cb, b, s_->scores, s_->blocks, s_->n_selected, n, {ratio, budget, first, stride});
    if (max_blocks > budget) cb.barrier();
  }
  cb.barrier();
  launch_.attention(cb, b, s_->query, s_->qg, s_->blocks, s_->n_selected, s_->attended,
                    {u(c.n_heads), u(c.n_kv_heads), u(c.head_dim), ratio, budget,
                     static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim))), at.k, at.v});
  cb.barrier();
  launch_.matmul(cb, b, s_->attended, a.out, streams, {kResidual, 1, 1, s_->gates, u(c.hc_count)});
}

void Model::record_experts(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer) const {
  const Config& c = config_;
  const Experts& e = layer.experts;
  const RouterParams route = {u(c.n_experts), u(c.top_k)};
  launch_.matmul(cb, b, s_->mixed, e.router, s_->router, {kStoreF32});
  launch_.matmul(cb, b, s_->mixed, e.shared_gate, s_->shared_gate, {kSigmoid});
  launch_.glu(cb, b, s_->mixed, e.shared_gate_proj, e.shared_up, s_->shared_act);
  cb.barrier();
  launch_.router_topk(cb, b, s_->router, s_->ids, s_->weights, route);
  cb.barrier();
  launch_.expert_sort(cb, b, s_->ids, s_->active, s_->starts, s_->pairs, route);
  cb.barrier();
  launch_.expert_gate_up(cb, b, s_->active, s_->starts, s_->pairs, s_->mixed, e.gate, e.up, s_->act, route);
  cb.barrier();
  launch_.expert_down(cb, b, s_->active, s_->starts, s_->pairs, s_->weights, s_->act, e.down, s_->shared_act,
                      e.shared_down, s_->shared_gate, s_->gates, streams, u(c.top_k), u(c.hc_count));
}

void Model::record_logits(CommandBuffer& cb, Tables tables, uint32_t n_logits) const {
  Batch b = batch(tables, {});
  b.max_logits = n_logits;
  record_choice(cb, b, s_->streams, *mixer_);
}

// The mixer and lm_head over some rows of streams.
void Model::record_choice(CommandBuffer& cb, const Batch& b, Slice streams,
                          const HyperConnection& mixer) const {
  const Config& c = config_;
  launch_.copy_rows(cb, b, b.logit_rows, streams, s_->last_streams, u(c.width()), kCountLogits);
  cb.barrier();
  launch_.hc_norm(cb, b, s_->last_streams, mixer.norm, s_->last_normed,
                  {u(c.hidden_size), u(c.hc_count), kCountLogits, c.rms_eps});
  cb.barrier();
  launch_.matmul(cb, b, s_->last_normed, mixer.down, s_->last_low,
                 {kSilu, 1.0f / static_cast<float>(c.hc_count)}, kCountLogits);
  cb.barrier();
  launch_.hc_mix(cb, b, s_->last_low, mixer.up, s_->last_normed, s_->last_mixed, u(c.hc_count), kCountLogits);
  cb.barrier();
  launch_.matmul(cb, b, s_->last_mixed, lm_head_, logits_, {kStoreF32}, kCountLogits);
  cb.barrier();
}

}  // namespace flashnext
