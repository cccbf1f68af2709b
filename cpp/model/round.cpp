// What a round does around its forward: packing rows, drawing, the verdict.
#include "kernels/sampler.h"
#include "model/layers.h"

namespace flashnext {
namespace {

uint32_t u(size_t x) { return static_cast<uint32_t>(x); }

}  // namespace

Model::HostTables Model::host_tables() const {
  const HeadTables head = head_ ? head_->absorb : HeadTables();
  const auto or_null = [](const Slice& s) { return s ? s.host() : nullptr; };
  return {host_.counts.host<Counts>(),
          host_.sequences.host<Sequence>(),
          host_.rows.host<Row>(),
          features_.host<uint64_t>(),
          host_.logit_rows.host<int32_t>(),
          host_.draws.host<DrawRow>(),
          drawn_.host<int32_t>(),
          marks_.host<Mark>(),
          marks_.address(),
          reinterpret_cast<Counts*>(or_null(head.counts)),
          reinterpret_cast<Sequence*>(or_null(head.sequences)),
          reinterpret_cast<Row*>(or_null(head.rows)),
          reinterpret_cast<int32_t*>(or_null(head.sources))};
}

void Model::record_round_rows(CommandBuffer& cb, int slot, uint32_t n_windows) const {
  launch_.round_rows(cb, round_, slots_[static_cast<size_t>(slot)].windows, n_windows);
  cb.barrier();
}

void Model::record_draw(CommandBuffer& cb, const Batch& b, Slice draws, Slice drawn, uint32_t n_valid,
                        bool masked) const {
  flashnext::record_draw(
      cb, launch_, b, draws, logits_,
      SamplerScratch::in(draw_scratch_, u(static_cast<size_t>(options_.max_round)), n_valid), drawn,
      {u(static_cast<size_t>(config_.vocab_size)), n_valid, kCountLogits, masked});
  cb.barrier();
}

void Model::record_verdict(CommandBuffer& cb, Tables tables, int slot, uint32_t n_windows, uint32_t n_logits,
                           const Wanted& wanted, uint32_t n_valid) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const Slice draws = (tables == Tables::kHost ? host_ : round_).draws;
  const DrawParams p = {u(static_cast<size_t>(config_.vocab_size)), n_valid, kCountLogits, 1};
  Batch b = batch(tables, {});
  b.max_logits = n_logits;
  record_draw(cb, b, draws, drawn_, n_valid, true);
  if (wanted.logprobs) {
    record_logprobs(cb, launch_, b, draws, logits_,
                    SamplerScratch::in(draw_scratch_, u(static_cast<size_t>(options_.max_round)), n_valid),
                    drawn_, s.chosen, s.top_ids, s.top_values, p);
  }
  if (wanted.hashes) launch_.logits_hash(cb, b, logits_, s.hashes, p);
  launch_.verdict(cb, s.windows, drawn_, s.landed, copies_, {n_windows, n_valid});
  cb.barrier();
  if (wanted.copies) {
    launch_.copy_drafts(cb, copies_, n_windows);
    cb.barrier();
  }
  if (wanted.copies || head_) {
    launch_.absorb_rows(cb, s.windows, s.landed, wanted.copies ? copies_.n_copied : Slice(),
                        head_ ? head_->steps[0] : HeadTables(),
                        {n_windows, head_ ? u(head_->steps.size()) : 0, b.hc_count});
    cb.barrier();
  }
}

void Model::record_scores(CommandBuffer& cb, int slot, uint32_t n_logits, uint32_t n_valid) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  const DrawParams p = {u(static_cast<size_t>(config_.vocab_size)), n_valid, kCountLogits, 0};
  const SamplerScratch scratch =
      SamplerScratch::in(draw_scratch_, u(static_cast<size_t>(options_.max_round)), n_valid);
  Batch b = batch(Tables::kHost, {});
  b.max_logits = n_logits;
  launch_.draw_max(cb, b, host_.draws, logits_, scratch.maxima, p);
  cb.barrier();
  record_logprobs(cb, launch_, b, host_.draws, logits_, scratch, drawn_, s.chosen, s.top_ids, s.top_values,
                  p);
  cb.barrier();
}

Model::Results Model::results(int slot) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  return {s.landed.host<const Landed>(), s.chosen.host<const float>(), s.top_ids.host<const int32_t>(),
          s.top_values.host<const float>(), s.hashes.host<const uint64_t>()};
}

}  // namespace flashnext
