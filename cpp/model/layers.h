// The weights of each part of a layer and the scratch a pass runs in; private to the model.
#pragma once

#include <optional>
#include <vector>

#include "model/model.h"

namespace flashnext {

struct Model::HyperConnection {
  Slice norm;                          // float[W]
  StoredMatrix down, up;               // [rank, W], [W, rank]
  std::optional<StoredMatrix> inject;  // [S, W]; the final mixer has none
};

struct Model::DeltaNet {
  StoredMatrix qkv, z, b, a, out;
  Slice taps, rate, dt_bias, norm;
};

struct Model::Attention {
  StoredMatrix q, k, v, out, index;
  Slice q_norm, k_norm, index_q_norm, index_k_norm;
};

struct Model::Experts {
  StoredMatrix router, gate, up, down;
  StoredMatrix shared_gate_proj, shared_up, shared_down, shared_gate;
};

struct Model::Ple {
  StoredMatrix key, value;
  Slice norm_key, norm_query, norm_conv, taps;
  Slice multipliers, sizes, offsets, shards;
  NgramGatherParams gather;
  StateLayout::Ple state;
};

struct Model::Layer {
  std::optional<Ple> ple;
  HyperConnection mixer_hc, experts_hc;
  std::optional<DeltaNet> delta;
  std::optional<Attention> attention;
  Experts experts;
  StateLayout::Delta state;  // of delta
  PageLayout::Layer page;    // of attention
};

// The draft head: row i reads the streams of row i of the model and the token behind it.
struct Model::Head {
  Slice norm_embedding, norm_hidden;  // float[D], float[W]
  StoredMatrix fc_embedding, fc_hidden;
  Layer layer;
  HyperConnection mixer;

  Slice input, embedded, normed, streams;  // T: [R, W], [R, D], [R, D], [R, W]
  Slice stream_rows, ones;                 // int32[R*S]: i / S; float[R*S]
  HeadTables absorb;                       // filled by the host
  std::vector<HeadTables> steps;           // filled on the device, counts of all steps in one array
};

// R rows of everything a pass computes between its barriers. T values unless said otherwise.
struct Model::Scratch {
  Slice streams, normed, low, gates, mixed;           // [R, W], [R, W], [R, rank], float[R, S], [R, D]
  Slice qkv, conv, z, b, a, q, k, beta, decay, core;  // DeltaNet; b, a, q, k, beta, decay float
  Slice qg, key, value, index_qk, query, index_q, cos, sin, attended;  // attention; cos, sin float
  Slice scores, blocks, n_selected;                                    // selection: float, int32, int32
  Slice router, ids, weights, active, starts, pairs, act, shared_act, shared_gate;
  Slice ngram_ids, embedding, ple_key, ple_value, gated, ple_normed;
  Slice last_streams, last_normed, last_low, last_mixed;  // [L, ...]
};

// Rows whose block scores are held at a time: scores of all blocks of the context for a whole prompt chunk
// would be large.
constexpr uint32_t kScoredRows = 64;

}  // namespace flashnext
