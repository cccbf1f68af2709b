// Where things lie in a page, in a sequence's recurrent block and in its unsettled inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "model/config.h"

namespace flashnext {

// One page: kPageTokens positions of every attention layer and of the draft head. All offsets and sizes are
// bytes.
struct PageLayout {
  PageLayout() = default;
  PageLayout(const Config& config, DType dtype);

  struct Layer {
    uint32_t k, v, raw, pooled;
  };
  uint32_t rotary = 0;        // int32[kPageTokens, 3]
  std::vector<Layer> layers;  // by attention layer
  std::optional<Layer> head;  // of the draft head
  size_t size_bytes = 0;

  // Copies what the first n_rows positions of a page hold, and the draft head's first n_head, with the pooled
  // keys of the blocks that they complete. Nothing else is read; all else of `to` becomes zero.
  void copy_rows(const std::byte* from, int n_rows, int n_head, std::byte* to) const;

 private:
  size_t head_bytes_ = 0, key_bytes_ = 0;  // of a row's key or value of one head, and of its index key
  int n_kv_heads_ = 0, index_ratio_ = 1;
};

// The recurrent block of a sequence and, for each row of a window, what the next round settles it with.
struct StateLayout {
  StateLayout() = default;
  StateLayout(const Config& config, DType dtype, int max_window);

  struct Delta {
    uint32_t state, conv;                                  // in the block
    uint32_t row_conv, row_k, row_v, row_beta, row_decay;  // in the unsettled inputs
  };
  struct Ple {
    uint32_t tokens, conv;
    uint32_t row_tokens, row_conv;
  };
  std::vector<Delta> deltas;  // by DeltaNet layer
  std::vector<Ple> ples;      // by PLE layer
  uint32_t streams = 0;       // in the block, with a draft head: T[W] of the last committed row
  size_t block_bytes = 0;
  size_t unsettled_bytes = 0;  // of one window
};

}  // namespace flashnext
