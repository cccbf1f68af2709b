// Records a pass's draws: the sampler's kernels in their order, with the barriers between them.
#pragma once

#include <cstddef>

#include "kernels/launch.h"

namespace flashnext {

// What the kernels leave for each other, and for `record_logprobs`; of no meaning between passes.
struct SamplerScratch {
  Slice maxima, parts, sums;

  // Bytes for that many rows of logits.
  static size_t size_bytes(uint32_t max_rows, uint32_t n_valid);
  // Lays it out from `at`, which is aligned to 16 bytes.
  static SamplerScratch in(Slice at, uint32_t max_rows, uint32_t n_valid);
};

// Draws a token for each of the L = p.count rows of `logits` float[L, vocab]: `draws` DrawRow[L] says whose,
// `out` int32[L] takes it, -1 where all logits are NaN. What rows share or how they are drawn is of no
// matter; logits stay as they are. ReplyStates, and what they point at, must be resident and in place. The
// caller puts a barrier before (logits, draws and replies are written) and after (tokens are).
// Throws InvalidArgument where p.n_valid is above kMaxDrawn.
void record_draw(CommandBuffer& cb, const Launcher& launch, const Batch& b, Slice draws, Slice logits,
                 const SamplerScratch& scratch, Slice out, const DrawParams& p);

// Behind record_draw and a barrier, with its scratch: log-probabilities of the drawn `tokens` and of the
// likeliest ids, for replies that ask for them. chosen: float[L]; top_ids: int32[L, kMaxTop]; top_values:
// float[L, kMaxTop].
void record_logprobs(CommandBuffer& cb, const Launcher& launch, const Batch& b, Slice draws, Slice logits,
                     const SamplerScratch& scratch, Slice tokens, Slice chosen, Slice top_ids,
                     Slice top_values, const DrawParams& p);

}  // namespace flashnext
