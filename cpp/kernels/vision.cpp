#include "kernels/vision.h"

#include "kernels/grid.h"

namespace flashnext {

VisionLauncher::VisionLauncher(const Device& d)
    : layer_norm_(d.kernel("layer_norm")),
      linear_(d.kernel("linear")),
      patch_place_(d.kernel("patch_place")),
      patch_turn_(d.kernel("patch_turn")),
      slice_attention_(d.kernel("slice_attention")) {}

uint32_t VisionLauncher::tile_patches() const { return slice_attention_.tile(); }

void VisionLauncher::layer_norm(CommandBuffer& cb, Slice x, Slice weight, Slice bias, Slice out,
                                uint32_t n_rows, const LayerNormParams& p) const {
  cb.dispatch(layer_norm_, {n_rows}, {x, weight, bias, out}, p);
}

void VisionLauncher::linear(CommandBuffer& cb, Slice x, const StoredMatrix& w, Slice bias, Slice out,
                            uint32_t n_rows, LinearFinish finish) const {
  cb.dispatch(linear_, {tiles(w.n_out, linear_), row_blocks(n_rows, linear_)}, {x, w.codes, bias, out},
              LinearParams{w.n_in, w.n_out, n_rows, w.format.bits, finish});
}

void VisionLauncher::patch_place(CommandBuffer& cb, Slice patches, Slice table, Slice inv_freq, Slice x,
                                 Slice cos, Slice sin, uint32_t n_rows, const PatchPlaceParams& p) const {
  cb.dispatch(patch_place_, {n_rows}, {patches, table, inv_freq, x, cos, sin}, p);
}

void VisionLauncher::patch_turn(CommandBuffer& cb, Slice cos, Slice sin, Slice qkv, uint32_t n_rows,
                                const PatchTurnParams& p) const {
  cb.dispatch(patch_turn_, {n_rows}, {cos, sin, qkv}, p);
}

void VisionLauncher::slice_attention(CommandBuffer& cb, Slice tiles, Slice qkv, Slice out, uint32_t n_tiles,
                                     const SliceAttentionParams& p) const {
  cb.dispatch(slice_attention_, {n_tiles, p.n_heads}, {tiles, qkv, out}, p);
}

}  // namespace flashnext
