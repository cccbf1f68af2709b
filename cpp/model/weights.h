// The tensors of a checkpoint as the device uses them: mapped files, and small vectors turned into float32.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/launch.h"

namespace flashnext {

// Where one tensor lies (TensorView of checkpoint/views.py).
struct TensorView {
  int file = 0;
  uint64_t offset = 0;
  std::string dtype;  // "BF16", "F32", "U32", "I64"
  std::vector<int64_t> shape;
  uint64_t batch_stride = 0;  // bytes between entries of the first axis, 0: dense
};

// Takes tensors out of a checkpoint by canonical name, checking each shape once more. Owns the mapped files.
class Weights {
 public:
  Weights(DeviceRef device, const std::vector<std::string>& files, std::map<std::string, TensorView> tensors,
          bool zero_centred);

  // `module` as in the checkpoint, without ".weight". n_batch 0: a plain matrix. streamed: a few of its rows
  // are read at a time, and it need not be in memory.
  StoredMatrix matrix(const std::string& module, int64_t n_out, int64_t n_in, int64_t n_batch = 0,
                      bool streamed = false);
  // A vector of n values as float32; gamma = 1 + w for a zero-centred norm when `norm`.
  BufferRef vector(const std::string& name, int64_t n, bool norm);
  // Depthwise taps, stored [channels, n_taps] in any of the checkpoint's shapes, as float32 [n_taps,
  // channels].
  BufferRef taps(const std::string& name, int64_t channels, int64_t n_taps);
  // The kernel of the vision tower's patches, stored [n_out, channels, time, side, side] or with channels
  // last, as a plain matrix [n_out, channels * time * side * side] of that order.
  StoredMatrix patch_kernel(const std::string& name, int64_t n_out, int64_t channels, int64_t time,
                            int64_t side);
  // A single value stored as a tensor, or `otherwise` where there is none.
  float scalar(const std::string& name, float otherwise) const;
  bool has(const std::string& name) const { return tensors_.contains(name); }

  size_t mapped_bytes() const { return mapped_bytes_; }      // tensors used where they lie
  size_t streamed_bytes() const { return streamed_bytes_; }  // those of them that need not be in memory
  size_t copied_bytes() const { return copied_bytes_; }  // tensors copied: float vectors and misaligned ones

 private:
  const TensorView& find(const std::string& name) const;
  const std::byte* bytes(const TensorView& view, const std::string& name, size_t size_bytes) const;
  // From the tensor's first byte to its last; n_own of them are not another tensor's.
  Slice place(const TensorView& view, const std::string& name, size_t size_bytes, size_t n_own,
              bool streamed);
  std::vector<float> floats(const std::string& name, int64_t n) const;
  BufferRef keep(const std::vector<float>& values);

  DeviceRef device_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;
  std::vector<BufferRef> files_, copies_;
  std::map<std::string, TensorView> tensors_;
  bool zero_centred_;
  size_t mapped_bytes_ = 0, streamed_bytes_ = 0, copied_bytes_ = 0;
};

}  // namespace flashnext
