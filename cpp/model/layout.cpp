#include "model/layout.h"

#include <cstring>

#include "metal/params.h"

namespace flashnext {
namespace {

constexpr size_t kAlignment = 64;

// Hands out aligned offsets one after the other.
class Cursor {
 public:
  uint32_t take(size_t size_bytes) {
    const size_t here = at_;
    at_ += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<uint32_t>(here);
  }
  size_t size_bytes() const { return at_; }

 private:
  size_t at_ = 0;
};

}  // namespace

PageLayout::PageLayout(const Config& c, DType dtype) {
  const size_t t = flashnext::size_bytes(dtype);
  head_bytes_ = size_t(c.head_dim) * t;
  key_bytes_ = size_t(c.index_head_dim) * t;
  n_kv_heads_ = c.n_kv_heads;
  index_ratio_ = c.index_ratio;
  Cursor at;
  rotary = at.take(kPageTokens * 3 * sizeof(int32_t));
  const size_t kv = size_t(c.n_kv_heads) * kPageTokens * c.head_dim * t;
  const size_t raw = size_t(kPageTokens) * c.index_head_dim * t;
  const auto layer = [&] {
    Layer l;
    l.k = at.take(kv);
    l.v = at.take(kv);
    l.raw = at.take(raw);
    l.pooled = at.take(raw / c.index_ratio);
    return l;
  };
  for (int i = 0; i < c.n_attention_layers(); ++i) layers.push_back(layer());
  if (c.has_draft_head) head = layer();
  size_bytes = at.size_bytes();
}

void PageLayout::copy_rows(const std::byte* from, int n_rows, int n_head, std::byte* to) const {
  std::memset(to, 0, size_bytes);
  const auto copy = [&](size_t at, size_t n) { std::memcpy(to + at, from + at, n); };
  const auto copy_layer = [&](const Layer& layer, int n) {
    const auto rows = static_cast<size_t>(n);
    for (size_t kv = 0; kv < static_cast<size_t>(n_kv_heads_); ++kv) {
      copy(layer.k + kv * kPageTokens * head_bytes_, rows * head_bytes_);
      copy(layer.v + kv * kPageTokens * head_bytes_, rows * head_bytes_);
    }
    copy(layer.raw, rows * key_bytes_);
    copy(layer.pooled, static_cast<size_t>(n / index_ratio_) * key_bytes_);
  };
  copy(rotary, static_cast<size_t>(n_rows) * 3 * sizeof(int32_t));
  for (const Layer& layer : layers) copy_layer(layer, n_rows);
  if (head) copy_layer(*head, n_head);
}

StateLayout::StateLayout(const Config& c, DType dtype, int max_window) {
  const size_t t = flashnext::size_bytes(dtype), rows = static_cast<size_t>(max_window);
  const size_t f = sizeof(float), keys = size_t(c.linear_k_heads) * c.linear_k_dim;
  Cursor block, row;
  for (const bool attention : c.attention_layers) {
    if (attention) continue;
    Delta d;
    d.state = block.take(size_t(c.linear_v_heads) * c.linear_k_dim * c.linear_v_dim * f);
    d.conv = block.take(size_t(c.linear_conv - 1) * c.conv_channels() * t);
    d.row_conv = row.take(rows * c.conv_channels() * t);
    d.row_k = row.take(rows * keys * f);
    d.row_v = row.take(rows * c.linear_values() * t);
    d.row_beta = row.take(rows * c.linear_v_heads * f);
    d.row_decay = row.take(rows * c.linear_v_heads * f);
    deltas.push_back(d);
  }
  for (size_t i = 0; i < c.ple_layers.size(); ++i) {
    Ple p;
    p.tokens = block.take(size_t(c.ngram_size - 1) * sizeof(int32_t));
    p.conv = block.take(size_t(c.ple_conv - 1) * c.ngram_size * c.width() * t);
    p.row_tokens = row.take(rows * sizeof(int32_t));
    p.row_conv = row.take(rows * c.width() * t);
    ples.push_back(p);
  }
  if (c.has_draft_head) streams = block.take(size_t(c.width()) * t);
  block_bytes = block.size_bytes();
  unsettled_bytes = row.size_bytes();
}

}  // namespace flashnext
