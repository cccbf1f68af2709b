#include "kernels/metal/table.h"

#include "metal/launch.h"

namespace flashnext::mtl {

std::vector<KernelEntry> kernels() {
  std::vector<KernelEntry> all;
  const auto add = [&](const std::string& name, uint32_t slots, int threads, int tile = 1, int rows = 0) {
    all.push_back({name, static_cast<uint32_t>(threads), static_cast<uint32_t>(tile), slots,
                   static_cast<uint32_t>(rows)});
  };
  for (const std::string type : {"_bf16", "_f32"}) {
    add("embed" + type, 6, kRowThreads);
    add("embed_media" + type, 3, kRowThreads);
    add("matmul" + type, 7, kProductThreads, kProductTile, kRowBlock);
    add("hc_norm" + type, 4, kRowThreads);
    add("hc_mix" + type, 7, kProductThreads, kProductTile, kRowBlock);
    add("ngram_gather" + type, 4, kRowThreads);
    add("ple_gate" + type, 9, kRowThreads);
    add("ple_conv" + type, 6, kColumnThreads, kColumnThreads);
    add("delta_conv" + type, 5, kColumnThreads, kColumnThreads);
    add("delta_prep" + type, 10, kRowThreads);
    add("delta_rule" + type, 10, kDeltaThreads);
    add("attention_prep" + type, 14, kRowThreads);
    add("index_pool" + type, 5, kRowThreads);
    add("index_score" + type, 5, kScoreThreads, kScoreTile);
    add("attention" + type, 8, kAttentionThreads, kAttentionHeads);
    add("expert_gate_up" + type, 12, kProductThreads, kProductTile);
    add("glu" + type, 9, kProductThreads, kProductTile, kRowBlock);
    add("expert_down" + type, 16, kDownThreads, kDownTile, kDownRows);
    add("copy_rows" + type, 4, kRowThreads);
    add("keep_streams" + type, 4, kRowThreads);
  }
  add("ngram_ids", 7, kRowThreads);
  add("rope", 6, kRowThreads);
  add("index_select", 5, kSelectThreads);
  add("router_topk", 4, kRouterThreads);
  add("expert_sort", 5, kSortThreads);
  add("round_rows", 6, kRoundThreads);
  add("verdict", 6, kRoundThreads);
  add("absorb_rows", 11, kRoundThreads);
  add("draft_rows", 12, kSimdLanes);
  add("copy_drafts", 4, kRowThreads);
  add("draw_max", 4, kBlockThreads, kSamplerBlock);
  add("draw_blocks", 5, kBlockThreads, kSamplerBlock);
  add("draw_pick", 6, kPickThreads);
  add("logprob_sums", 5, kBlockThreads, kSamplerBlock);
  add("token_logprobs", 9, kPickThreads);
  add("logits_hash", 3, kPickThreads);
  add("layer_norm", 4, kRowThreads);
  add("linear", 4, kProductThreads, kProductTile, kRowBlock);
  add("patch_place", 6, kRowThreads);
  add("patch_turn", 3, kRowThreads);
  add("slice_attention", 3, kSliceThreads, kSlicePatches);
  return all;
}

}  // namespace flashnext::mtl
