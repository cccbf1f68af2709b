#include "kernels/metal/table.h"

#include "metal/launch.h"

namespace flashnext::mtl {

std::vector<KernelEntry> kernels() {
  std::vector<KernelEntry> all;
  const auto add = [&](const std::string& name, int threads, int tile = 1) {
    all.push_back({name, static_cast<uint32_t>(threads), static_cast<uint32_t>(tile)});
  };
  for (const std::string type : {"_bf16", "_f32"}) {
    add("embed" + type, kRowThreads);
    add("matmul" + type, kProductThreads, kProductTile);
    add("hc_norm" + type, kRowThreads);
    add("hc_mix" + type, kProductThreads, kProductTile);
    add("ngram_gather" + type, kRowThreads);
    add("ple_gate" + type, kRowThreads);
    add("ple_conv" + type, kColumnThreads, kColumnThreads);
    add("delta_conv" + type, kColumnThreads, kColumnThreads);
    add("delta_prep" + type, kRowThreads);
    add("delta_rule" + type, kDeltaThreads);
    add("attention_prep" + type, kRowThreads);
    add("index_pool" + type, kRowThreads);
    add("index_score" + type, kScoreThreads, kScoreTile);
    add("attention" + type, kAttentionThreads, kAttentionHeads);
    add("expert_gate_up" + type, kProductThreads, kProductTile);
    add("glu" + type, kProductThreads, kProductTile);
    add("expert_down" + type, kDownThreads, kDownTile);
    add("copy_rows" + type, kRowThreads);
    add("keep_streams" + type, kRowThreads);
  }
  add("ngram_ids", kRowThreads);
  add("rope", kRowThreads);
  add("index_select", kSelectThreads);
  add("router_topk", kRouterThreads);
  add("expert_sort", kSortThreads);
  add("round_rows", kRoundThreads);
  add("verdict", kRoundThreads);
  add("absorb_rows", kRoundThreads);
  add("draft_rows", kSimdLanes);
  add("copy_drafts", kRowThreads);
  add("draw_max", kBlockThreads, kSamplerBlock);
  add("draw_blocks", kBlockThreads, kSamplerBlock);
  add("draw_pick", kPickThreads);
  add("logprob_sums", kBlockThreads, kSamplerBlock);
  add("token_logprobs", kPickThreads);
  add("logits_hash", kPickThreads);
  return all;
}

}  // namespace flashnext::mtl
