// What is wired for the GPU: residency sets of the queue, of limited size each, so that a change of one does
// not touch what all the others hold.
#pragma once

#import <Metal/Metal.h>

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "device/device.h"
#include "device/metal/handle.h"

namespace flashnext::mtl {

// From any thread. Sets are made as they are needed and go when they are empty.
class Residency {
 public:
  Residency(id<MTLDevice> device, id<MTLCommandQueue> queue, size_t set_bytes);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Resident from the next settle() on, in a set of this group; what was in another group moves. The caller
  // keeps the buffer until it has removed it.
  void add(id<MTLBuffer> buffer, const void* group);
  // Not resident any more for what is committed from now on. Nothing happens where it is not.
  void remove(id<MTLBuffer> buffer);
  // Makes what was added resident; before each commit.
  void settle();
  // Asks once more for all of it, since the system may have taken it from an idle process.
  void renew();

 private:
  struct Set {
    Owned<id<MTLResidencySet>> set;
    const void* group;
    size_t size_bytes = 0;
    bool changed = false;
  };
  using Place = std::list<Set>::iterator;
  Place place_for_locked(size_t size_bytes, const void* group);
  void remove_locked(id<MTLBuffer> buffer);

  std::mutex mutex_;
  Owned<id<MTLDevice>> device_;
  Owned<id<MTLCommandQueue>> queue_;
  size_t set_bytes_;
  bool changed_ = false;
  std::list<Set> sets_;
  std::unordered_map<const void*, Place> places_;  // by buffer
};

// Of pages, say: slabs in sets of their own, wired while they are in use.
std::unique_ptr<ResidencySet> residency_set(std::shared_ptr<Residency> residency);

}  // namespace flashnext::mtl
