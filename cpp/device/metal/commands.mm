#include "device/metal/commands.h"

#include "base/error.h"
#include "device/metal/buffers.h"
#include "device/metal/library.h"

namespace flashnext::mtl {
namespace {

// Dispatches go to a concurrent encoder, where barriers are commands; a change of the part, an event or
// copies begin another encoder, behind a fence. Copies go behind the dispatches of their segment, all in one
// blit encoder.
class Commands final : public CommandBuffer {
 public:
  explicit Commands(std::shared_ptr<Queue> queue)
      : queue_(std::move(queue)), buffer_(queue_->command_buffer()) {}
  ~Commands() override {
    const Pool pool;
    end_encoder();  // Metal does not let go of an open one
  }

  using CommandBuffer::dispatch;
  void dispatch(const Kernel& kernel, Grid grid, std::span<const Slice> slots,
                std::span<const std::byte> params) override {
    require_open();
    if (uint64_t{grid.x} * grid.y * grid.z == 0) return;
    const auto& k = static_cast<const MetalKernel&>(kernel);
    if (slots.size() < k.slots()) {
      throw InvalidArgument(std::string(k.name()) + ": " + std::to_string(slots.size()) +
                            " slots, expected " + std::to_string(k.slots()));
    }
    const Pool pool;
    id<MTLComputeCommandEncoder> encoder = compute_encoder();
    if (last_ != &k) [encoder setComputePipelineState:k.pipeline()];
    last_ = &k;
    // What is behind the kernel's own slots it reaches by address.
    for (uint32_t i = 0; i < k.slots(); ++i) {
      const Slice& s = slots[i];
      [encoder setBuffer:s ? object_of(*s.buffer) : nil offset:s.offset atIndex:i];
    }
    if (!params.empty()) [encoder setBytes:params.data() length:params.size() atIndex:k.slots()];
    [encoder dispatchThreadgroups:MTLSizeMake(grid.x, grid.y, grid.z)
            threadsPerThreadgroup:MTLSizeMake(k.threads(), 1, 1)];
    n_dispatched_++;
    ends_with_signal_ = false;
  }

  void copy(const Slice& from, const Slice& to, size_t size_bytes) override {
    require_open();
    if (size_bytes > 0) copies_.push_back({from, to, size_bytes});
  }

  void barrier() override {
    require_open();
    {
      const Pool pool;
      flush_copies();
    }
    needs_barrier_ |= n_dispatched_ > 0;
  }

  void wait(const EventRef& event, uint64_t value) override {
    require_open();
    auto shared = std::static_pointer_cast<MetalEvent>(event);
    {
      const Pool pool;
      flush_copies();
      end_encoder();
      [buffer_.get() encodeWaitForEvent:shared->object() value:value];
    }
    ends_with_signal_ = false;
    committed_.waits.emplace_back(std::move(shared), value);
  }

  void signal(const EventRef& event, uint64_t value) override {
    require_open();
    auto shared = std::static_pointer_cast<MetalEvent>(event);
    {
      const Pool pool;
      flush_copies();
      end_encoder();
      [buffer_.get() encodeSignalEvent:shared->object() value:value];
    }
    if (!ends_with_signal_) n_signals_before_end_ = committed_.signals.size();
    ends_with_signal_ = true;
    committed_.signals.emplace_back(std::move(shared), value);
  }

  void commit() override {
    if (!buffer_) throw Error("command buffer: committed twice");
    const Pool pool;
    flush_copies();
    end_encoder();
    const size_t first = ends_with_signal_ ? n_signals_before_end_ : committed_.signals.size();
    for (size_t i = first; i < committed_.signals.size(); ++i) {
      committed_.signals[i].first->expect(committed_.signals[i].second);
    }
    const auto buffer = std::move(buffer_);
    queue_->commit(buffer.get(), std::move(committed_));
  }

  void part(const char* name) override {
    require_open();
    if (name == part_) return;
    barrier();
    {
      const Pool pool;
      end_encoder();
    }
    part_ = name;
  }

 private:
  struct Copy {
    Slice from, to;
    size_t size_bytes;
  };

  void require_open() const {
    if (!buffer_) throw Error("command buffer: used after its commit");
  }

  id<MTLComputeCommandEncoder> compute_encoder() {
    if (!encoder_) {
      encoder_ = Owned<id<MTLComputeCommandEncoder>>::retain(
          [buffer_.get() computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent]);
      if (!encoder_) throw DeviceError("metal: the command buffer gives no encoder");
      if (part_) [encoder_.get() setLabel:ns(part_)];
      [encoder_.get() waitForFence:queue_->fence()];
      n_dispatched_ = 0;
      needs_barrier_ = false;
      last_ = nullptr;
    }
    if (needs_barrier_) [encoder_.get() memoryBarrierWithScope:MTLBarrierScopeBuffers];
    needs_barrier_ = false;
    return encoder_.get();
  }

  void end_encoder() {
    if (!encoder_) return;
    [encoder_.get() updateFence:queue_->fence()];
    [encoder_.get() endEncoding];
    encoder_.reset();
  }

  void flush_copies() {
    if (copies_.empty()) return;
    end_encoder();
    id<MTLBlitCommandEncoder> encoder = [buffer_.get() blitCommandEncoder];
    if (!encoder) throw DeviceError("metal: the command buffer gives no encoder");
    if (part_) [encoder setLabel:ns(part_)];
    [encoder waitForFence:queue_->fence()];
    for (const Copy& c : copies_) {
      [encoder copyFromBuffer:object_of(*c.from.buffer)
                 sourceOffset:c.from.offset
                     toBuffer:object_of(*c.to.buffer)
            destinationOffset:c.to.offset
                         size:c.size_bytes];
    }
    [encoder updateFence:queue_->fence()];
    [encoder endEncoding];
    copies_.clear();
    ends_with_signal_ = false;
  }

  std::shared_ptr<Queue> queue_;
  Owned<id<MTLCommandBuffer>> buffer_;
  Owned<id<MTLComputeCommandEncoder>> encoder_;
  Committed committed_;
  std::vector<Copy> copies_;  // of this segment
  const MetalKernel* last_ = nullptr;
  const char* part_ = nullptr;
  size_t n_dispatched_ = 0;     // by this encoder
  bool needs_barrier_ = false;  // before its next dispatch
  bool ends_with_signal_ = false;
  size_t n_signals_before_end_ = 0;
};

}  // namespace

std::unique_ptr<CommandBuffer> command_buffer(std::shared_ptr<Queue> queue) {
  return std::make_unique<Commands>(std::move(queue));
}

}  // namespace flashnext::mtl
