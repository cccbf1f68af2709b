#include "session/page_pool.h"

#include <algorithm>

#include "base/error.h"

namespace flashnext {
namespace {

constexpr int kSlabPages = 32;

}  // namespace

PagePool::PagePool(DeviceRef device, size_t page_bytes, int n_pages)
    : device_(std::move(device)),
      page_bytes_(page_bytes),
      n_pages_(n_pages),
      resident_(device_->residency_set()) {
  if (n_pages <= 0)
    throw InvalidArgument("page pool: n_pages is " + std::to_string(n_pages) + ", expected at least 1");
  references_.resize(static_cast<size_t>(n_pages));
}

int PagePool::n_free() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(free_.size()) + n_pages_ - n_made_;
}

int PagePool::take(Holder holder) {
  const std::lock_guard lock(mutex_);
  int page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    if (n_made_ == n_pages_) {
      throw OutOfPages("all " + std::to_string(n_pages_) + " pages of the cache are in use");
    }
    if (n_made_ % kSlabPages == 0) {
      const int n = std::min(kSlabPages, n_pages_ - n_made_);
      slabs_.push_back(device_->allocate(static_cast<size_t>(n) * page_bytes_));
      resident_->add(slabs_.back());
    }
    page = n_made_++;
  }
  change(page, holder, 1);
  return page;
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
  if (by < 0 && r.sessions == 0 && r.snapshots == 0) free_.push_back(page);
}

int PagePool::n_of_snapshots() const {
  const std::lock_guard lock(mutex_);
  return n_of_snapshots_;
}

std::byte* PagePool::host(int page) const {
  const std::lock_guard lock(mutex_);
  return slabs_[static_cast<size_t>(page / kSlabPages)]->host() +
         static_cast<size_t>(page % kSlabPages) * page_bytes_;
}

uint64_t PagePool::address(int page) const {
  const std::lock_guard lock(mutex_);
  return slabs_[static_cast<size_t>(page / kSlabPages)]->address() +
         static_cast<size_t>(page % kSlabPages) * page_bytes_;
}

size_t PagePool::allocated_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t n = 0;
  for (const BufferRef& slab : slabs_) n += slab->size_bytes();
  return n;
}

}  // namespace flashnext
