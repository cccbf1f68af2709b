// The pages that hold the attention caches of all sequences, and of the snapshots of some.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device.h"

namespace flashnext {

// Who refers to a page.
enum class Holder { kSession, kSnapshot };

// Pages of one size with counted references, in slabs that are allocated when first needed and given back
// when somebody asks for it. May be used from any thread. It also counts what snapshots hold.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // Allocates nothing yet. n_pages > 0.
  PagePool(DeviceRef device, size_t page_bytes, int n_pages);

  // A page with one reference, of undefined content. Throws OutOfPages where none is free.
  int take(Holder holder);
  void share(int page, Holder holder);    // one reference more
  void release(int page, Holder holder);  // one less; the last frees the page
  uint64_t address(int page) const;
  std::byte* host(int page) const;

  int n_free() const;
  int n_pages() const { return n_pages_; }
  size_t page_bytes() const { return page_bytes_; }
  size_t allocated_bytes() const;
  // Gives back slabs that nobody has a page of, until at most so many pages are allocated or there are none.
  void trim(int n_pages);

  int n_of_snapshots() const;  // pages that snapshots refer to and no session
  // What the recurrent blocks of snapshots take.
  size_t block_bytes() const { return block_bytes_.load(std::memory_order_relaxed); }
  void add_block(size_t size_bytes) { block_bytes_ += size_bytes; }
  void remove_block(size_t size_bytes) { block_bytes_ -= size_bytes; }

 private:
  DeviceRef device_;
  size_t page_bytes_;
  int n_pages_;
  mutable std::mutex mutex_;
  struct Slab {
    BufferRef buffer;   // null until it is needed
    uint32_t free = 0;  // a bit for each page that nobody has; all of them before and after its memory
  };
  uint32_t pages_of(size_t slab) const;  // a bit for each page that it has
  std::vector<Slab> slabs_;
  int n_taken_ = 0, n_allocated_ = 0;
  std::unique_ptr<ResidencySet> resident_;
  struct References {
    int sessions = 0, snapshots = 0;
    int& of(Holder holder) { return holder == Holder::kSession ? sessions : snapshots; }
    bool only_snapshots() const { return snapshots > 0 && sessions == 0; }
  };
  void change(int page, Holder holder, int by);

  std::vector<References> references_;
  int n_of_snapshots_ = 0;
  std::atomic<size_t> block_bytes_ = 0;
};

}  // namespace flashnext
