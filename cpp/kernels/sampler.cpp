#include "kernels/sampler.h"

namespace flashnext {
namespace {

size_t blocks(uint32_t max_rows, uint32_t n_valid) {
  return size_t{max_rows} * ((n_valid + kSamplerBlock - 1) / kSamplerBlock);
}

}  // namespace

size_t SamplerScratch::size_bytes(uint32_t max_rows, uint32_t n_valid) {
  return blocks(max_rows, n_valid) * (sizeof(BlockMax) + sizeof(BlockPart) + sizeof(float));
}

SamplerScratch SamplerScratch::in(Slice at, uint32_t max_rows, uint32_t n_valid) {
  const size_t n = blocks(max_rows, n_valid);
  const Slice parts = at + n * sizeof(BlockMax);
  return {at, parts, parts + n * sizeof(BlockPart)};
}

void record_draw(CommandBuffer& cb, const Launcher& launch, const Batch& b, Slice draws, Slice logits,
                 const SamplerScratch& scratch, Slice out, const DrawParams& p) {
  launch.draw_max(cb, b, draws, logits, scratch.maxima, p);
  cb.barrier();
  launch.draw_blocks(cb, b, draws, logits, scratch.maxima, scratch.parts, p);
  cb.barrier();
  launch.draw_pick(cb, b, draws, logits, scratch.maxima, scratch.parts, out, p);
}

void record_logprobs(CommandBuffer& cb, const Launcher& launch, const Batch& b, Slice draws, Slice logits,
                     const SamplerScratch& scratch, Slice tokens, Slice chosen, Slice top_ids,
                     Slice top_values, const DrawParams& p) {
  launch.logprob_sums(cb, b, draws, logits, scratch.maxima, scratch.sums, p);
  cb.barrier();
  launch.token_logprobs(cb, b, draws, logits, scratch.maxima, scratch.sums, tokens, chosen, top_ids,
                        top_values, p);
}

}  // namespace flashnext
