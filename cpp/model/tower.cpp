#include "model/tower.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr double kTheta = 10000;  // of the rotary frequencies

void require(bool ok, const std::string& name, int value, const std::string& rule) {
  if (!ok) {
    throw InvalidArgument("vision_config: " + name + " is " + std::to_string(value) + "; the kernels need " +
                          rule);
  }
}

void require_inputs(int value, const std::string& name) {
  require(value > 0 && value % 16 == 0 && value <= kMaxInputs, name, value,
          "a multiple of 16 up to " + std::to_string(kMaxInputs));
}

size_t n(int x) { return static_cast<size_t>(x); }

}  // namespace

int TowerConfig::side() const { return static_cast<int>(std::lround(std::sqrt(double(n_positions)))); }

void TowerConfig::check() const {
  require(depth >= 0, "depth", depth, "0 or more");
  require_inputs(hidden_size, "hidden_size");
  require_inputs(intermediate_size, "intermediate_size");
  require(n_heads > 0 && hidden_size % n_heads == 0, "num_heads", n_heads, "a divisor of hidden_size");
  require(head_dim() % 4 == 0 && head_dim() <= kMaxSliceDim, "hidden_size / num_heads", head_dim(),
          "a multiple of 4 up to " + std::to_string(kMaxSliceDim));
  require(merge > 0 && merge <= 16, "spatial_merge_size", merge, "1 to 16");
  require_inputs(merged(), "hidden_size * spatial_merge_size^2");
  require(in_channels > 0 && in_channels <= 16, "in_channels", in_channels, "1 to 16");
  require(temporal_patch > 0 && temporal_patch <= 16, "temporal_patch_size", temporal_patch, "1 to 16");
  require(patch_size > 0 && patch_size <= 256, "patch_size", patch_size, "1 to 256");
  require_inputs(patch_values(), "in_channels * temporal_patch_size * patch_size^2");
  require(out_hidden_size > 0, "out_hidden_size", out_hidden_size, "a positive number");
  require(n_positions > 0 && side() * side() == n_positions && side() < 1 << 12, "num_position_embeddings",
          n_positions, "a square of a number below 4096");
}

Tower::Tower(std::shared_ptr<Model> model, TowerConfig config, int max_patches)
    : model_(std::move(model)),
      config_((config.check(), config)),
      max_patches_(max_patches),
      launch_(*model_->device()) {
  const int token = config_.merge * config_.merge;
  if (max_patches < token || max_patches % token != 0 || max_patches > 1 << 20) {
    throw InvalidArgument("tower: max_patches is " + std::to_string(max_patches) +
                          ", expected a multiple of " + std::to_string(token) + " up to 1048576");
  }
  load();
  allocate_scratch();
}

void Tower::load() {
  const TowerConfig& c = config_;
  Weights& w = model_->weights();
  const size_t mapped = w.mapped_bytes(), copied = w.copied_bytes();
  const int d = c.hidden_size, inner = c.intermediate_size;
  embed_.weight =
      w.patch_kernel("visual.patch_embed.proj.weight", d, c.in_channels, c.temporal_patch, c.patch_size);
  embed_.bias = {w.vector("visual.patch_embed.proj.bias", d, false), 0};
  positions_ = {w.vector("visual.pos_embed.weight", int64_t{c.n_positions} * d, false), 0};
  for (int i = 0; i < c.depth; ++i) {
    const std::string at = "visual.blocks." + std::to_string(i) + ".";
    blocks_.push_back({norm(w, at + "norm1"), norm(w, at + "norm2"), layer(w, at + "attn.qkv", 3 * d, d),
                       layer(w, at + "attn.proj", d, d), layer(w, at + "mlp.linear_fc1", inner, d),
                       layer(w, at + "mlp.linear_fc2", d, inner)});
  }
  merge_norm_ = norm(w, "visual.merger.norm");
  merge1_ = layer(w, "visual.merger.linear_fc1", c.merged(), c.merged());
  merge2_ = layer(w, "visual.merger.linear_fc2", c.out_hidden_size, c.merged());
  copied_bytes_ = w.copied_bytes() - copied;
  weight_bytes_ = w.mapped_bytes() - mapped + copied_bytes_;
}

Tower::Norm Tower::norm(Weights& w, const std::string& at) const {
  return {{w.vector(at + ".weight", config_.hidden_size, false), 0},
          {w.vector(at + ".bias", config_.hidden_size, false), 0}};
}

Tower::Layer Tower::layer(Weights& w, const std::string& at, int n_out, int n_in) const {
  const StoredMatrix m = w.matrix(at, n_out, n_in);
  if (m.format.bits < 16) {
    throw InvalidArgument("tensor " + at + ".weight is quantized, expected bfloat16 or float32 in the tower");
  }
  return {m, {w.vector(at + ".bias", n_out, false), 0}};
}

Slice Tower::take(size_t size_bytes) {
  owned_.push_back(model_->device()->allocate(size_bytes));
  scratch_bytes_ += size_bytes;
  return {owned_.back(), 0};
}

void Tower::allocate_scratch() {
  const TowerConfig& c = config_;
  const size_t P = n(max_patches_), C = std::min<size_t>(kChunk, P), f = sizeof(float), D = n(c.hidden_size);
  const size_t half = n(c.head_dim() / 2), merge2 = n(c.merge * c.merge);
  inv_freq_ = take(half / 2 * f);
  for (size_t j = 0; j < half / 2; ++j) {
    inv_freq_.host<float>()[j] =
        static_cast<float>(std::pow(kTheta, -2.0 * static_cast<double>(j) / static_cast<double>(half)));
  }
  patches_ = take(P * sizeof(Patch));
  // Every slice begins a tile, and has at least one token.
  tiles_ = take((P / launch_.tile_patches() + P / merge2) * sizeof(SliceTile));
  x_ = take(P * D * f);
  qkv_ = take(P * 3 * D * f);
  cos_ = take(P * half * f);
  sin_ = take(P * half * f);
  for (Slice& incoming : incoming_) incoming = take(C * n(c.patch_values()) * f);
  rows_ = take(C * D * f);
  inner_ = take(C * std::max(n(c.intermediate_size), D) * f);
  features_ = take(C / merge2 * n(c.out_hidden_size) * f);
}

}  // namespace flashnext
