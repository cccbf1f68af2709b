// The layer plan: turns the rows of a pass into dispatches.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/launch.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/weights.h"

namespace flashnext {

struct ModelOptions {
  DType dtype = DType::kBFloat16;  // of activations and caches
  std::vector<float> inv_freq;     // [rotary_dim / 2]
  float attention_factor = 1;      // of cos and sin (YaRN)
  int context = 0;                 // largest prompt plus reply of a sequence
  int max_chunk = 512;             // rows of a prompt pass
  int max_window = 16;             // rows of one sequence in a round
  int max_round = 64;              // rows of a round
  int max_sequences = 64;          // sequences of a pass
};

// What the host knows of a pass when it is recorded.
struct PassBounds {
  uint32_t n_rows = 0, n_sequences = 0;
  uint32_t max_length = 0;  // positions of the longest sequence, this pass included
};

// The loaded model: weights, scratch and the tables of a pass. One pass at a time uses the scratch.
class Model {
 public:
  // Checks config and tensors, places weights and allocates scratch. Throws InvalidArgument or OutOfMemory;
  // nothing stays.
  Model(DeviceRef device, Config config, std::unique_ptr<Weights> weights, ModelOptions options);
  ~Model();

  const DeviceRef& device() const { return device_; }
  const Config& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const PageLayout& page_layout() const { return page_; }
  const StateLayout& state_layout() const { return state_; }
  size_t weight_bytes() const;  // mapped and copied
  size_t copied_bytes() const;  // of them copied
  size_t scratch_bytes() const { return scratch_bytes_; }
  int max_rows() const { return std::max(options_.max_chunk, options_.max_round); }

  // Tables the host fills before a pass is committed.
  Counts* counts() const { return counts_.host<Counts>(); }
  Sequence* sequences() const { return sequences_.host<Sequence>(); }
  Row* rows() const { return rows_.host<Row>(); }
  int32_t* logit_rows() const { return logit_rows_.host<int32_t>(); }  // which rows want logits
  // Results: float[n_logits, vocab] and the ids that the argmax kernel chose.
  const float* logits() const { return logits_.host<const float>(); }
  const int32_t* best() const { return best_.host<const int32_t>(); }

  // The tables of the draft head's step. The host fills all of step 0; of the steps behind it counts and
  // sequences, the device the rest.
  struct HeadTables {
    Counts* counts;
    Sequence* sequences;
    Row* rows;            // tokens are those behind the row's position
    int32_t* sources;     // rows of the pass before, or max_rows() + i: what carry_streams() put there
    int32_t* logit_rows;  // of each sequence that drafts the row that does it; these sequences come first
    const int32_t* best;  // result: what they drafted
  };
  bool has_head() const { return head_ != nullptr; }
  HeadTables head_tables(int step) const;

  // Records the layers for all rows of the pass.
  void record_rows(CommandBuffer& cb, const PassBounds& bounds) const;
  // Records logits and argmax of up to max_round rows of the pass before; ids at or beyond n_valid are never
  // chosen.
  void record_logits(CommandBuffer& cb, uint32_t n_logits, uint32_t n_valid) const;
  // Records copies of streams between a session's block and the pass: in, to row max_rows() + i of sources;
  // and out, from row `row`.
  void carry_streams(CommandBuffer& cb, Slice block, uint32_t i) const;
  void keep_streams(CommandBuffer& cb, uint32_t row, Slice block) const;
  // Records a step of the draft head behind record_rows() or the step before: n_logits sequences draft.
  void record_head(CommandBuffer& cb, int step, const PassBounds& bounds, uint32_t n_logits,
                   uint32_t n_valid) const;

 private:
  struct Head;
  struct HyperConnection;
  struct DeltaNet;
  struct Attention;
  struct Experts;
  struct Ple;
  struct Layer;
  struct Scratch;

  Slice take(size_t size_bytes);
  HyperConnection hyper_connection(const std::string& at, bool inject);
  DeltaNet delta_net(const std::string& at);
  Attention attention(const std::string& at);
  Experts experts(const std::string& at);
  Ple ple(const std::string& at, int index);
  void allocate_scratch();

  void allocate_head();
  void load_head();

  void read(CommandBuffer& cb, const Batch& b, Slice streams, const HyperConnection& hc) const;
  void record_delta(CommandBuffer& cb, const Batch& b, const Layer& layer) const;
  void record_attention(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer,
                        const PassBounds& bounds) const;
  void record_experts(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer) const;
  void record_choice(CommandBuffer& cb, const Batch& b, Slice streams, const HyperConnection& mixer,
                     Slice best, uint32_t n_valid) const;
  void record_ple(CommandBuffer& cb, const Batch& b, const Ple& ple) const;
  Batch batch(const PassBounds& bounds) const;

  DeviceRef device_;
  Config config_;
  std::unique_ptr<Weights> weights_;
  ModelOptions options_;
  PageLayout page_;
  StateLayout state_;
  Launcher launch_;

  StoredMatrix embed_, lm_head_;
  std::vector<Layer> layers_;
  std::unique_ptr<HyperConnection> mixer_;
  std::unique_ptr<Head> head_;  // null without one
  BufferRef inv_freq_;
  std::vector<BufferRef> owned_;  // scratch, tables and small constants
  std::unique_ptr<Scratch> s_;
  Slice counts_, sequences_, rows_, logit_rows_, logits_, best_;
  size_t scratch_bytes_ = 0;
};

}  // namespace flashnext
