// A device, a queue and a kernel, as somebody would use Metal who may do it wrong.
#pragma once

#import <Metal/Metal.h>

#include <initializer_list>
#include <vector>

#include "claims.h"
#include "device/metal/handle.h"
#include "metal/params.h"

namespace flashnext::test {

using mtl::Owned;

class Bench {
 public:
  static constexpr uint32_t kWidth = 8, kRows = 4;
  static constexpr MTLResourceOptions kUntracked = MTLResourceHazardTrackingModeUntracked;

  mtl::Pool pool;
  Owned<id<MTLDevice>> device;
  Owned<id<MTLCommandQueue>> queue;
  Owned<id<MTLFence>> fence;
  Owned<id<MTLComputePipelineState>> copy_rows, copy_drafts;
  Owned<id<MTLBuffer>> counts, map, a, b, c;

  Bench();
  Owned<id<MTLBuffer>> buffer(size_t size_bytes);
  Owned<id<MTLCommandBuffer>> command_buffer();
  // Open, behind the fence.
  Owned<id<MTLComputeCommandEncoder>> encoder(id<MTLCommandBuffer> buffer);
  // Rows of `from` to `to`.
  void encode_copy(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> from, id<MTLBuffer> to);
  // copy_drafts of one reply, whose state lies at this address.
  void encode_drafts(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> table, uint64_t reply);
  void end(id<MTLComputeCommandEncoder> encoder);
  // Commits, and returns the status it ends with.
  MTLCommandBufferStatus run(id<MTLCommandBuffer> buffer);
  // A command buffer with one copy from a to b, not yet ended.
  std::pair<Owned<id<MTLCommandBuffer>>, Owned<id<MTLComputeCommandEncoder>>> begun();
};

}  // namespace flashnext::test
