// The draft head: one more layer that reads the streams of a row and the token behind it, and drafts the
// token after that. Source: tests/support/reference/mtp.py; docs/model.md, the draft head.
#include <algorithm>

#include "model/layers.h"

namespace flashnext {
namespace {

constexpr const char* kPart = "the draft head";

uint32_t u(int x) { return static_cast<uint32_t>(x); }

}  // namespace

void Model::load_head() {
  const Config& c = config_;
  head_ = std::make_unique<Head>();
  Head& h = *head_;
  h.norm_embedding = {weights_->vector("mtp.pre_fc_norm_embedding.weight", c.hidden_size, true), 0};
  h.norm_hidden = {weights_->vector("mtp.pre_fc_norm_hidden.weight", c.width(), true), 0};
  h.fc_embedding = weights_->matrix("mtp.fc_embedding", c.hidden_size, c.hidden_size);
  h.fc_hidden = weights_->matrix("mtp.fc_hidden", c.hidden_size, c.hidden_size);
  const std::string at = "mtp.layers.0.";
  h.layer.mixer_hc = hyper_connection(at + "attn_hyper_connection.", true);
  h.layer.attention = attention(at + "self_attn.");
  h.layer.page = *page_.head;
  h.layer.experts_hc = hyper_connection(at + "mlp_hyper_connection.", true);
  h.layer.experts = experts(at + "mlp.");
  h.mixer = hyper_connection("mtp.hyper_connection_mixer.", false);
}

void Model::allocate_head() {
  const Config& c = config_;
  Head& h = *head_;
  const size_t R = static_cast<size_t>(max_rows()), D = static_cast<size_t>(c.hidden_size),
               S = static_cast<size_t>(c.hc_count), L = static_cast<size_t>(options_.max_sequences),
               t = size_bytes(options_.dtype);
  h.input = take(R * S * D * t);
  h.embedded = take(R * D * t);
  h.normed = take(R * D * t);
  h.streams = take(R * S * D * t);
  h.stream_rows = take(R * S * sizeof(int32_t));
  h.ones = take(R * S * sizeof(float));
  for (size_t i = 0; i < R * S; ++i) {
    h.stream_rows.host<int32_t>()[i] = static_cast<int32_t>(i / S);
    h.ones.host<float>()[i] = 1;
  }
  h.absorb = {take(sizeof(Counts)),
              take(L * sizeof(Sequence)),
              take(R * sizeof(Row)),
              take(R * sizeof(int32_t)),
              {},
              {},
              {},
              {},
              {}};
  const int n_steps = std::min(options_.max_window, kMaxWindow) - 1;
  const Slice counts = take(static_cast<size_t>(std::max(1, n_steps)) * sizeof(Counts));
  for (int step = 0; step < std::max(1, n_steps); ++step) {
    const size_t rows = step ? L : static_cast<size_t>(options_.max_round);
    HeadTables t = {counts + static_cast<size_t>(step) * sizeof(Counts),
                    take(L * sizeof(Sequence)),
                    take(rows * sizeof(Row)),
                    take(rows * sizeof(int32_t)),
                    take(L * sizeof(int32_t)),
                    take(L * sizeof(DrawRow)),
                    take(L * sizeof(int32_t)),
                    {},
                    {}};
    if (step == 0) {
      t.replies = take(L * sizeof(uint64_t));
      t.last_rows = take(L * sizeof(int32_t));
    } else {  // each sequence has one row, which drafts
      for (size_t i = 0; i < L; ++i) t.logit_rows.host<int32_t>()[i] = static_cast<int32_t>(i);
    }
    h.steps.push_back(t);
  }
}

void Model::carry_streams(CommandBuffer& cb, Slice block, uint32_t i) const {
  const size_t row_bytes = static_cast<size_t>(config_.width()) * size_bytes(options_.dtype);
  cb.copy(block + state_.streams, s_->streams + (static_cast<size_t>(max_rows()) + i) * row_bytes, row_bytes);
}

void Model::keep_streams(CommandBuffer& cb, uint32_t row, Slice block) const {
  const size_t row_bytes = static_cast<size_t>(config_.width()) * size_bytes(options_.dtype);
  cb.copy(s_->streams + row * row_bytes, block + state_.streams, row_bytes);
}

void Model::record_absorb(CommandBuffer& cb, const PassBounds& bounds) const {
  cb.part(kPart);
  record_head(cb, head_->absorb, s_->streams, bounds, 0);
  cb.part(nullptr);
}

void Model::record_drafts(CommandBuffer& cb, uint32_t n_windows, const PassBounds& bounds, uint32_t n_drafts,
                          uint32_t n_valid) const {
  const std::vector<HeadTables>& steps = head_->steps;
  cb.part(kPart);
  launch_.keep_streams(cb, steps[0], n_windows, s_->streams, {u(config_.width()), state_.streams});
  for (uint32_t step = 0; step == 0 || step < n_drafts; ++step) {
    const HeadTables& t = steps[step];
    const uint32_t n_logits = n_drafts ? n_windows : 0;
    if (step == 0) {
      record_head(cb, t, s_->streams, bounds, n_logits);
    } else {
      record_head(cb, t, head_->streams, {n_windows, n_windows, bounds.max_length + step}, n_logits);
    }
    if (!n_logits) break;
    Batch b;
    b.counts = t.counts;
    b.max_logits = n_logits;
    record_draw(cb, b, t.draws, t.drafted, n_valid, false);
    launch_.draft_rows(cb, t, step + 1 < n_drafts ? steps[step + 1] : HeadTables(), steps[0].replies,
                       n_windows);
    cb.barrier();
  }
  cb.part(nullptr);
}

// from: the streams that sources point into.
void Model::record_head(CommandBuffer& cb, const HeadTables& t, Slice from, const PassBounds& bounds,
                        uint32_t n_logits) const {
  const Config& c = config_;
  const Head& h = *head_;
  Batch b;
  b.counts = t.counts;
  b.sequences = t.sequences;
  b.rows = t.rows;
  b.logit_rows = t.logit_rows;
  b.max_rows = bounds.n_rows;
  b.max_sequences = bounds.n_sequences;
  b.max_logits = n_logits;
  b.hc_count = u(c.hc_count);
  launch_.copy_rows(cb, b, t.sources, from, h.input, u(c.width()), kCountRows);
  launch_.embed(cb, b, embed_, 1, h.embedded);
  RopeParams rope = {u(c.rotary_dim / 2), {}, options_.attention_factor, page_.rotary};
  for (size_t i = 0; i < 3; ++i) rope.section[i] = u(c.mrope_section[i]);
  launch_.rope(cb, b, inv_freq_, s_->cos, s_->sin, rope);
  cb.barrier();
  // One mean square over a row's streams together.
  launch_.hc_norm(cb, b, h.input, h.norm_hidden, s_->normed, {u(c.width()), 1, kCountRows, c.rms_eps});
  launch_.hc_norm(cb, b, h.embedded, h.norm_embedding, h.normed,
                  {u(c.hidden_size), 1, kCountRows, c.rms_eps});
  cb.barrier();
  launch_.matmul(cb, b, h.normed, h.fc_embedding, h.embedded);
  cb.barrier();
  launch_.copy_rows(cb, b, h.stream_rows, h.embedded, h.streams, u(c.hidden_size), kCountStreams);
  cb.barrier();
  launch_.matmul(cb, b, s_->normed, h.fc_hidden, h.streams, {kResidual, 1, 1, h.ones, 1}, kCountStreams);
  cb.barrier();
  read(cb, b, h.streams, h.layer.mixer_hc);
  record_attention(cb, b, h.streams, h.layer, bounds);
  cb.barrier();
  read(cb, b, h.streams, h.layer.experts_hc);
  record_experts(cb, b, h.streams, h.layer);
  cb.barrier();
  if (n_logits) record_choice(cb, b, h.streams, h.mixer);
}

}  // namespace flashnext
