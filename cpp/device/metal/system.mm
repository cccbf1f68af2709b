#include "device/metal/system.h"

#include <mach/mach.h>

namespace flashnext::mtl {

size_t footprint_bytes() {
  task_vm_info_data_t info = {};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) !=
      KERN_SUCCESS) {
    return 0;
  }
  return info.phys_footprint;
}

std::string os_build() {
  const Pool pool;
  return text([[NSProcessInfo processInfo] operatingSystemVersionString]);
}

PressureWatch::PressureWatch()
    : pressure_(std::make_shared<std::atomic<MemoryPressure>>(MemoryPressure::kNormal)),
      source_(dispatch_source_create(
          DISPATCH_SOURCE_TYPE_MEMORYPRESSURE, 0,
          DISPATCH_MEMORYPRESSURE_NORMAL | DISPATCH_MEMORYPRESSURE_WARN | DISPATCH_MEMORYPRESSURE_CRITICAL,
          dispatch_get_global_queue(QOS_CLASS_UTILITY, 0))) {
  if (!source_) return;  // then nothing is ever heard
  const auto pressure = pressure_;
  const dispatch_source_t source = source_;
  dispatch_source_set_event_handler(source_, ^{
    const unsigned long heard = dispatch_source_get_data(source);
    *pressure = heard & DISPATCH_MEMORYPRESSURE_CRITICAL ? MemoryPressure::kCritical
                : heard & DISPATCH_MEMORYPRESSURE_WARN   ? MemoryPressure::kWarning
                                                         : MemoryPressure::kNormal;
  });
  dispatch_activate(source_);
}

PressureWatch::~PressureWatch() {
  if (!source_) return;
  dispatch_source_cancel(source_);
  dispatch_release(source_);
}

void Awake::set(bool on) {
  if (on == static_cast<bool>(activity_)) return;
  const Pool pool;
  if (on) {
    activity_ = Owned<id<NSObject>>::retain([[NSProcessInfo processInfo]
        beginActivityWithOptions:NSActivityUserInitiated
                          reason:@"answering requests"]);
  } else {
    [[NSProcessInfo processInfo] endActivity:activity_.get()];
    activity_.reset();
  }
}

}  // namespace flashnext::mtl
