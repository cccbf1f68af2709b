// The sizes of a model, as checkpoint/config.py has checked them; what kernels can take is checked here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashnext {

// Longest row that a product takes in: kernels/cpu/panel.h has room for one.
constexpr int kMaxInputs = 1 << 16;

// The hashed n-gram table of one PLE layer.
struct NgramTable {
  std::vector<int64_t> multipliers, sizes, offsets;
  int64_t n_rows = 0;
};

struct Config {
  int vocab_size = 0, hidden_size = 0, n_layers = 0;
  std::vector<bool> attention_layers;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, rotary_dim = 0;
  std::vector<int> mrope_section;
  int index_n_heads = 0, index_head_dim = 0, index_budget = 0, index_ratio = 0;
  int linear_k_heads = 0, linear_v_heads = 0, linear_k_dim = 0, linear_v_dim = 0, linear_conv = 0;
  std::string output_gate;
  int n_experts = 0, top_k = 0, moe_width = 0, shared_width = 0;
  int hc_count = 0, hc_rank = 0;
  std::vector<int> ple_layers;
  int ple_dim = 0, ple_conv = 0, ngram_size = 0, heads_per_ngram = 0, ngram_shards = 0;
  std::vector<NgramTable> ngram;
  int segment_token = 0;
  bool has_draft_head = false;
  float rms_eps = 0;

  int width() const { return hc_count * hidden_size; }  // W
  int conv_channels() const { return 2 * linear_k_heads * linear_k_dim + linear_v_heads * linear_v_dim; }
  int linear_values() const { return linear_v_heads * linear_v_dim; }
  int n_attention_layers() const;
  int budget_blocks() const { return index_budget / index_ratio; }

  // Throws InvalidArgument naming the first size outside what the kernels take.
  void check() const;
};

}  // namespace flashnext
