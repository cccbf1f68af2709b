// Launchers of the vision tower's kernels: each records one of metal/params.h with its grid, slots and
// argument struct, and no barrier.
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace flashnext {

class VisionLauncher {
 public:
  // Throws InvalidArgument where the device lacks a kernel.
  explicit VisionLauncher(const Device& device);

  uint32_t tile_patches() const;  // of a SliceTile of this device, at most

  void layer_norm(CommandBuffer& cb, Slice x, Slice weight, Slice bias, Slice out, uint32_t n_rows,
                  const LayerNormParams& p) const;
  // w: bfloat16 or float32.
  void linear(CommandBuffer& cb, Slice x, const StoredMatrix& w, Slice bias, Slice out, uint32_t n_rows,
              LinearFinish finish = kLinearStore) const;
  void patch_place(CommandBuffer& cb, Slice patches, Slice table, Slice inv_freq, Slice x, Slice cos,
                   Slice sin, uint32_t n_rows, const PatchPlaceParams& p) const;
  void patch_turn(CommandBuffer& cb, Slice cos, Slice sin, Slice qkv, uint32_t n_rows,
                  const PatchTurnParams& p) const;
  void slice_attention(CommandBuffer& cb, Slice tiles, Slice qkv, Slice out, uint32_t n_tiles,
                       const SliceAttentionParams& p) const;

 private:
  const Kernel &layer_norm_, &linear_, &patch_place_, &patch_turn_, &slice_attention_;
};

}  // namespace flashnext
