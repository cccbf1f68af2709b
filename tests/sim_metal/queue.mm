// The queue: a thread that runs committed command buffers on the shim, one after the other.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "classes.h"

@interface SimEncoderInfo : NSObject <MTLCommandBufferEncoderInfo> {
 @public
  std::string* label_;
}
@end

@implementation SimEncoderInfo
- (NSString*)label {
  return [NSString stringWithUTF8String:label_->c_str()];
}
- (MTLCommandEncoderErrorState)errorState {
  return MTLCommandEncoderErrorStateFaulted;
}
- (void)dealloc {
  delete label_;
  [super dealloc];
}
@end

namespace sim {
namespace {

struct Fault {
  int code = 0;
  std::string words, label;
};

msl::Schedule schedule_of(const std::string& order) {
  if (order.starts_with("random")) return msl::Schedule::kRandom;
  return order.starts_with("reverse") ? msl::Schedule::kReverse : msl::Schedule::kForward;
}

// What the GPU may touch: buffers that are bound, and those of sets that belonged to the queue at the commit.
void show_resident(QueueState& queue, const Recording& r) {
  std::set<id> resident;
  {
    const std::lock_guard lock(queue.mutex);
    for (SimResidencySet* set : queue.sets) {
      const std::lock_guard inner(set->allocations_->mutex);
      resident.insert(set->allocations_->resident.begin(), set->allocations_->resident.end());
    }
  }
  for (const Step& s : r.steps) {
    for (const Dispatch& d : s.dispatches) {
      for (const Argument& a : d.arguments) resident.insert(a.buffer);
    }
    for (const Copy& c : s.copies) resident.insert({c.from, c.to});
  }
  // Another device's queue has another thread, and memory of its own.
  each_buffer([&](SimBuffer* buffer) {
    if (buffer->device_ == queue.device) hide(buffer->memory_, !resident.contains(buffer));
  });
}

void require_live(id object, const char* what) {
  if (object && !is_live(object))
    misuse(std::string(what) + " is freed before the command buffer that uses it has run");
}

Fault run_dispatches(const Step& step) {
  const Settings now = settings();
  static uint64_t n_run = 0;
  std::vector<std::vector<msl::Bytes>> bound(step.dispatches.size());
  std::vector<msl::Dispatch> all;
  for (size_t i = 0; i < step.dispatches.size(); ++i) {
    const Dispatch& d = step.dispatches[i];
    require_live(d.pipeline, "a pipeline");
    for (const Argument& a : d.arguments) {
      require_live(a.buffer, "a buffer");
      bound[i].push_back(a.buffer          ? msl::Bytes{a.buffer->memory_->gpu + a.offset, 0}
                         : a.bytes.empty() ? msl::Bytes{}
                                           : msl::Bytes{a.bytes.data(), a.bytes.size()});
    }
    all.push_back({d.pipeline->kernel_,
                   {d.grid[0], d.grid[1], d.grid[2]},
                   {d.threads[0], d.threads[1], d.threads[2]},
                   bound[i],
                   {}});
  }
  const int threads = std::max(1u, std::thread::hardware_concurrency());
  const msl::Failure failure = msl::run(all, schedule_of(now.order), now.seed + ++n_run, threads);
  if (failure.what.empty()) return {};
  note(failure.what);
  return {MTLCommandBufferErrorPageFault, failure.what, step.label};
}

Fault run_step(const Step& step) {
  switch (step.kind) {
    case Step::kDispatches: return step.dispatches.empty() ? Fault() : run_dispatches(step);
    case Step::kCopies:
      for (const Copy& c : step.copies) {
        require_live(c.from, "a buffer");
        require_live(c.to, "a buffer");
        std::memmove(c.to->memory_->gpu + c.to_offset, c.from->memory_->gpu + c.from_offset, c.size_bytes);
      }
      return {};
    case Step::kWait:
      require_live(step.event, "an event");
      if ([step.event waitUntilSignaledValue:step.value timeoutMS:settings().wait_ms]) return {};
      note("a command buffer waits for the value " + std::to_string(step.value) + ", which nobody signals");
      return {MTLCommandBufferErrorTimeout, "Caused GPU Timeout Error", ""};
    case Step::kSignal:
      require_live(step.event, "an event");
      [step.event setSignaledValue:step.value];
      return {};
  }
  return {};
}

NSError* error_of(const Fault& fault, bool with_encoder_status) {
  NSDictionary* info = nil;
  if (with_encoder_status && !fault.label.empty()) {
    SimEncoderInfo* encoder = [[[SimEncoderInfo alloc] init] autorelease];
    encoder->label_ = new std::string(fault.label);
    SimPair* pair = [[[SimPair alloc] init] autorelease];
    const id objects[] = {encoder};
    pair->key_ = MTLCommandBufferEncoderInfoErrorKey;
    pair->value_ = [[NSArray arrayWithObjects:objects count:1] retain];
    info = pair;
  }
  return [error(MTLCommandBufferErrorDomain, fault.code, fault.words, info) retain];
}

void run(QueueState& queue, SimCommandBuffer* buffer) {
  NSAutoreleasePool* pool = [[NSAutoreleasePool alloc] init];
  Recording& r = *buffer->recording_;
  const double began = seconds();
  Fault fault;
  // Beats of an idle device have no steps, and no part in what is planted.
  if (r.steps.empty() || !planted_failure(&fault.code, &fault.words)) {
    show_resident(queue, r);
    try {
      for (const Step& s : r.steps) {
        fault = run_step(s);
        if (fault.code) break;
      }
    } catch (const Misuse& m) {
      fault = {MTLCommandBufferErrorInvalidResource, m.what(), ""};
    }
  }
  {
    const std::lock_guard lock(r.mutex);
    r.began = began;
    r.ended = seconds();
    r.status = fault.code ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    if (fault.code) r.error = error_of(fault, r.with_encoder_status);
  }
  for (MTLCommandBufferHandler handler : r.handlers) handler(buffer);
  [buffer release];
  [pool drain];
}

void serve(QueueState& queue) {
  for (;;) {
    SimCommandBuffer* next;
    {
      std::unique_lock lock(queue.mutex);
      queue.changed.wait(lock, [&] { return queue.closing || !queue.committed.empty(); });
      if (queue.committed.empty()) break;
      next = queue.committed.front();
      queue.committed.pop_front();
    }
    run(queue, next);
  }
  if (queue.is_orphan) delete &queue;
}

}  // namespace

void start(QueueState& queue) {
  queue.thread = std::thread([&queue] { serve(queue); });
}

void stop(QueueState* queue) {
  {
    const std::lock_guard lock(queue->mutex);
    queue->closing = true;
  }
  queue->changed.notify_all();
  if (queue->thread.get_id() == std::this_thread::get_id()) {
    queue->thread.detach();  // the last reference went with its last command buffer: serve() frees it
    queue->is_orphan = true;
  } else {
    queue->thread.join();
    delete queue;
  }
}

}  // namespace sim
