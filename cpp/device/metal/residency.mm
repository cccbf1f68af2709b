#include "device/metal/residency.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "device/metal/buffers.h"

namespace flashnext::mtl {
namespace {

constexpr size_t kMostSets = 30;  // a queue takes 32

}  // namespace

Residency::Residency(id<MTLDevice> device, id<MTLCommandQueue> queue, size_t set_bytes)
    : device_(Owned<id<MTLDevice>>::retain(device)),
      queue_(Owned<id<MTLCommandQueue>>::retain(queue)),
      set_bytes_(set_bytes) {}

Residency::~Residency() {
  const Pool pool;
  for (const Set& s : sets_) [queue_.get() removeResidencySet:s.set.get()];
}

// The group's first set with room. Beyond the most sets there may be, the one that holds least.
Residency::Place Residency::place_for_locked(size_t size_bytes, const void* group) {
  const auto has_room = [&](const Set& s) {
    return s.group == group && s.size_bytes + size_bytes <= set_bytes_;
  };
  const Place found = std::find_if(sets_.begin(), sets_.end(), has_room);
  if (found != sets_.end()) return found;
  if (sets_.size() >= kMostSets) {
    return std::min_element(sets_.begin(), sets_.end(),
                            [](const Set& a, const Set& b) { return a.size_bytes < b.size_bytes; });
  }
  NSError* error = nil;
  auto descriptor = Owned<MTLResidencySetDescriptor*>::adopt([[MTLResidencySetDescriptor alloc] init]);
  auto set = Owned<id<MTLResidencySet>>::adopt([device_.get() newResidencySetWithDescriptor:descriptor.get()
                                                                                      error:&error]);
  if (!set) throw DeviceError("metal: no residency set: " + text(error));
  [queue_.get() addResidencySet:set.get()];
  return sets_.insert(sets_.end(), {std::move(set), group});
}

void Residency::add(id<MTLBuffer> buffer, const void* group) {
  const std::lock_guard lock(mutex_);
  const Pool pool;
  remove_locked(buffer);
  const size_t size_bytes = [buffer length];
  const Place place = place_for_locked(size_bytes, group);
  [place->set.get() addAllocation:buffer];
  place->size_bytes += size_bytes;
  place->changed = changed_ = true;
  places_.emplace(buffer, place);
}

void Residency::remove(id<MTLBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  const Pool pool;
  remove_locked(buffer);
}

void Residency::remove_locked(id<MTLBuffer> buffer) {
  const auto found = places_.find(buffer);
  if (found == places_.end()) return;
  const Place place = found->second;
  places_.erase(found);
  [place->set.get() removeAllocation:buffer];
  [place->set.get() commit];
  place->size_bytes -= [buffer length];
  if (place->size_bytes > 0) return;
  [queue_.get() removeResidencySet:place->set.get()];
  sets_.erase(place);
}

void Residency::settle() {
  const std::lock_guard lock(mutex_);
  if (!changed_) return;
  {
    const Pool pool;
    for (Set& s : sets_) {
      if (!s.changed) continue;
      [s.set.get() commit];
      [s.set.get() requestResidency];
      s.changed = false;
    }
  }
  changed_ = false;
}

void Residency::renew() {
  settle();
  const std::lock_guard lock(mutex_);
  const Pool pool;
  for (const Set& s : sets_) [s.set.get() requestResidency];
}

namespace {

class Slabs final : public ResidencySet {
 public:
  explicit Slabs(std::shared_ptr<Residency> residency) : residency_(std::move(residency)) {}
  ~Slabs() override {
    for (const BufferRef& b : buffers_) residency_->remove(object_of(*b));
  }
  void add(const BufferRef& buffer) override {
    residency_->add(object_of(*buffer), this);
    buffers_.push_back(buffer);
  }
  void remove(const BufferRef& buffer) override {
    if (std::erase(buffers_, buffer)) residency_->remove(object_of(*buffer));
  }
  size_t size_bytes() const override {
    size_t n = 0;
    for (const BufferRef& b : buffers_) n += b->size_bytes();
    return n;
  }

 private:
  std::shared_ptr<Residency> residency_;
  std::vector<BufferRef> buffers_;
};

}  // namespace

std::unique_ptr<ResidencySet> residency_set(std::shared_ptr<Residency> residency) {
  return std::make_unique<Slabs>(std::move(residency));
}

}  // namespace flashnext::mtl
