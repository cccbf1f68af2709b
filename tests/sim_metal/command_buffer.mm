// Command buffers and their errors.
#include <Block.h>
#include <objc/runtime.h>

#include "classes.h"

NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";
NSString* const MTLCommandBufferEncoderInfoErrorKey = @"MTLCommandBufferEncoderInfoErrorKey";

namespace sim {
namespace {

Recording& recording(SimCommandBuffer* buffer, const char* what, bool with_open_encoder = false) {
  Recording& r = *buffer->recording_;
  if (r.committed) misuse(std::string(what) + " behind commit");
  if (r.open && !with_open_encoder) misuse(std::string(what) + " while an encoder is open");
  return r;
}

SimEncoder* begin(const char* kind, SimCommandBuffer* owner) {
  Recording& r = recording(owner, "an encoder");
  SimEncoder* encoder = [[[objc_getClass(kind) alloc] init] autorelease];
  encoder->open_ = new Open;
  encoder->open_->owner = owner;
  r.open = encoder;
  return encoder;
}

}  // namespace
}  // namespace sim

@implementation MTLCommandBufferDescriptor
- (id)init {
  state_ = new sim::CommandBufferDescriptor;
  return self;
}
- (void)setRetainedReferences:(BOOL)retained {
  static_cast<sim::CommandBufferDescriptor*>(state_)->retains = retained;
}
- (void)setErrorOptions:(MTLCommandBufferErrorOption)options {
  static_cast<sim::CommandBufferDescriptor*>(state_)->with_encoder_status = options != 0;
}
- (void)dealloc {
  delete static_cast<sim::CommandBufferDescriptor*>(state_);
  [super dealloc];
}
@end

@implementation SimCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  auto* encoder = static_cast<SimComputeEncoder*>(sim::begin("SimComputeEncoder", self));
  encoder->open_->concurrent = type == MTLDispatchTypeConcurrent;
  return encoder;
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  return static_cast<SimBlitEncoder*>(sim::begin("SimBlitEncoder", self));
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  sim::Recording& r = sim::recording(self, "encodeWaitForEvent:");
  r.steps.push_back({sim::Step::kWait, "", {}, {}, static_cast<SimEvent*>(event), value});
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  sim::Recording& r = sim::recording(self, "encodeSignalEvent:");
  r.steps.push_back({sim::Step::kSignal, "", {}, {}, static_cast<SimEvent*>(event), value});
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block {
  sim::recording(self, "addCompletedHandler:", true).handlers.push_back(Block_copy(block));
}
- (void)commit {
  sim::Recording& r = sim::recording(self, "commit");
  sim::QueueState& queue = *queue_->state_;
  const std::lock_guard lock(queue.mutex);
  for (const sim::Encoder& e : r.encoders) {
    // Buffers that no hazard tracking looks at: only a fence orders an encoder behind those before it.
    if (e.has_commands && queue.has_encoders && (!queue.fence || e.waits != queue.fence)) {
      sim::misuse("an encoder does not wait for the fence of the one before it");
    }
    if (e.has_commands || e.updates) queue.has_encoders = true, queue.fence = e.updates;
  }
  r.committed = true;
  r.status = MTLCommandBufferStatusCommitted;
  sim::add("command buffer");
  queue.committed.push_back([self retain]);
  queue.changed.notify_all();
}
- (MTLCommandBufferStatus)status {
  const std::lock_guard lock(recording_->mutex);
  return recording_->status;
}
- (NSError*)error {
  const std::lock_guard lock(recording_->mutex);
  return recording_->error;
}
- (CFTimeInterval)GPUStartTime {
  return recording_->began;
}
- (CFTimeInterval)GPUEndTime {
  return recording_->ended;
}
- (void)dealloc {
  if (recording_->open) sim::note("a command buffer is freed with an open encoder");
  for (id object : recording_->retained) [object release];
  for (MTLCommandBufferHandler handler : recording_->handlers) Block_release(handler);
  [recording_->error release];
  delete recording_;
  [queue_ release];
  [super dealloc];
}
@end
