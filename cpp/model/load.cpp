// Construction of a model: placing weights, and scratch for its largest pass.
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/sampler.h"
#include "model/layers.h"

namespace flashnext {

Model::~Model() = default;

Model::Model(DeviceRef device, Config config, std::unique_ptr<Weights> weights, ModelOptions options)
    : device_(std::move(device)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      options_(std::move(options)),
      page_((config_.check(), config_), options_.dtype),
      state_(config_, options_.dtype, options_.max_window),
      launch_(*device_, options_.dtype) {
  const Config& c = config_;
  if (options_.inv_freq.size() != static_cast<size_t>(c.rotary_dim / 2)) {
    throw InvalidArgument("inv_freq has " + std::to_string(options_.inv_freq.size()) +
                          " frequencies, expected " + std::to_string(c.rotary_dim / 2));
  }
  if (options_.context <= 0 || options_.max_chunk < 1 || options_.max_chunk > 2048 ||
      options_.max_window < 1 || options_.max_window > options_.max_round || options_.max_round > 64 ||
      options_.max_sequences < 1) {
    throw InvalidArgument(
        "model options: context must be positive, max_chunk 1 to 2048, max_window 1 to max_round, "
        "max_round at most 64, max_sequences positive");
  }
  owned_.push_back(device_->allocate(options_.inv_freq.size() * sizeof(float)));
  inv_freq_ = owned_.back();
  std::memcpy(inv_freq_->host(), options_.inv_freq.data(), inv_freq_->size_bytes());

  embed_ = weights_->matrix("embed_tokens", c.vocab_size, c.hidden_size);
  size_t n_attention = 0, n_delta = 0;
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string at = "layers." + std::to_string(i) + ".";
    Layer layer;
    for (size_t j = 0; j < c.ple_layers.size(); ++j) {
      if (c.ple_layers[j] == i) layer.ple = ple(at + "ple.", static_cast<int>(j));
    }
    layer.mixer_hc = hyper_connection(at + "attn_hyper_connection.", true);
    if (c.attention_layers[static_cast<size_t>(i)]) {
      layer.attention = attention(at + "self_attn.");
      layer.page = page_.layers[n_attention++];
    } else {
      layer.delta = delta_net(at + "linear_attn.");
      layer.state = state_.deltas[n_delta++];
    }
    layer.experts_hc = hyper_connection(at + "mlp_hyper_connection.", true);
    layer.experts = experts(at + "mlp.");
    layers_.push_back(std::move(layer));
  }
  mixer_ = std::make_unique<HyperConnection>(hyper_connection("hyper_connection_mixer.", false));
  lm_head_ = weights_->matrix("lm_head", c.vocab_size, c.hidden_size);
  allocate_scratch();
  if (c.has_draft_head) {
    load_head();
    allocate_head();
  }
}

size_t Model::weight_bytes() const { return weights_->mapped_bytes() + weights_->copied_bytes(); }
size_t Model::streamed_bytes() const { return weights_->streamed_bytes(); }
size_t Model::copied_bytes() const { return weights_->copied_bytes(); }

Slice Model::take(size_t size_bytes) {
  owned_.push_back(device_->allocate(size_bytes));
  scratch_bytes_ += size_bytes;
  return {owned_.back(), 0};
}

Model::HyperConnection Model::hyper_connection(const std::string& at, bool inject) {
  const Config& c = config_;
  HyperConnection h;
  h.norm = {weights_->vector(at + "hc_norm.weight", c.width(), true), 0};
  h.down = weights_->matrix(at + "input_mix_weight_down", c.hc_rank, c.width());
  h.up = weights_->matrix(at + "input_mix_weight_up", c.width(), c.hc_rank);
  if (inject) h.inject = weights_->matrix(at + "block_inject_weight", c.hc_count, c.width());
  return h;
}

Model::DeltaNet Model::delta_net(const std::string& at) {
  const Config& c = config_;
  DeltaNet d;
  d.qkv = weights_->matrix(at + "in_proj_qkv", c.conv_channels(), c.hidden_size);
  d.z = weights_->matrix(at + "in_proj_z", c.linear_values(), c.hidden_size);
  d.b = weights_->matrix(at + "in_proj_b", c.linear_v_heads, c.hidden_size);
  d.a = weights_->matrix(at + "in_proj_a", c.linear_v_heads, c.hidden_size);
  d.out = weights_->matrix(at + "out_proj", c.hidden_size, c.linear_values());
  d.taps = {weights_->taps(at + "conv1d.weight", c.conv_channels(), c.linear_conv), 0};
  const BufferRef rate = weights_->vector(at + "A_log", c.linear_v_heads, false);
  auto* values = reinterpret_cast<float*>(rate->host());
  for (int i = 0; i < c.linear_v_heads; ++i) values[i] = static_cast<float>(std::exp(double{values[i]}));
  d.rate = {rate, 0};
  d.dt_bias = {weights_->vector(at + "dt_bias", c.linear_v_heads, false), 0};
  d.norm = {weights_->vector(at + "norm.weight", c.linear_v_dim, false), 0};
  return d;
}

Model::Attention Model::attention(const std::string& at) {
  const Config& c = config_;
  Attention a;
  a.q = weights_->matrix(at + "q_proj", 2 * c.n_heads * c.head_dim, c.hidden_size);
  a.k = weights_->matrix(at + "k_proj", c.n_kv_heads * c.head_dim, c.hidden_size);
  a.v = weights_->matrix(at + "v_proj", c.n_kv_heads * c.head_dim, c.hidden_size);
  a.out = weights_->matrix(at + "o_proj", c.hidden_size, c.n_heads * c.head_dim);
  a.index =
      weights_->matrix(at + "indexer.index_qk_proj", (c.index_n_heads + 1) * c.index_head_dim, c.hidden_size);
  a.q_norm = {weights_->vector(at + "q_norm.weight", c.head_dim, true), 0};
  a.k_norm = {weights_->vector(at + "k_norm.weight", c.head_dim, true), 0};
  a.index_q_norm = {weights_->vector(at + "indexer.q_layernorm.weight", c.index_head_dim, true), 0};
  a.index_k_norm = {weights_->vector(at + "indexer.k_layernorm.weight", c.index_head_dim, true), 0};
  return a;
}

Model::Experts Model::experts(const std::string& at) {
  const Config& c = config_;
  Experts e;
  e.router = weights_->matrix(at + "gate", c.n_experts, c.hidden_size);
  e.gate = weights_->matrix(at + "experts.gate_proj", c.moe_width, c.hidden_size, c.n_experts);
  e.up = weights_->matrix(at + "experts.up_proj", c.moe_width, c.hidden_size, c.n_experts);
  e.down = weights_->matrix(at + "experts.down_proj", c.hidden_size, c.moe_width, c.n_experts);
  e.shared_gate_proj = weights_->matrix(at + "shared_expert.gate_proj", c.shared_width, c.hidden_size);
  e.shared_up = weights_->matrix(at + "shared_expert.up_proj", c.shared_width, c.hidden_size);
  e.shared_down = weights_->matrix(at + "shared_expert.down_proj", c.hidden_size, c.shared_width);
  e.shared_gate = weights_->matrix(at + "shared_expert_gate", 1, c.hidden_size);
  const auto same = [&](const StoredMatrix& x, const StoredMatrix& y, const std::string& what) {
    if (x.format.bits == y.format.bits && x.format.group == y.format.group &&
        x.codes_stride == y.codes_stride)
      return;
    throw InvalidArgument("tensors " + at + what +
                          ".gate_proj and up_proj differ in bits or group; the kernel reads both alike");
  };
  same(e.gate, e.up, "experts");
  same(e.shared_gate_proj, e.shared_up, "shared_expert");
  return e;
}

Model::Ple Model::ple(const std::string& at, int index) {
  const Config& c = config_;
  const NgramTable& table = c.ngram.at(static_cast<size_t>(index));
  Ple p;
  p.key = weights_->matrix(at + "key_proj", c.width(), c.ple_dim);
  p.value = weights_->matrix(at + "value_proj", c.hidden_size, c.ple_dim);
  p.norm_key = {weights_->vector(at + "norm_key.weight", c.width(), true), 0};
  p.norm_query = {weights_->vector(at + "norm_query.weight", c.width(), true), 0};
  p.norm_conv = {weights_->vector(at + "norm_conv.weight", c.width(), true), 0};
  p.taps = {weights_->taps(at + "conv1d.weight", c.width(), c.ple_conv), 0};
  const auto constants = [&](const std::vector<int64_t>& values) {
    owned_.push_back(device_->allocate(values.size() * sizeof(int64_t)));
    std::memcpy(owned_.back()->host(), values.data(), values.size() * sizeof(int64_t));
    return Slice(owned_.back());
  };
  p.multipliers = constants(table.multipliers);
  p.sizes = constants(table.sizes);
  p.offsets = constants(table.offsets);
  const int n_heads = (c.ngram_size - 1) * c.heads_per_ngram, width = c.ple_dim / n_heads;
  const int64_t shard_rows = table.n_rows / c.ngram_shards;
  std::vector<int64_t> addresses;
  for (int s = 0; s < c.ngram_shards; ++s) {
    const StoredMatrix m = weights_->matrix(at + "ple_embedding.ngram_embedding.shard_" + std::to_string(s),
                                            shard_rows, width, 0, options_.streamed_table);
    if (s > 0 && (m.format.bits != p.gather.format.bits || m.format.group != p.gather.format.group)) {
      throw InvalidArgument("tensors " + at +
                            "ple_embedding.ngram_embedding.shard_* differ in bits or group");
    }
    p.gather.format = m.format;
    for (const Slice& part : {m.codes, m.scales, m.biases}) {
      addresses.push_back(part ? static_cast<int64_t>(part.address()) : 0);
    }
  }
  p.shards = constants(addresses);
  p.gather.n_heads = static_cast<uint32_t>(n_heads);
  p.gather.rows_per_shard = static_cast<uint32_t>(shard_rows);
  p.gather.row_width = static_cast<uint32_t>(width);
  p.gather.scale = weights_->scalar(at + "ple_embedding.ngram_embedding.weight_scale", 1.0f);
  p.state = state_.ples[static_cast<size_t>(index)];
  return p;
}

void Model::allocate_scratch() {
  const Config& c = config_;
  const size_t R = static_cast<size_t>(max_rows()), L = static_cast<size_t>(options_.max_round),
               t = size_bytes(options_.dtype), f = 4;
  const size_t W = static_cast<size_t>(c.width()), D = static_cast<size_t>(c.hidden_size),
               S = static_cast<size_t>(c.hc_count);
  const auto n = [](int a, int b = 1) { return static_cast<size_t>(a) * static_cast<size_t>(b); };
  s_ = std::make_unique<Scratch>();
  Scratch& s = *s_;
  // With a draft head also rows that sessions carry over from their pass before.
  const size_t carried = c.has_draft_head ? n(options_.max_sequences) : 0;
  s.streams = take((R + carried) * W * t);
  s.normed = take(R * W * t);
  s.low = take(R * n(c.hc_rank) * t);
  s.gates = take(R * S * f);
  s.mixed = take(R * D * t);

  s.qkv = take(R * n(c.conv_channels()) * t);
  s.conv = take(R * n(c.conv_channels()) * t);
  s.z = take(R * n(c.linear_values()) * t);
  s.b = take(R * n(c.linear_v_heads) * f);
  s.a = take(R * n(c.linear_v_heads) * f);
  s.q = take(R * n(c.linear_k_heads, c.linear_k_dim) * f);
  s.k = take(R * n(c.linear_k_heads, c.linear_k_dim) * f);
  s.beta = take(R * n(c.linear_v_heads) * f);
  s.decay = take(R * n(c.linear_v_heads) * f);
  s.core = take(R * n(c.linear_values()) * t);

  s.qg = take(R * 2 * n(c.n_heads, c.head_dim) * t);
  s.key = take(R * n(c.n_kv_heads, c.head_dim) * t);
  s.value = take(R * n(c.n_kv_heads, c.head_dim) * t);
  s.index_qk = take(R * n(c.index_n_heads + 1, c.index_head_dim) * t);
  s.query = take(R * n(c.n_heads, c.head_dim) * t);
  s.index_q = take(R * n(c.index_n_heads, c.index_head_dim) * t);
  s.cos = take(R * n(c.rotary_dim) / 2 * f);
  s.sin = take(R * n(c.rotary_dim) / 2 * f);
  s.attended = take(R * n(c.n_heads, c.head_dim) * t);
  const size_t max_blocks = n(options_.context) / n(c.index_ratio) + 1;
  s.scores = take(kScoredRows * max_blocks * f);
  s.blocks = take(R * n(c.budget_blocks()) * 4);
  s.n_selected = take(R * 4);

  s.router = take(R * n(c.n_experts) * f);
  s.ids = take(R * n(c.top_k) * 4);
  s.weights = take(R * n(c.top_k) * f);
  s.active = take((1 + n(c.n_experts)) * 4);
  s.starts = take((1 + n(c.n_experts)) * 4);
  s.pairs = take(R * n(c.top_k) * 4);
  s.act = take(R * n(c.top_k, c.moe_width) * t);
  s.shared_act = take(R * n(c.shared_width) * t);
  s.shared_gate = take(R * f);

  if (!c.ple_layers.empty()) {
    s.ngram_ids = take(R * n(c.ngram_size - 1, c.heads_per_ngram) * 4);
    s.embedding = take(R * n(c.ple_dim) * t);
    s.ple_key = take(R * W * t);
    s.ple_value = take(R * D * t);
    s.gated = take(R * W * t);
    s.ple_normed = take(R * W * t);
  }
  s.last_streams = take(L * W * t);
  s.last_normed = take(L * W * t);
  s.last_low = take(L * n(c.hc_rank) * t);
  s.last_mixed = take(L * D * t);

  const auto Q = n(options_.max_sequences);
  host_ = {take(sizeof(Counts)), take(Q * sizeof(Sequence)), take(R * sizeof(Row)), take(L * 4),
           take(L * sizeof(DrawRow))};
  round_ = {take(sizeof(Counts)), take(Q * sizeof(Sequence)), take(L * sizeof(Row)), take(L * 4),
            take(L * sizeof(DrawRow))};
  marks_ = take(R * sizeof(Mark));
  features_ = take(R * sizeof(uint64_t));
  copies_ = {take(sizeof(Counts)), take(Q * 8), take(Q * 4), take(Q * 4)};
  for (int i = 0; i < kSlots; ++i) {
    slots_.push_back({take(Q * sizeof(Window)), take(Q * sizeof(Landed)), take(L * f), take(L * kMaxTop * 4),
                      take(L * kMaxTop * f), take(L * 8)});
  }
  logits_ = take(L * n(c.vocab_size) * f);
  drawn_ = take(L * 4);
  draw_scratch_ =
      take(SamplerScratch::size_bytes(static_cast<uint32_t>(L), static_cast<uint32_t>(c.vocab_size)));
}

}  // namespace flashnext
