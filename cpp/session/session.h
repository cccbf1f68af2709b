// What one sequence owns on the device: its pages, its recurrent block and the inputs its last window left
// unsettled.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "session/page_pool.h"

namespace flashnext {

// Used by the thread that runs the rounds. A pass over a session begins with begin() and ends with end();
// between them the device reads and writes it.
class Session {
 public:
  // Allocates the recurrent block and both unsettled buffers. Throws OutOfMemory.
  Session(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int length() const { return length_; }  // committed positions
  int n_pages() const { return static_cast<int>(pages_.size()); }
  size_t size_bytes() const;  // without pages

  // Gives everything back; later use is refused. Idempotent.
  void close();

  // The device's view of a pass of n_rows rows from the committed length on; takes the pages they need, two
  // windows ahead for a window. Throws InvalidArgument beyond the context or for a closed session, OutOfPages
  // with nothing changed.
  Sequence begin(int n_rows, bool is_window);
  // The pass has run: rows of a prompt chunk are committed, those of a window wait for keep().
  void end(int n_rows, bool is_window);
  // Commits the first n rows of the last window; the next pass settles them. Rows not kept never happened.
  void keep(int n);
  // Positions the draft head has absorbed: at most all committed ones. It absorbs a position when the token
  // behind it is known.
  int head_length() const { return head_length_; }
  // Where the recurrent block lies; with a draft head it holds the streams of the last committed row.
  Slice block() const { return {block_, 0}; }
  // Takes pages for positions below `end`, as far as there are any and the context reaches; returns how far
  // they do.
  int reserve(int end);
  // The device's view for the draft head: its pages.
  Sequence head_sequence() const;
  void end_head(int length) { head_length_ = length; }

  // The pass failed: the state is unknown and only close() is allowed.
  void poison() { broken_ = true; }

  // Hash of the recurrent block and all committed cache rows of the model's layers. Settled sessions only.
  uint64_t state_hash() const;
  // Hash of the draft head's first n cache rows.
  uint64_t head_hash(int n) const;
  bool settled() const { return kept_ == 0; }

  // What rounds keep with the session while it generates a reply.
  struct Attachment {
    virtual ~Attachment() = default;
  };
  std::unique_ptr<Attachment> attachment;

 private:
  void require_usable() const;
  uint64_t cache_hash(uint64_t h, std::span<const PageLayout::Layer> layers, int n_rows) const;
  // Takes pages for positions below `end`, or throws OutOfPages having taken those that there were.
  void take_pages(int end);

  std::shared_ptr<const Model> model_;
  std::shared_ptr<PagePool> pool_;
  std::vector<int> pages_;
  BufferRef page_table_, block_, unsettled_[2];
  int head_length_ = 0;
  int parity_ = 0;  // which unsettled buffer the next window writes
  int length_ = 0, window_ = 0, kept_ = 0;
  bool closed_ = false, broken_ = false;
};

}  // namespace flashnext
