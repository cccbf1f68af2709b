#include "model/config.h"

#include <algorithm>

#include "base/error.h"
#include "metal/params.h"

namespace flashnext {
namespace {

void require(bool ok, const std::string& name, int64_t value, const std::string& rule) {
  if (!ok)
    throw InvalidArgument("config: " + name + " is " + std::to_string(value) + "; the kernels need " + rule);
}

void require_multiple(int value, const std::string& name, int of, int at_most) {
  require(value > 0 && value % of == 0 && value <= at_most, name, value,
          "a multiple of " + std::to_string(of) + " up to " + std::to_string(at_most));
}

}  // namespace

int Config::n_attention_layers() const {
  return static_cast<int>(std::count(attention_layers.begin(), attention_layers.end(), true));
}

void Config::check() const {
  require_multiple(hidden_size, "hidden_size", 32, 16384);
  require(hc_count > 0 && width() <= kMaxInputs, "hc_count * hidden_size", width(), "at most 65536");
  require_multiple(hc_rank, "hc_rank", 32, 8192);
  require_multiple(head_dim, "head_dim", 8, 512);
  require(n_heads * head_dim % 32 == 0 && n_heads * head_dim <= kMaxInputs, "n_heads * head_dim",
          n_heads * head_dim, "a multiple of 32 up to 65536");
  require_multiple(index_head_dim, "index_head_dim", 8, 512);
  require(index_n_heads > 0 && index_n_heads <= 64, "index_n_heads", index_n_heads, "1 to 64");
  require(rotary_dim <= head_dim && rotary_dim <= index_head_dim, "rotary_dim", rotary_dim,
          "at most head_dim and index_head_dim");
  require(kPageTokens % index_ratio == 0, "index_ratio", index_ratio, "a divisor of the page of 64 tokens");
  require(index_budget >= index_ratio, "index_budget", index_budget, "room for one block");
  require_multiple(linear_k_dim, "linear_k_dim", 8, 256);
  require_multiple(linear_v_dim, "linear_v_dim", 16, 256);
  require(linear_v_heads % linear_k_heads == 0, "linear_v_heads", linear_v_heads,
          "a multiple of linear_k_heads");
  require(conv_channels() % 8 == 0, "DeltaNet channels", conv_channels(), "a multiple of 8");
  require(linear_values() % 32 == 0 && linear_values() <= kMaxInputs, "linear_v_heads * linear_v_dim",
          linear_values(), "a multiple of 32 up to 65536");
  require(linear_conv >= 1 && linear_conv <= 8, "linear_conv", linear_conv, "1 to 8 taps");
  require(top_k >= 1 && top_k <= 64 && top_k <= n_experts, "top_k", top_k,
          "1 to 64, and no more than n_experts");
  require_multiple(moe_width, "moe_width", 32, kMaxInputs);
  require_multiple(shared_width, "shared_width", 32, kMaxInputs);
  if (ple_layers.empty()) return;
  require_multiple(ple_dim, "ple_dim", 32, kMaxInputs);
  require(ple_conv >= 1 && ple_conv <= 8, "ple_conv", ple_conv, "1 to 8 taps");
  require(ngram_size >= 2 && ngram_size <= 8, "ngram_size", ngram_size, "2 to 8");
  require(ple_dim / ((ngram_size - 1) * heads_per_ngram) % 8 == 0, "n-gram row width",
          ple_dim / ((ngram_size - 1) * heads_per_ngram), "a multiple of 8");
}

}  // namespace flashnext
