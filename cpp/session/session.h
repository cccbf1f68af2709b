// What one sequence owns on the device: its pages, its recurrent block, the inputs its last window left
// unsettled, its text and the state of its reply.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "model/model.h"
#include "session/frame.h"
#include "session/page_pool.h"
#include "session/snapshot.h"

namespace flashnext {

// A pass over a session begins with begin() and ends with end(); between them the device reads and writes it.
// Rounds begin with try_begin_round() and may follow each other before the first has landed. close() may be
// called by any thread at any time, everything else by the one that runs the passes.
class Session : public std::enable_shared_from_this<Session> {
 public:
  // Allocates the recurrent block and both unsettled buffers. Throws OutOfMemory.
  Session(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // What rounds keep with the session while it generates a reply; freed with the session.
  struct Attachment {
    virtual ~Attachment() = default;
  };

  int length() const;  // committed positions
  int n_pages() const;
  size_t size_bytes() const;  // without pages
  bool closed() const;

  // Gives everything back, as soon as no pass is in flight; later use is refused. Idempotent.
  void close();

  // Where its rows stand on the rotary axes; null: at their positions. A session that goes on from where
  // another stood is given the same for the rows that both have. Not within a pass; before begin_reply().
  void set_frame(FrameRef frame);
  FrameRef frame() const;

  // A session with the same committed positions and frame, which shares all pages but the last. Between
  // prompt passes only. Throws OutOfPages, OutOfMemory, or InvalidArgument while windows are unsettled or a
  // pass is in flight.
  std::shared_ptr<Session> fork() const;
  // A session that stands where the snapshot was taken, behind the n tokens that it was made of; shares all
  // pages but the one with row n - 1, which is copied. Throws OutOfPages, OutOfMemory, or InvalidArgument for
  // other than n tokens.
  static std::shared_ptr<Session> resume(const Snapshot& snapshot, std::span<const int32_t> tokens);
  // A snapshot of where it stands. Throws OutOfMemory, or InvalidArgument while rows are unsettled or a pass
  // is in flight, for no rows, or where the draft head has not followed.
  SnapshotRef snapshot() const;
  // Within begin() and end(): a snapshot of n positions, whose block the pass fills as it goes by. The draft
  // head has absorbed all rows before the pass but the last. Throws OutOfMemory.
  SnapshotRef tap(int n) const;

  // The device's view of a pass of n_rows rows from the committed length on; takes the pages they need.
  // Throws InvalidArgument beyond the context or for a closed session, OutOfPages
  // with nothing changed.
  Sequence begin(int n_rows, bool is_window);
  // Takes pages for positions below `end`, as far as there are any, also for want of memory, and the context
  // reaches; returns how far they do.
  int reserve(int end);
  // The pass has run: rows of a prompt chunk are committed, those of a window wait for keep().
  void end(int n_rows, bool is_window);
  // Commits the first n rows of the last window; the next pass settles them. Rows not kept never happened.
  void keep(int n);
  // Positions the draft head has absorbed: at most all committed ones. It absorbs a position when the token
  // behind it is known.
  int head_length() const;
  // Where the recurrent block lies; with a draft head it holds the streams of the last committed row.
  Slice block() const { return {block_, 0}; }
  // The device's view for the draft head: its pages.
  Sequence head_sequence() const;
  void end_head(int length);

  // Token ids by position: prompt, reply, and room for the drafts behind the pending token.
  std::span<int32_t> text();
  // The state of its reply, which the device keeps while rounds are in flight.
  const ReplyState& reply() const;
  // The same to be filled for a new reply, with where the session's parts lie and how it stands. Nothing may
  // be in flight; the session is not freed before end_begin().
  ReplyState& begin_reply();
  // Ends begin_reply(), with what rounds keep for the reply; null leaves what there was.
  void end_begin(std::shared_ptr<Attachment> attachment);
  uint64_t reply_address() const { return reply_->address(); }

  enum class Ready { kYes, kNoPages, kClosed };
  // Begins a round of up to n_rows rows, behind which the draft head drafts up to n_ahead tokens, while
  // others may be in flight. n_rows and n_ahead come back as far as the pages and the context reach; kNoPages
  // where not even the pending token's row has one. Throws OutOfMemory where there is no memory for that one.
  Ready try_begin_round(int& n_rows, int& n_ahead);
  // Positions that the rounds in flight may come to.
  int most_length() const;
  // The round of n_rows rows has landed.
  void end_round(int n_rows, const Landed& landed, bool with_head);
  // A pass that begin() or try_begin_round() began has failed: the state is unknown and only close() is
  // allowed.
  void fail();
  bool failed() const;

  // Hash of the recurrent block and all committed cache rows of the model's layers. Settled sessions only.
  uint64_t state_hash() const;
  // Hash of the draft head's first n cache rows.
  uint64_t head_hash(int n) const;
  bool settled() const;

  // What rounds keep with the session; null where there is no reply, or it is closed.
  std::shared_ptr<Attachment> attached() const;

 private:
  // One behind n positions with this block, whose pages before the last are shared; of the last it gets a
  // copy, of the rows that are covered.
  static std::shared_ptr<Session> behind(std::shared_ptr<const Model> model, std::shared_ptr<PagePool> pool,
                                         const BufferRef& block, std::span<const int> pages,
                                         std::span<const int32_t> tokens, int head_length);
  void require_usable() const;
  uint64_t cache_hash(uint64_t h, std::span<const PageLayout::Layer> layers, int n_rows) const;
  // Takes pages for positions below `end`, or throws OutOfPages having taken those that there were.
  void take_pages(int end);
  // The same as far as `end`; throws OutOfMemory only where they do not reach `least`.
  int reserve_pages(int least, int end);
  void landed_pass();
  void release();

  std::shared_ptr<const Model> model_;
  std::shared_ptr<PagePool> pool_;
  mutable std::mutex mutex_;
  std::vector<int> pages_;
  BufferRef page_table_, block_, unsettled_[2], text_, reply_;
  FrameRef frame_;
  int head_length_ = 0;
  int parity_ = 0;  // which unsettled buffer the next window writes
  int length_ = 0, window_ = 0, kept_ = 0;
  std::shared_ptr<Attachment> attachment_;
  int n_passes_ = 0, n_ahead_ = 0;  // in flight, and the rows of their windows
  bool closed_ = false, broken_ = false;
};

using SessionRef = std::shared_ptr<Session>;

}  // namespace flashnext
