// The vision tower: its weights, its scratch, and the plan of a pass over pictures and frames.
//
// All of it is float32 with both activation types of the text model. A pass takes slices (a picture, or one
// pair of a video's frames) of any number of media, as many as its scratch has room for. Rows are patches;
// only attention joins them, inside their slice, so a slice's features have the same bits in any company.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/vision.h"
#include "model/model.h"

namespace flashnext {

// vision_config of config.json.
struct TowerConfig {
  int depth = 0, hidden_size = 0, intermediate_size = 0, n_heads = 0, in_channels = 0, patch_size = 0;
  int temporal_patch = 0, merge = 0, out_hidden_size = 0, n_positions = 0;

  int head_dim() const { return hidden_size / n_heads; }
  int patch_values() const { return in_channels * temporal_patch * patch_size * patch_size; }
  int merged() const { return hidden_size * merge * merge; }
  int side() const;  // of the square table of positions
  // Throws InvalidArgument where the kernels cannot run it.
  void check() const;
};

// Patches of one picture (t = 1) or video: t slices of h rows and w columns.
struct MediaGrid {
  int t = 0, h = 0, w = 0;
};

class Tower {
 public:
  // Takes the tensors visual.* of the model's checkpoint. max_patches: of one slice, and of all slices of a
  // pass. Throws InvalidArgument or OutOfMemory.
  Tower(std::shared_ptr<Model> model, TowerConfig config, int max_patches);

  const TowerConfig& config() const { return config_; }
  int max_patches() const { return max_patches_; }
  uint32_t tile_patches() const { return launch_.tile_patches(); }
  size_t weight_bytes() const { return weight_bytes_; }  // mapped and copied; the model's own count has them
  size_t copied_bytes() const { return copied_bytes_; }  // of them copied
  size_t scratch_bytes() const { return scratch_bytes_; }

  static constexpr uint32_t kChunk = 1024;  // patches that a step works on
  // Pairs that its attention joins, but for a tile that has more: whoever shares the device waits for a step.
  static constexpr uint64_t kChunkPairs = uint64_t{kChunk} * 4096;

 private:
  friend class TowerPass;

  struct Norm {
    Slice weight, bias;
  };
  struct Layer {
    StoredMatrix weight;
    Slice bias;
  };
  struct Block {
    Norm norm1, norm2;
    Layer qkv, proj, fc1, fc2;
  };

  Slice take(size_t size_bytes);
  Norm norm(Weights& weights, const std::string& at) const;
  Layer layer(Weights& weights, const std::string& at, int n_out, int n_in) const;
  void load();
  void allocate_scratch();  // python/flashnext/engine/sizes.py plans it

  std::shared_ptr<Model> model_;
  TowerConfig config_;
  int max_patches_;
  VisionLauncher launch_;
  std::mutex in_use_;  // one pass at a time uses the scratch

  Layer embed_;
  Slice positions_, inv_freq_;
  std::vector<Block> blocks_;
  Norm merge_norm_;
  Layer merge1_, merge2_;

  std::vector<BufferRef> owned_;
  // Of a pass: Patch and SliceTile tables, x float[P, D'], qkv float[P, 3 D'], angles float[P, head_dim / 2].
  Slice patches_, tiles_, x_, qkv_, cos_, sin_;
  // Of a step: incoming patches (two take turns), rows after a norm or attention, inner rows, features.
  Slice incoming_[2], rows_, inner_, features_;
  size_t weight_bytes_ = 0, copied_bytes_ = 0, scratch_bytes_ = 0;
};

// One way through the tower, from patches in order to features in order. Holds the tower's scratch: another
// one waits in its constructor. Steps are command buffers of their own, two in flight at most, so that rounds
// of other threads come between them.
class TowerPass {
 public:
  // Throws InvalidArgument for a grid that is not of whole tokens, or has larger slices than the tower takes.
  TowerPass(Tower& tower, std::span<const MediaGrid> media);
  ~TowerPass();  // waits for what is in flight
  TowerPass(const TowerPass&) = delete;
  TowerPass& operator=(const TowerPass&) = delete;

  // The next patches, float[n, patch_values]; the blocks run whenever the scratch is full. Throws
  // InvalidArgument where there are more than the grids say, and DeviceError.
  void put(std::span<const float> patches);
  // Features float[tokens of all media, out_hidden_size]. Throws InvalidArgument where patches are missing.
  std::vector<float> finish();

 private:
  struct Extent {
    int h, w;
    uint32_t size() const { return static_cast<uint32_t>(h) * static_cast<uint32_t>(w); }
  };
  // Tiles of a step, and the patches that they cover.
  struct Step {
    uint32_t first_tile, n_tiles, first_row, n_rows;
  };

  void begin_pass();
  void embed(std::span<const float> patches);
  void run_blocks();
  void run_merger();
  std::unique_ptr<CommandBuffer> command_buffer() const;
  void commit(CommandBuffer& cb);

  Tower& t_;
  std::unique_lock<std::mutex> lock_;
  std::vector<Extent> slices_;
  size_t next_slice_ = 0;                  // behind those of the pass
  uint32_t n_patches_ = 0, n_filled_ = 0;  // of the pass
  std::vector<Step> steps_;
  std::vector<float> out_;
  size_t n_left_ = 0;  // patches to come
  EventRef done_;
  uint64_t n_committed_ = 0;
};

}  // namespace flashnext
