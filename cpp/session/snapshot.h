// Where a sequence stood behind some of its tokens, kept so that others can go on from there.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "model/model.h"
#include "session/page_pool.h"

namespace flashnext {

class Snapshot;
using SnapshotRef = std::shared_ptr<Snapshot>;

// A copy of the recurrent block behind n positions, and references to the pages that hold them: the model's
// rows below n and the draft head's below n - 1. The row n - 1 of the head needs the token behind it; the
// block has the streams that it reads. Who wrote the last page may go on writing it, from row n on, and the
// head's from n - 1. All methods may be called from any thread.
class Snapshot {
 public:
  // What it holds, which a reader keeps while it reads, whoever closes the snapshot.
  struct Held {
    Held(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool, int n);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    // Rows of the page of that index that are covered: the model's, the draft head's.
    std::pair<int, int> rows(size_t index) const;

    const std::shared_ptr<const Model> model;
    const std::shared_ptr<PagePool> pool;
    const int n;
    BufferRef block;
    std::vector<int> pages;  // each with a reference of Holder::kSnapshot
  };
  using HeldRef = std::shared_ptr<const Held>;

  // Shares those of the pages that n positions have. The block is zero: the caller fills it. n > 0. Throws
  // OutOfMemory.
  static SnapshotRef make(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool, int n,
                          std::span<const int> pages);
  // Of what read_block() and read_page() gave; each page as bytes, or as that index of another snapshot.
  // Throws InvalidArgument where sizes do not fit, OutOfPages, OutOfMemory; nothing stays then.
  using PageSource = std::variant<std::span<const std::byte>, std::pair<const Snapshot*, int>>;
  static SnapshotRef restore(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool, int n,
                             std::span<const std::byte> block, std::span<const PageSource> pages);

  int n() const { return n_; }
  std::vector<int> page_ids() const;  // none after close()
  // Gives everything back, as soon as no reader reads. Idempotent.
  void close();
  // Throws InvalidArgument after close().
  HeldRef held() const;

  // Copies: equal states give equal bytes, since what is not covered comes as zero. `out` has the size of a
  // block, or of a page.
  void read_block(std::span<std::byte> out) const;
  void read_page(int index, std::span<std::byte> out) const;

 private:
  explicit Snapshot(HeldRef held) : n_(held->n), held_(std::move(held)) {}

  const int n_;
  mutable std::mutex mutex_;
  HeldRef held_;  // null after close()
};

}  // namespace flashnext
