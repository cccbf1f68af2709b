// The kernels of a Metal device: libraries of their texts, and pipelines, which are kept from one start to
// the next.
#pragma once

#import <Metal/Metal.h>

#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "device/metal/handle.h"
#include "device/metal/metal_device.h"

namespace flashnext::mtl {

class MetalKernel final : public Kernel {
 public:
  MetalKernel(KernelEntry entry, Owned<id<MTLComputePipelineState>> pipeline)
      : entry_(std::move(entry)), pipeline_(std::move(pipeline)) {}
  std::string_view name() const override { return entry_.name; }
  uint32_t tile() const override { return entry_.tile; }
  uint32_t rows() const override { return entry_.rows; }
  uint32_t threads() const { return entry_.threads; }
  uint32_t slots() const { return entry_.slots; }
  id<MTLComputePipelineState> pipeline() const { return pipeline_.get(); }

 private:
  KernelEntry entry_;
  Owned<id<MTLComputePipelineState>> pipeline_;
};

// Throws DeviceError naming the kernel or the file, with Metal's words. `system` is what compiled pipelines
// depend on beside the texts: the GPU and the system's build.
std::vector<MetalKernel> load_kernels(id<MTLDevice> device, const std::vector<KernelEntry>& entries,
                                      const Options& options, const std::string& system);

}  // namespace flashnext::mtl
