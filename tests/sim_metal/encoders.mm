// Encoders: what they record, and what Metal would not let them.
#include "classes.h"

namespace sim {
namespace {

constexpr size_t kMostBytes = 4096;  // of setBytes

}  // namespace

// The encoder's state, unless it has ended.
static Open& open(SimEncoder* encoder, const char* what) {
  if (encoder->open_->ended) misuse(std::string(what) + " behind endEncoding");
  return *encoder->open_;
}

static Step& segment(Open& o, Step::Kind kind) {
  if (o.steps.empty() || o.steps.back().kind != kind) o.steps.push_back({kind, o.label, {}, {}});
  return o.steps.back();
}

static void keep(Open& o, id object) {
  Recording& r = *o.owner->recording_;
  if (r.retains && object && r.retained.insert(object).second) [object retain];
}

}  // namespace sim

@implementation SimEncoder
- (void)setLabel:(NSString*)label {
  sim::open(self, "setLabel:").label = [label UTF8String];
}
- (void)waitForFence:(id<MTLFence>)fence {
  sim::Open& o = sim::open(self, "waitForFence:");
  if (!sim::is_live(fence)) sim::misuse("waitForFence: of a freed fence");
  if (o.order.has_commands) sim::misuse("waitForFence: behind commands");
  o.order.waits = fence;
}
- (void)updateFence:(id<MTLFence>)fence {
  if (!sim::is_live(fence)) sim::misuse("updateFence: of a freed fence");
  sim::open(self, "updateFence:").order.updates = fence;
}
- (void)endEncoding {
  sim::Open& o = sim::open(self, "endEncoding");
  o.ended = true;
  sim::Recording& r = *o.owner->recording_;
  for (sim::Step& s : o.steps) {
    s.label = o.label;
    r.steps.push_back(std::move(s));
  }
  r.encoders.push_back(o.order);
  r.open = nil;
}
- (void)dealloc {
  if (!open_->ended) sim::note("an encoder is freed without endEncoding");
  delete open_;
  [super dealloc];
}
@end

@implementation SimComputeEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  sim::Open& o = sim::open(self, "setComputePipelineState:");
  if (!sim::is_live(state)) sim::misuse("setComputePipelineState: of a freed pipeline");
  o.pipeline = static_cast<SimPipeline*>(state);
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  sim::Open& o = sim::open(self, "setBuffer:");
  if (index >= msl::kMaxBuffers) sim::misuse("setBuffer: at index " + std::to_string(index));
  if (buffer && !sim::is_live(buffer)) sim::misuse("setBuffer: of a freed buffer");
  if (buffer && offset > [buffer length]) sim::misuse("setBuffer: at an offset behind its end");
  sim::keep(o, buffer);
  if (o.arguments.size() <= index) o.arguments.resize(index + 1);
  o.arguments[index] = {static_cast<SimBuffer*>(buffer), offset, ""};
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  sim::Open& o = sim::open(self, "setBytes:");
  if (index >= msl::kMaxBuffers) sim::misuse("setBytes: at index " + std::to_string(index));
  if (length == 0 || length > sim::kMostBytes) {
    sim::misuse("setBytes: of " + std::to_string(length) + " bytes, where 1 to 4096 are allowed");
  }
  if (o.arguments.size() <= index) o.arguments.resize(index + 1);
  o.arguments[index] = {nullptr, 0, std::string(static_cast<const char*>(bytes), length)};
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  sim::Open& o = sim::open(self, "dispatchThreadgroups:");
  if (!o.pipeline) sim::misuse("dispatchThreadgroups: without a pipeline");
  if (!groups.width || !groups.height || !groups.depth)
    sim::misuse("dispatchThreadgroups: over an empty grid");
  const NSUInteger n = threads.width * threads.height * threads.depth,
                   most = [o.pipeline maxTotalThreadsPerThreadgroup];
  if (n == 0 || n > most) {
    sim::misuse("dispatchThreadgroups: of " + std::to_string(n) + " threads, where the pipeline runs 1 to " +
                std::to_string(most));
  }
  if (o.pipeline->whole_simdgroups_ && n % 32)
    sim::misuse("dispatchThreadgroups: of threads that are no whole simdgroups");
  o.order.has_commands = true;
  const auto u = [](NSUInteger x) { return static_cast<uint32_t>(x); };
  sim::Dispatch d = {o.pipeline,
                     {u(groups.width), u(groups.height), u(groups.depth)},
                     {u(threads.width), u(threads.height), u(threads.depth)},
                     o.arguments};
  if (!o.concurrent) [self memoryBarrierWithScope:MTLBarrierScopeBuffers];
  sim::segment(o, sim::Step::kDispatches).dispatches.push_back(std::move(d));
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  sim::Open& o = sim::open(self, "memoryBarrierWithScope:");
  if (scope & MTLBarrierScopeBuffers) o.steps.push_back({sim::Step::kDispatches, o.label, {}, {}});
}
@end

@implementation SimBlitEncoder
- (void)copyFromBuffer:(id<MTLBuffer>)from
          sourceOffset:(NSUInteger)from_offset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)to_offset
                  size:(NSUInteger)size {
  sim::Open& o = sim::open(self, "copyFromBuffer:");
  for (id<MTLBuffer> buffer : {from, to}) {
    if (!sim::is_live(buffer)) sim::misuse("copyFromBuffer: of a freed buffer");
    const NSUInteger offset = buffer == from ? from_offset : to_offset;
    if (size > [buffer length] || offset > [buffer length] - size) {
      sim::misuse("copyFromBuffer: of bytes behind the end of a buffer");
    }
    sim::keep(o, buffer);
  }
  if (from_offset % 4 || to_offset % 4 || size % 4)
    sim::misuse("copyFromBuffer: of what is no multiple of 4 bytes");
  o.order.has_commands = true;
  sim::segment(o, sim::Step::kCopies)
      .copies.push_back(
          {static_cast<SimBuffer*>(from), static_cast<SimBuffer*>(to), from_offset, to_offset, size});
}
@end
