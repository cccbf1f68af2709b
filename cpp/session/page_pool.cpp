#include "session/page_pool.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr int kSlabPages = 32;  // as many as a mask has bits

}  // namespace

PagePool::PagePool(DeviceRef device, size_t page_bytes, int n_pages)
    : device_(std::move(device)),
      page_bytes_(page_bytes),
      n_pages_(n_pages),
      resident_(device_->residency_set()) {
  if (n_pages <= 0)
    throw InvalidArgument("page pool: n_pages is " + std::to_string(n_pages) + ", expected at least 1");
  references_.resize(static_cast<size_t>(n_pages));
  slabs_.resize(static_cast<size_t>((n_pages + kSlabPages - 1) / kSlabPages));
  for (size_t i = 0; i < slabs_.size(); ++i) slabs_[i].free = pages_of(i);
}

uint32_t PagePool::pages_of(size_t slab) const {
  const int n = std::min(kSlabPages, n_pages_ - static_cast<int>(slab) * kSlabPages);
  return ~0u >> (32 - n);
}

int PagePool::n_free() const {
  const std::lock_guard lock(mutex_);
  return n_pages_ - n_taken_;
}

int PagePool::take(Holder holder) {
  const std::lock_guard lock(mutex_);
  // The first slab that has one, so that few are in use and the others can be given back.
  auto slab = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.buffer && s.free; });
  if (slab == slabs_.end()) {
    slab = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return !s.buffer; });
    if (slab == slabs_.end()) {
      throw OutOfPages("all " + std::to_string(n_pages_) + " pages of the cache are in use");
    }
    const int n = std::popcount(slab->free);
    BufferRef buffer = device_->allocate(static_cast<size_t>(n) * page_bytes_);
    resident_->add(buffer);
    slab->buffer = std::move(buffer);
    n_allocated_ += n;
  }
  const int bit = std::countr_zero(slab->free);
  slab->free &= slab->free - 1;
  ++n_taken_;
  const int page = static_cast<int>(slab - slabs_.begin()) * kSlabPages + bit;
  change(page, holder, 1);
  return page;
}

void PagePool::trim(int n_pages) {
  const std::lock_guard lock(mutex_);
  for (size_t i = slabs_.size(); i-- > 0 && n_allocated_ > n_pages;) {
    Slab& slab = slabs_[i];
    if (!slab.buffer || slab.free != pages_of(i)) continue;
    resident_->remove(slab.buffer);
    slab.buffer.reset();
    n_allocated_ -= std::popcount(slab.free);
  }
}

void PagePool::share(int page, Holder holder) {
  const std::lock_guard lock(mutex_);
  change(page, holder, 1);
}

void PagePool::release(int page, Holder holder) {
  const std::lock_guard lock(mutex_);
  change(page, holder, -1);
}

void PagePool::change(int page, Holder holder, int by) {
  References& r = references_.at(static_cast<size_t>(page));
  n_of_snapshots_ -= r.only_snapshots();
  r.of(holder) += by;
  n_of_snapshots_ += r.only_snapshots();
  if (by < 0 && r.sessions == 0 && r.snapshots == 0) {
    slabs_[static_cast<size_t>(page / kSlabPages)].free |= 1u << page % kSlabPages;
    --n_taken_;
  }
}

int PagePool::n_of_snapshots() const {
  const std::lock_guard lock(mutex_);
  return n_of_snapshots_;
}

std::byte* PagePool::host(int page) const {
  const std::lock_guard lock(mutex_);
  return slabs_[static_cast<size_t>(page / kSlabPages)].buffer->host() +
         static_cast<size_t>(page % kSlabPages) * page_bytes_;
}

uint64_t PagePool::address(int page) const {
  const std::lock_guard lock(mutex_);
  return slabs_[static_cast<size_t>(page / kSlabPages)].buffer->address() +
         static_cast<size_t>(page % kSlabPages) * page_bytes_;
}

size_t PagePool::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  for (const Slab& slab : slabs_) n += slab.buffer ? slab.buffer->size_bytes() : 0;
  return n;
}

}  // namespace flashnext
