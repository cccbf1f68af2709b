// The command queue of a device and what its command buffers share.
#pragma once

#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/metal/event.h"
#include "device/metal/handle.h"
#include "device/metal/idle.h"
#include "device/metal/residency.h"
#include "device/metal/system.h"

namespace flashnext::mtl {

// What a committed command buffer will tell, and whom.
struct Committed {
  std::vector<std::pair<std::shared_ptr<MetalEvent>, uint64_t>> waits, signals;
};

// From any thread. A command buffer's completion handler keeps it alive.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  Queue(id<MTLDevice> device, IdleTimes idle);
  ~Queue();

  id<MTLDevice> device() const { return device_.get(); }
  // Orders each encoder behind all before it: Metal does not know what they reach by address.
  id<MTLFence> fence() const { return fence_.get(); }
  const std::shared_ptr<Residency>& residency() const { return residency_; }
  Owned<id<MTLCommandBuffer>> command_buffer() const;
  void commit(id<MTLCommandBuffer> buffer, Committed committed);
  uint64_t busy_ns() const { return busy_ns_; }
  // Returns when nothing is in flight. No beats from then on.
  void drain();

 private:
  void landed(id<MTLCommandBuffer> buffer, const Committed& committed);
  void count(id<MTLCommandBuffer> buffer);
  void beat();
  std::string lost() const;

  Owned<id<MTLDevice>> device_;
  Owned<id<MTLCommandQueue>> queue_;
  Owned<id<MTLFence>> fence_;
  std::shared_ptr<Residency> residency_;
  Awake awake_;
  std::atomic<uint64_t> busy_ns_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t n_in_flight_ = 0, n_beats_ = 0;
  double busy_until_ = 0;  // seconds of the GPU's clock
  std::string lost_;
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace flashnext::mtl
