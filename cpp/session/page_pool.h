// The pages that hold the attention caches of all sequences.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace flashnext {

// Pages of one size with counted references, in slabs that are allocated when first needed. May be used from
// any thread.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Allocates nothing yet. n_pages > 0.
  PagePool(DeviceRef device, size_t page_bytes, int n_pages);

  // A page with one reference, of undefined content. Throws OutOfPages where none is free.
  int take();
  void share(int page);    // one reference more
  void release(int page);  // one less; the last frees the page
  uint64_t address(int page) const;
  std::byte* host(int page) const;

  int n_free() const;
  int n_pages() const { return n_pages_; }
  size_t page_bytes() const { return page_bytes_; }
  size_t allocated_bytes() const;

 private:
  DeviceRef device_;
  size_t page_bytes_;
  int n_pages_;
  mutable std::mutex mutex_;
  int n_made_ = 0;  // pages that slabs exist for, or that were handed out from the last one
  std::vector<BufferRef> slabs_;
  std::unique_ptr<ResidencySet> resident_;
  std::vector<int> free_, references_;
};

}  // namespace flashnext
