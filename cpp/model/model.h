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
  bool streamed_table = false;     // rows of the n-gram table are read from its file as they are needed
};

// What the host knows of a pass when it is recorded.
struct PassBounds {
  uint32_t n_rows = 0, n_sequences = 0;
  uint32_t max_length = 0;   // positions of the longest sequence, this pass included
  bool shows_media = false;  // some rows of the host's tables have features
};

// The loaded model: weights, scratch and the tables of a pass. One pass at a time uses the scratch.
class Model : public std::enable_shared_from_this<Model> {
 public:
  // Checks config and tensors, places weights and allocates scratch. Throws InvalidArgument or OutOfMemory;
  // nothing stays.
  Model(DeviceRef device, Config config, std::unique_ptr<Weights> weights, ModelOptions options);
  ~Model();

  const DeviceRef& device() const { return device_; }
  Weights& weights() { return *weights_; }  // for what is loaded beside the model
  const Config& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const PageLayout& page_layout() const { return page_; }
  const StateLayout& state_layout() const { return state_; }
  size_t weight_bytes() const;    // mapped and copied
  size_t streamed_bytes() const;  // of them read as they are needed, and not kept in memory
  size_t copied_bytes() const;    // of them copied
  size_t scratch_bytes() const { return scratch_bytes_; }
  int max_rows() const { return std::max(options_.max_chunk, options_.max_round); }

  // Where the tables of a pass come from: the host fills them before the pass is committed, or round_rows
  // does on the device.
  enum class Tables { kHost, kRound };
  // The host's: one such pass at a time.
  struct HostTables {
    Counts* counts;
    Sequence* sequences;
    Row* rows;
    uint64_t* features;   // of each row, where a pass shows media: the address of its feature; 0: none
    int32_t* logit_rows;  // which rows want logits
    DrawRow* draws;       // of each of them
    int32_t* scored;      // tokens behind them, for record_scores()
    Mark* marks;          // of all sequences, one after the other; as many as there are rows of a pass
    uint64_t marks_address;
    // Of what the draft head absorbs; tokens are those behind the row's position.
    Counts* head_counts;
    Sequence* head_sequences;
    Row* head_rows;
    int32_t* head_sources;  // rows of the pass, or max_rows() + i: what carry_streams() put there
  };
  HostTables host_tables() const;
  // Tables that a round in flight keeps, one of each slot; a slot is used again when its round has landed.
  static constexpr int kSlots = 4;
  Window* windows(int slot) const { return slots_[static_cast<size_t>(slot)].windows.host<Window>(); }
  // What a pass left; rows of logits where the pass wanted them.
  struct Results {
    const Landed* landed;     // by window
    const float* chosen;      // by row of logits: log-probability of what was drawn
    const int32_t* top_ids;   // [kMaxTop] of each row
    const float* top_values;  // [kMaxTop] of each row
    const uint64_t* hashes;   // of each row of logits
  };
  Results results(int slot) const;
  // Results of the last pass, float[n_logits, vocab].
  const float* logits() const { return logits_.host<const float>(); }
  bool has_head() const { return head_ != nullptr; }
  // What the bits of a state and where they lie depend on, the checkpoint aside: build, device, numeric
  // options and layouts, in words.
  std::string identity() const;

  // Packs the rows of a round on the device.
  void record_round_rows(CommandBuffer& cb, int slot, uint32_t n_windows) const;
  // The layers for all rows of the pass.
  void record_rows(CommandBuffer& cb, Tables tables, const PassBounds& bounds) const;
  // Logits of up to max_round rows of the pass before.
  void record_logits(CommandBuffer& cb, Tables tables, uint32_t n_logits) const;
  // What a pass leaves beside its tokens: log-probabilities for the replies that ask for them, hashes of the
  // logits (tests), and drafts that are copied from the replies' own texts.
  struct Wanted {
    bool copies = false, logprobs = false, hashes = false;
  };
  // Draws a token from each row of logits, and finds what became of each window of the slot; ids at or beyond
  // n_valid are never drawn. With a draft head packs the rows that it absorbs.
  void record_verdict(CommandBuffer& cb, Tables tables, int slot, uint32_t n_windows, uint32_t n_logits,
                      const Wanted& wanted, uint32_t n_valid) const;
  // Log-probabilities of the scored tokens of the host's tables, each behind its row of logits.
  void record_scores(CommandBuffer& cb, int slot, uint32_t n_logits, uint32_t n_valid) const;
  // Behind record_verdict(): the draft head absorbs, and drafts up to n_drafts tokens of each window. bounds:
  // of what it absorbs.
  void record_drafts(CommandBuffer& cb, uint32_t n_windows, const PassBounds& bounds, uint32_t n_drafts,
                     uint32_t n_valid) const;
  // The draft head absorbs the rows of the host's tables.
  void record_absorb(CommandBuffer& cb, const PassBounds& bounds) const;
  // Copies of streams between a session's block and a pass of the host's tables: in, to row max_rows() + i of
  // its sources; and out, from row `row`.
  void carry_streams(CommandBuffer& cb, Slice block, uint32_t i) const;
  void keep_streams(CommandBuffer& cb, uint32_t row, Slice block) const;

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
  // What these two take, python/flashnext/engine/sizes.py plans.
  void allocate_scratch();
  void allocate_head();

  void load_head();

  void read(CommandBuffer& cb, const Batch& b, Slice streams, const HyperConnection& hc) const;
  void record_delta(CommandBuffer& cb, const Batch& b, const Layer& layer) const;
  void record_attention(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer,
                        const PassBounds& bounds) const;
  void record_experts(CommandBuffer& cb, const Batch& b, Slice streams, const Layer& layer) const;
  void record_choice(CommandBuffer& cb, const Batch& b, Slice streams, const HyperConnection& mixer) const;
  void record_draw(CommandBuffer& cb, const Batch& b, Slice draws, Slice drawn, uint32_t n_valid,
                   bool masked) const;
  void record_head(CommandBuffer& cb, const HeadTables& t, Slice from, const PassBounds& bounds,
                   uint32_t n_logits) const;
  void record_ple(CommandBuffer& cb, const Batch& b, const Ple& ple) const;
  Batch batch(Tables tables, const PassBounds& bounds) const;

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
  RoundTables host_, round_;
  Slice marks_, features_;
  CopyTables copies_;
  struct Slot {
    Slice windows, landed, chosen, top_ids, top_values, hashes;
  };
  std::vector<Slot> slots_;
  Slice logits_, drawn_, draw_scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace flashnext
