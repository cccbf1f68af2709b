// The device and its command queues.
#include <unistd.h>

#include "library.h"

@interface SimDevice : NSObject <MTLDevice>
@end

@implementation SimQueue
- (id<MTLCommandBuffer>)commandBufferWithDescriptor:(MTLCommandBufferDescriptor*)descriptor {
  const auto& given = *static_cast<sim::CommandBufferDescriptor*>(descriptor->state_);
  SimCommandBuffer* buffer = [[[SimCommandBuffer alloc] init] autorelease];
  buffer->recording_ = new sim::Recording;
  buffer->recording_->retains = given.retains;
  buffer->recording_->with_encoder_status = given.with_encoder_status;
  buffer->queue_ = [self retain];
  return buffer;
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
  const std::lock_guard lock(state_->mutex);
  if (state_->sets.size() == 32) sim::misuse("a queue has more than 32 residency sets");
  state_->sets.push_back(static_cast<SimResidencySet*>([set retain]));
}
- (void)removeResidencySet:(id<MTLResidencySet>)set {
  {
    const std::lock_guard lock(state_->mutex);
    if (!std::erase(state_->sets, static_cast<SimResidencySet*>(set))) {
      sim::misuse("a residency set is removed from a queue that does not have it");
    }
  }
  [set release];
}
- (void)dealloc {
  for (SimResidencySet* set : state_->sets) [set release];
  sim::stop(state_);
  [super dealloc];
}
@end

@implementation SimDevice
- (NSString*)name {
  return [NSString stringWithUTF8String:sim::settings().gpu.c_str()];
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return family == MTLGPUFamilyMetal3 || sim::settings().is_apple_silicon;
}
- (BOOL)hasUnifiedMemory {
  return sim::settings().is_apple_silicon;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return sim::settings().working_set_bytes;
}
- (NSUInteger)maxBufferLength {
  return sim::settings().max_buffer_bytes;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  if (length == 0 || length > [self maxBufferLength]) {
    sim::misuse("newBufferWithLength: of " + std::to_string(length) + " bytes, where 1 to " +
                std::to_string([self maxBufferLength]) + " are allowed");
  }
  (void)options;
  sim::Memory* memory = sim::allocate(length);
  if (!memory) return nil;
  SimBuffer* buffer = [[SimBuffer alloc] init];
  buffer->memory_ = memory;
  buffer->device_ = self;
  sim::enlist(buffer);
  return buffer;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(MTLBufferDeallocator)deallocator {
  const auto page = static_cast<NSUInteger>(getpagesize());
  if (reinterpret_cast<uintptr_t>(pointer) % page || length % page || length == 0) {
    sim::misuse("newBufferWithBytesNoCopy: of what is no whole pages");
  }
  if (deallocator) sim::misuse("newBufferWithBytesNoCopy: with a deallocator, which is not simulated");
  (void)options;
  SimBuffer* buffer = [[SimBuffer alloc] init];
  buffer->memory_ = sim::alias(pointer, length);
  buffer->device_ = self;
  sim::enlist(buffer);
  return buffer;
}
- (id<MTLCommandQueue>)newCommandQueue {
  SimQueue* queue = [[SimQueue alloc] init];
  queue->state_ = new sim::QueueState;
  queue->state_->device = self;
  sim::start(*queue->state_);
  return queue;
}
- (id<MTLFence>)newFence {
  return [[SimFence alloc] init];
}
- (id<MTLSharedEvent>)newSharedEvent {
  SimEvent* event = [[SimEvent alloc] init];
  event->timeline_ = new sim::Timeline;
  return event;
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor
                                               error:(NSError**)error {
  (void)descriptor, (void)error;
  SimResidencySet* set = [[SimResidencySet alloc] init];
  set->allocations_ = new sim::Allocations;
  sim::add("residency set");
  return set;
}
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error {
  (void)url;
  sim::fail(error, "a compiled library is nothing that the simulation can read");
  return nil;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                               options:(MTLCompileOptions*)options
                                 error:(NSError**)error {
  return [SimLibrary fromText:source options:options error:error];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:
                                                              (MTLComputePipelineReflection**)reflection
                                                               error:(NSError**)error {
  (void)options, (void)reflection;
  return [SimPipeline of:descriptor error:error];
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor
                                                 error:(NSError**)error {
  return [SimArchive of:descriptor error:error];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  return sim::settings().has_gpu ? [[SimDevice alloc] init] : nil;
}
