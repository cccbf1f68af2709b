#include "device/metal/metal_device.h"

#import <Metal/Metal.h>

#include <filesystem>

#include "base/error.h"
#include "device/host/program.h"
#include "device/metal/buffers.h"
#include "device/metal/commands.h"
#include "device/metal/library.h"
#include "device/metal/queue.h"
#include "device/metal/system.h"

namespace flashnext::mtl {
namespace {

std::string lacks(id<MTLDevice> device) {
  if (!device) return "this machine has no GPU that Metal drives";
  // M1 and later: 32-lane simdgroups, 32 KB of threadgroup memory, addresses of buffers, residency sets.
  if ([device supportsFamily:MTLGPUFamilyApple7] && [device supportsFamily:MTLGPUFamilyMetal3] &&
      [device hasUnifiedMemory]) {
    return "";
  }
  return "the GPU " + text([device name]) + " is none of Apple Silicon";
}

class MetalDevice final : public Device {
 public:
  MetalDevice(id<MTLDevice> device, const std::vector<KernelEntry>& entries, const Options& options)
      : gpu_(text([device name])),
        system_(gpu_ + ", macOS " + os_build()),
        queue_(std::make_shared<Queue>(device, options.idle)) {
    for (MetalKernel& k : load_kernels(device, entries, options, system_)) kernels_.add(std::move(k));
    limits_.working_set_bytes = [device recommendedMaxWorkingSetSize];
    limits_.max_buffer_bytes = [device maxBufferLength];
    limits_.prompt_equals_window = true;  // one kernel for rows of both classes, so far
  }
  // Returns when all that was committed has run.
  ~MetalDevice() override { queue_->drain(); }

  std::string name() const override { return "metal (" + gpu_ + ")"; }
  // The system's compiler and driver are part of a kernel.
  std::string identity() const override { return "metal, " + system_; }
  const Limits& limits() const override { return limits_; }
  uint64_t busy_ns() const override { return queue_->busy_ns(); }
  MemoryState memory() const { return {footprint_bytes(), watch_.pressure()}; }
  BufferRef allocate(size_t size_bytes) override {
    return mtl::allocate(queue_->device(), queue_->residency(), size_bytes);
  }
  BufferRef wrap(std::shared_ptr<const MappedFile> file) override {
    return mtl::wrap(queue_->device(), queue_->residency(), std::move(file));
  }
  const Kernel& kernel(std::string_view name) const override { return kernels_.find(*this, name); }
  std::vector<std::string> kernel_names() const override { return kernels_.names(); }
  std::unique_ptr<CommandBuffer> command_buffer() override { return mtl::command_buffer(queue_); }
  EventRef event() override { return std::make_shared<MetalEvent>(queue_->device()); }
  std::unique_ptr<ResidencySet> residency_set() override { return mtl::residency_set(queue_->residency()); }

 private:
  std::string gpu_, system_;
  std::shared_ptr<Queue> queue_;
  PressureWatch watch_;
  host::Kernels<MetalKernel> kernels_;
  Limits limits_;
};

Owned<id<MTLDevice>> system_device() { return Owned<id<MTLDevice>>::adopt(MTLCreateSystemDefaultDevice()); }

}  // namespace

MemoryState memory_of(const Device& device) {
  const auto* metal = dynamic_cast<const MetalDevice*>(&device);
  return metal ? metal->memory() : MemoryState();
}

std::string unavailable() {
  const Pool pool;
  return lacks(system_device().get());
}

DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options) {
  const Pool pool;
  const auto device = system_device();
  if (const std::string why = lacks(device.get()); !why.empty()) throw InvalidArgument("metal: " + why);
  return std::make_shared<MetalDevice>(device.get(), kernels, options);
}

}  // namespace flashnext::mtl
