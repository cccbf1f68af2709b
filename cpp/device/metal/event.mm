#include "device/metal/event.h"

#include "base/error.h"

namespace flashnext::mtl {
namespace {

constexpr uint64_t kWaitMs = 60'000;  // after which it waits again

}  // namespace

MetalEvent::MetalEvent(id<MTLDevice> device)
    : event_(Owned<id<MTLSharedEvent>>::adopt([device newSharedEvent])) {
  if (!event_) throw DeviceError("metal: the system gives no shared event");
}

void MetalEvent::raise_locked(uint64_t value) {
  if (value > [event_.get() signaledValue]) [event_.get() setSignaledValue:value];
}

void MetalEvent::signal(uint64_t value) {
  const std::lock_guard lock(mutex_);
  raise_locked(value);
}

void MetalEvent::expect(uint64_t value) {
  const std::lock_guard lock(mutex_);
  expected_.insert(value);
}

void MetalEvent::landed(uint64_t value, const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    const bool at_end = expected_.erase(value) > 0;
    // A value in the middle that was reached stands, whatever happened behind it.
    if (!error.empty() && (at_end || value > [event_.get() signaledValue])) {
      failures_[value] = error;
      raise_locked(value);
    }
  }
  changed_.notify_all();
}

std::string MetalEvent::failure(uint64_t value) const {
  const std::lock_guard lock(mutex_);
  const auto found = failures_.find(value);
  return found == failures_.end() ? "" : found->second;
}

void MetalEvent::wait(uint64_t value) {
  while (![event_.get() waitUntilSignaledValue:value timeoutMS:kWaitMs]) {
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !expected_.contains(value); });
  if (const auto found = failures_.find(value); found != failures_.end()) throw DeviceError(found->second);
}

}  // namespace flashnext::mtl
