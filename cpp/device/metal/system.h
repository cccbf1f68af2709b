// What a Mac tells of memory, and staying awake.
#pragma once

#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "device/device.h"
#include "device/metal/handle.h"
#include "device/metal/metal_device.h"

namespace flashnext::mtl {

size_t footprint_bytes();  // as Activity Monitor counts this process, wired memory of the GPU included
std::string os_build();    // "Version 15.1 (Build 24B83)"

// Hears when the system is short of memory.
class PressureWatch {
 public:
  PressureWatch();
  ~PressureWatch();
  PressureWatch(const PressureWatch&) = delete;
  PressureWatch& operator=(const PressureWatch&) = delete;
  MemoryPressure pressure() const { return pressure_->load(); }

 private:
  std::shared_ptr<std::atomic<MemoryPressure>> pressure_;  // of the handler too, which may outlive this
  dispatch_source_t source_;
};

// Keeps the Mac from sleeping, and the process from being slowed down, while it is on.
class Awake {
 public:
  Awake() = default;
  ~Awake() { set(false); }
  Awake(const Awake&) = delete;
  Awake& operator=(const Awake&) = delete;
  void set(bool on);

 private:
  Owned<id<NSObject>> activity_;
};

}  // namespace flashnext::mtl
