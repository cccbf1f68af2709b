// The simulated classes of Metal, where others of them look inside. State is C++ behind a pointer, since the
// runtime does not construct fields.
#pragma once

#import <Metal/Metal.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "metal/host/runtime.h"
#include "objects.h"
#include "simulated.h"

@class SimCommandBuffer, SimQueue;

@interface SimBuffer : NSObject <MTLBuffer> {
 @public
  sim::Memory* memory_;
  id device_;  // not retained
}
@end

@interface SimFence : NSObject <MTLFence>
@end

namespace sim {
struct Timeline {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t value = 0;
};
}  // namespace sim

@interface SimEvent : NSObject <MTLSharedEvent> {
 @public
  sim::Timeline* timeline_;
}
@end

namespace sim {
struct Allocations {
  std::mutex mutex;
  std::set<id> pending, resident;
};
}  // namespace sim

@interface SimResidencySet : NSObject <MTLResidencySet> {
 @public
  sim::Allocations* allocations_;
}
@end

@interface SimPipeline : NSObject <MTLComputePipelineState> {
 @public
  const msl::Kernel* kernel_;
  BOOL whole_simdgroups_;
}
@end

namespace sim {

struct Argument {  // of one slot: a buffer, bytes, or nothing
  SimBuffer* buffer = nullptr;
  size_t offset = 0;
  std::string bytes;
};
struct Dispatch {
  SimPipeline* pipeline;
  uint32_t grid[3], threads[3];
  std::vector<Argument> arguments;
};
struct Copy {
  SimBuffer *from, *to;
  size_t from_offset, to_offset, size_bytes;
};
struct Step {
  enum Kind { kDispatches, kCopies, kWait, kSignal } kind;
  std::string label;
  std::vector<Dispatch> dispatches;  // that may overlap
  std::vector<Copy> copies;
  SimEvent* event = nullptr;
  uint64_t value = 0;
};
struct Encoder {  // how one is ordered among the others
  id waits, updates;
  bool has_commands;
};
struct Recording {
  std::vector<Step> steps;
  std::vector<Encoder> encoders;
  std::vector<MTLCommandBufferHandler> handlers;
  id open = nil;  // encoder
  bool retains = true, committed = false, with_encoder_status = false;
  std::set<id> retained;
  std::mutex mutex;
  MTLCommandBufferStatus status = MTLCommandBufferStatusNotEnqueued;
  NSError* error = nullptr;
  double began = 0, ended = 0;
};

}  // namespace sim

@interface SimCommandBuffer : NSObject <MTLCommandBuffer> {
 @public
  sim::Recording* recording_;
  SimQueue* queue_;
}
@end

namespace sim {

struct Open {  // an encoder
  SimCommandBuffer* owner = nullptr;
  std::string label;
  bool ended = false, concurrent = false;
  Encoder order = {nil, nil, false};
  SimPipeline* pipeline = nullptr;
  std::vector<Argument> arguments;
  std::vector<Step> steps;
};

struct CommandBufferDescriptor {
  bool retains = true, with_encoder_status = false;
};

struct QueueState {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<SimCommandBuffer*> committed;
  std::vector<SimResidencySet*> sets;
  id device = nil;  // not retained
  id fence = nil;   // that the last encoder updated
  bool has_encoders = false, closing = false, is_orphan = false;
  std::thread thread;
};
void start(QueueState& queue);  // queue.mm
void stop(QueueState* queue);   // and frees it

}  // namespace sim

@interface SimEncoder : NSObject <MTLCommandEncoder> {
 @public
  sim::Open* open_;
}
- (void)waitForFence:(id<MTLFence>)fence;
- (void)updateFence:(id<MTLFence>)fence;
@end

@interface SimComputeEncoder : SimEncoder <MTLComputeCommandEncoder>
@end

@interface SimBlitEncoder : SimEncoder <MTLBlitCommandEncoder>
@end

@interface SimQueue : NSObject <MTLCommandQueue> {
 @public
  sim::QueueState* state_;
}
@end

namespace sim {

void enlist(SimBuffer* buffer);
// None of them is freed meanwhile.
void each_buffer(const std::function<void(SimBuffer*)>& use);
double seconds();

}  // namespace sim
