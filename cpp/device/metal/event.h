// A timeline that CPU and GPU share, and what became of the work that should have moved it.
#pragma once

#import <Metal/Metal.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "device/device.h"
#include "device/metal/handle.h"

namespace flashnext::mtl {

class MetalEvent final : public Event {
 public:
  explicit MetalEvent(id<MTLDevice> device);
  uint64_t value() const override { return [event_.get() signaledValue]; }
  void signal(uint64_t value) override;
  void wait(uint64_t value) override;

  id<MTLSharedEvent> object() const { return event_.get(); }
  // A command buffer signals this value at its end: the GPU does before it is known whether all went well, so
  // who waits for it waits for landed() too.
  void expect(uint64_t value);
  // The command buffer has ended; `error` is empty where it went well. Without that the value may never come
  // by itself.
  void landed(uint64_t value, const std::string& error);
  // Of the work that should have signalled a value; empty where none is known.
  std::string failure(uint64_t value) const;

 private:
  void raise_locked(uint64_t value);

  Owned<id<MTLSharedEvent>> event_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<uint64_t> expected_;
  std::map<uint64_t, std::string> failures_;
};

}  // namespace flashnext::mtl
