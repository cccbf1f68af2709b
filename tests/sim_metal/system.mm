// Activities, memory pressure, and what is held against the process.
#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>
#include <mach/mach.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <Block.h>

#include "simulated.h"

@implementation NSProcessInfo
+ (NSProcessInfo*)processInfo {
  return [[[NSProcessInfo alloc] init] autorelease];
}
- (NSString*)operatingSystemVersionString {
  return [NSString stringWithUTF8String:sim::settings().system.c_str()];
}
- (id<NSObject>)beginActivityWithOptions:(NSActivityOptions)options reason:(NSString*)reason {
  if (!options || !reason) sim::misuse("an activity has no options or no reason");
  sim::add("activity");
  return [[[NSObject alloc] init] autorelease];
}
- (void)endActivity:(id<NSObject>)activity {
  if (!sim::is_live(activity)) sim::misuse("an activity that is not on is ended");
  sim::add("activity", -1);
}
@end

const struct dispatch_source_type_s {
} _dispatch_source_type_memorypressure;

struct dispatch_source_s {
  dispatch_block_t handler = nullptr;
  unsigned long mask = 0, data = 0;
  bool active = false, cancelled = false;
};

namespace sim {
namespace {

std::mutex mutex;
std::vector<dispatch_source_t> sources;

}  // namespace

void press(unsigned long level) {
  const std::lock_guard lock(mutex);
  for (dispatch_source_t s : sources) {
    if (!s->active || s->cancelled || !(s->mask & level)) continue;
    s->data = level;
    s->handler();
  }
}

}  // namespace sim

dispatch_queue_t dispatch_get_global_queue(long, unsigned long) { return nullptr; }
dispatch_source_t dispatch_source_create(dispatch_source_type_t type, uintptr_t, unsigned long mask,
                                         dispatch_queue_t) {
  if (type != DISPATCH_SOURCE_TYPE_MEMORYPRESSURE) sim::misuse("a source of another type");
  const std::lock_guard lock(sim::mutex);
  sim::sources.push_back(new dispatch_source_s{nullptr, mask});
  sim::add("source");
  return sim::sources.back();
}
void dispatch_source_set_event_handler(dispatch_source_t s, dispatch_block_t handler) {
  s->handler = Block_copy(handler);
}
unsigned long dispatch_source_get_data(dispatch_source_t s) { return s->data; }
void dispatch_activate(dispatch_source_t s) { s->active = true; }
void dispatch_source_cancel(dispatch_source_t s) { s->cancelled = true; }
void dispatch_release(dispatch_source_t s) {
  if (s->active && !s->cancelled) sim::misuse("a source is released that was not cancelled");
  const std::lock_guard lock(sim::mutex);
  if (!std::erase(sim::sources, s)) sim::misuse("a source is released twice");
  Block_release(s->handler);
  delete s;
  sim::add("source", -1);
}

mach_port_t mach_task_self(void) { return 1; }
kern_return_t task_info(mach_port_t, unsigned int flavor, task_info_t info, mach_msg_type_number_t* count) {
  if (flavor != TASK_VM_INFO || *count < TASK_VM_INFO_COUNT) return 4;
  long total = 0, resident = 0, shared = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (!file) return 5;
  const int n = std::fscanf(file, "%ld %ld %ld", &total, &resident, &shared);
  std::fclose(file);
  if (n != 3) return 5;
  reinterpret_cast<task_vm_info_data_t*>(info)->phys_footprint =
      static_cast<uint64_t>(resident - shared) * static_cast<uint64_t>(getpagesize());
  return KERN_SUCCESS;
}
