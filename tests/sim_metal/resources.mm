// Buffers, fences, events and residency sets.
#include <chrono>

#include "classes.h"

namespace sim {
namespace {

std::mutex mutex;
std::set<SimBuffer*> buffers;

}  // namespace

void each_buffer(const std::function<void(SimBuffer*)>& use) {
  const std::lock_guard lock(mutex);
  for (SimBuffer* buffer : buffers) use(buffer);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void enlist(SimBuffer* buffer) {
  const std::lock_guard lock(mutex);
  buffers.insert(buffer);
}

}  // namespace sim

@implementation SimBuffer
- (NSUInteger)length {
  return memory_->size_bytes;
}
- (NSUInteger)allocatedSize {
  return memory_->mapped_bytes;
}
- (void*)contents {
  return memory_->host;
}
- (uint64_t)gpuAddress {
  return reinterpret_cast<uint64_t>(memory_->gpu);
}
- (void)dealloc {
  {
    const std::lock_guard lock(sim::mutex);
    sim::buffers.erase(self);
  }
  sim::release(memory_);
  [super dealloc];
}
@end

@implementation SimFence
@end

@implementation SimEvent
- (uint64_t)signaledValue {
  const std::lock_guard lock(timeline_->mutex);
  return timeline_->value;
}
- (void)setSignaledValue:(uint64_t)value {
  {
    const std::lock_guard lock(timeline_->mutex);
    if (value < timeline_->value)
      sim::note("an event goes back from " + std::to_string(timeline_->value) + " to " +
                std::to_string(value));
    timeline_->value = value;
  }
  timeline_->changed.notify_all();
}
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds {
  std::unique_lock lock(timeline_->mutex);
  return timeline_->changed.wait_for(lock, std::chrono::milliseconds(milliseconds),
                                     [&] { return timeline_->value >= value; });
}
- (void)dealloc {
  delete timeline_;
  [super dealloc];
}
@end

@implementation MTLResidencySetDescriptor
@end

@implementation SimResidencySet
- (void)addAllocation:(id<MTLAllocation>)allocation {
  const std::lock_guard lock(allocations_->mutex);
  if (!sim::is_live(allocation)) sim::misuse("a freed buffer is added to a residency set");
  if (!allocations_->pending.insert(allocation).second)
    sim::misuse("a buffer is added to a residency set twice");
  [allocation retain];
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
  const std::lock_guard lock(allocations_->mutex);
  if (!allocations_->pending.erase(allocation))
    sim::misuse("a buffer is removed from a residency set that it is not in");
  if (!allocations_->resident.contains(allocation)) [allocation release];
}
- (void)commit {
  const std::lock_guard lock(allocations_->mutex);
  for (id old : allocations_->resident) {
    if (!allocations_->pending.contains(old)) [old release];
  }
  allocations_->resident = allocations_->pending;
}
- (void)requestResidency {
  sim::add("residency request");
}
- (void)dealloc {
  sim::add("residency set", -1);
  std::set<id> all = allocations_->pending;
  all.insert(allocations_->resident.begin(), allocations_->resident.end());
  for (id buffer : all) [buffer release];
  delete allocations_;
  [super dealloc];
}
@end
