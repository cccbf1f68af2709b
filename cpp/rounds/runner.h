// Runs passes over sessions: prompt chunks, windows and rounds.
//
// A pass is committed without waiting for the one before it, and landed later: everything that one round
// hands to the next (what was drawn, what was kept, the drafts) stays on the device. commit_..() and land()
// are the way of the engine; prompt(), round() and forward() commit one pass and land it.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/features.h"
#include "model/model.h"
#include "rounds/sampler.h"
#include "session/session.h"

namespace flashnext {

// Rows of a chunk that show a picture or a video: `first` and the n - 1 behind it read rows `from`, ... of
// its features in place of their tokens' embeddings.
struct Shown {
  int32_t first, n;
  FeaturesRef features;
  int32_t from;
};

// One sequence's part of a pass of forward().
struct Part {
  Session* session;
  std::span<const int32_t> tokens;
  bool is_window;
  std::span<const Shown> media = {};
};

// A token that was drawn.
struct Drawn {
  int32_t token;             // -1: all logits are NaN, and the reply has ended
  Logprobs logprobs;         // where the sampling asks for them
  uint64_t logits_hash = 0;  // of the row it was drawn from, where hashes are kept
};

// How many drafts a pass makes for the round after: copies of the sequence's own text where there are any,
// else by the draft head.
struct MostDrafts {
  int head = 0, copied = 0;
};

// Which ids the grammars of replies allow. Called between passes by whoever runs them, so that a device that
// has the next round already computes its forward meanwhile. Nothing that it does may wait for a pass.
//
// grammar: of ReplyOptions. drawn: what its last pass drew, empty before the first token; each call goes on
// where the one before ended. drafts: what stands behind the last of them. masks: room for a row of words for
// the token behind `drawn` and for those behind each draft, zeroed: bit i % 32 of word i / 32 allows id i. A
// row without any ends the reply. An exception leaves all rows without.
using WriteMasks = std::function<void(int64_t grammar, std::span<const int32_t> drawn,
                                      std::span<const int32_t> drafts, std::span<uint32_t> masks)>;

// How a reply is made.
struct ReplyOptions {
  Sampling sampling;
  std::vector<int32_t> stop_ids;  // that end it
  int n_prompt = 0;               // tokens of the prompt; what is read beyond them is a reply that goes on
  int end = 0;                    // positions of prompt and reply together at which it ends; 0: the context's
  std::vector<int32_t> known;     // tokens of the reply that rounds will draw again
  MostDrafts most = {};           // of a round, for those who ask most_drafts()
  int64_t grammar = 0;            // that says which ids may be drawn, by a number of WriteMasks; 0: none
};

// What rounds over a session keep to.
struct ReplyLimits {
  MostDrafts most;
  int known_end = 0;  // positions below it have tokens that are known already
};

// Of one reply: how many drafts were verified, and how many of them kept.
struct DraftCounts {
  int proposed = 0, accepted = 0;
};

// The next tokens of a prompt. With `last`, the first token of its reply is drawn, and drafts behind it.
struct ChunkPart {
  SessionRef session;
  std::vector<int32_t> tokens;
  bool last = false;
  // Tokens behind the first rows whose log-probabilities are wanted; begin() has been called then. They are
  // waited for.
  std::vector<int32_t> scored = {};
  MostDrafts drafts = {};
  // Numbers of its first tokens behind which snapshots are taken, ascending, 1 to all of them.
  std::vector<int32_t> marks = {};
  std::vector<Shown> media = {};
};

// A sequence's part of a round: at most n_rows rows, its pending token and drafts.
struct RoundPart {
  SessionRef session;
  int n_rows = 1;
  MostDrafts drafts = {};
};

// What a pass came to for one sequence.
struct LandedPart {
  SessionRef session;
  std::vector<Drawn> tokens;
  std::vector<Drawn> scores;           // of the chunk's scored tokens
  std::vector<SnapshotRef> snapshots;  // of the chunk's marks; null where there was no memory for one
  bool is_round = false;               // else a prompt chunk
  bool ended = false;                  // a stop id, the end or NaN: it has no rounds any more
  int n_rows = 0;                      // of a round: the pending token, and drafts or known tokens behind it
  int proposed = 0, accepted = 0;      // drafts that were verified and kept; known tokens are none
  bool copied = false;                 // they were copies
  int n_head = 0, n_copied = 0;        // drafts that wait for the next round
  bool short_of_pages = false;         // it took no part: there was no page for it
  std::exception_ptr error = nullptr;  // why it took no part, or failed; then only close() is allowed
};

// Owns the order of passes over one model. One thread at a time, and one runner with passes in flight a
// model: the tables of passes are the model's.
class Runner {
 public:
  // n_valid: token ids at or beyond it (padding of the vocabulary) are never drawn.
  // serial_drafts: drafts are made when the host has seen the verdict. write_masks: for replies with
  // grammars.
  Runner(std::shared_ptr<Model> model, int n_valid, bool serial_drafts = false, WriteMasks write_masks = {});
  ~Runner();

  const Model& model() const { return *model_; }
  const std::shared_ptr<Model>& model_ref() const { return model_; }
  int max_chunk() const { return model_->options().max_chunk; }
  int max_window() const { return std::min(model_->options().max_window, kMaxWindow); }
  int max_round() const { return model_->options().max_round; }

  // Before the chunk that reads the last token of the prompt. Throws InvalidArgument naming what is out of
  // range.
  void begin(Session& session, const ReplyOptions& options);
  // Commits one prompt pass; waits for the one before it. Parts that cannot take part are left out, and
  // landed with their error. Throws InvalidArgument where together they are too many.
  void commit_prompt(std::span<const ChunkPart> parts);
  // Commits a round. Returns how many sequences take part; without any nothing is committed. Those that do
  // not are landed: with short_of_pages or their error. With serial drafts and grammars nothing is committed
  // either while a pass is in flight.
  int commit_round(std::span<const RoundPart> parts);
  // Passes in flight; at most kMost.
  int in_flight() const { return static_cast<int>(passes_.size()); }
  static constexpr int kMost = Model::kSlots - 1;
  // Waits for the oldest pass in flight. Returns what it came to, and what was left out since the last call;
  // nothing where nothing is in flight. Writes the masks that the pass waits for first.
  std::vector<LandedPart> land();

  // Reads one prompt chunk. With `last`, draws the first reply token, and up to n_drafts drafts for the first
  // round; without it nothing is drawn.
  std::vector<Drawn> prompt(const SessionRef& session, std::span<const int32_t> tokens, bool last,
                            const Sampling& sampling, int n_drafts = 0, std::span<const Shown> media = {});
  // One round: feeds each session's pending token and its drafts, draws behind each row as long as the drafts
  // are what was drawn, and returns what was drawn, one token or more a session. n_drafts: most drafts of
  // each session's next round.
  std::vector<std::vector<Drawn>> round(std::span<const SessionRef> sessions, std::span<const int> n_drafts);
  // The drafts that the session's next round verifies.
  std::vector<int32_t> drafts(Session& session) const;
  DraftCounts draft_counts(const Session& session) const;
  // Of its reply; none for a session that is closed. May be called beside close().
  std::optional<ReplyLimits> limits(const Session& session) const;

  // Tests: whether passes hash the logits that tokens are drawn from.
  void keep_hashes(bool keep) { wanted_.hashes = keep; }
  // Tests: one pass over all parts, the logits of every row, [n_rows of all parts, vocab]. Rows of windows
  // wait for keep().
  std::vector<float> forward(std::span<const Part> parts);
  // Applies what the last window kept, by a pass of no rows.
  void settle(Session& session);
  // Settles, and takes a snapshot of where the session stands.
  SnapshotRef snapshot(Session& session);

 private:
  struct Reply;
  // A committed pass: what it is over, and where its results will lie.
  struct Pass {
    struct Entry {
      SessionRef session;
      std::shared_ptr<Reply> reply;  // where a token of it is drawn
      int n_rows;
      int window;       // index of its window; -1: a chunk that is not the last
      int head_length;  // after a chunk; -1: left alone
      std::vector<Drawn> scores = {};
      std::vector<SnapshotRef> snapshots = {};
      std::vector<Shown> media = {};  // that the pass reads
    };
    std::vector<Entry> entries;
    bool is_round = false, hashes = false;
    int slot = 0;
    uint64_t value = 0;
    std::exception_ptr error = nullptr;  // that is known already
  };
  // Rows that the draft head absorbs of a prompt chunk.
  struct AbsorbPart {
    Session* session;
    int source;                   // row j reads the streams of row source + j of the pass,
    bool carried;                 // save the first, which reads what the session carries
    std::vector<int32_t> tokens;  // behind each row
    int start;                    // position of its first row
    int last_row;                 // of the pass, whose streams the session carries on
  };

  // A reply with a grammar whose pass has landed: it draws the token of `position` next.
  struct Unmasked {
    std::shared_ptr<Reply> reply;
    int position;
    std::vector<int32_t> drawn, drafts;
  };

  static std::shared_ptr<Reply> reply_of(const Session& session);
  size_t mask_words() const { return (static_cast<size_t>(n_valid_) + 31) / 32; }
  static Unmasked unmasked(Session& session, const std::shared_ptr<Reply>& reply,
                           std::span<const Drawn> drawn);
  void mask_next();
  void write_masks(const Reply& reply, int position, std::span<const int32_t> drawn,
                   std::span<const int32_t> drafts);
  void check_ids(std::span<const int32_t> ids) const;
  void check(std::span<const Part> parts) const;
  void check_marks(const ChunkPart& part) const;
  void check_media(std::span<const Shown> media, size_t n_tokens) const;
  std::vector<SnapshotRef> tap(const ChunkPart& part, Sequence& sequence, int& n_marks) const;
  void fill_counts(Session& session, const Reply& reply, int n_read) const;
  std::vector<AbsorbPart> absorb_parts(std::span<const Part> parts) const;
  void record_absorb(CommandBuffer& cb, const std::vector<AbsorbPart>& parts) const;
  void keep_streams(CommandBuffer& cb, std::span<const ChunkPart* const> chunks,
                    std::span<const int32_t> first_rows, const Pass& pass) const;
  int32_t begin_part(const Part& part, PassBounds& bounds);
  void run(std::span<const Part> parts, std::vector<float>* all);
  void leave_out(const SessionRef& session);
  void commit(CommandBuffer& cb, Pass pass);
  std::exception_ptr run_so_far(std::unique_ptr<CommandBuffer>& cb);
  std::unique_ptr<CommandBuffer> score(std::unique_ptr<CommandBuffer> cb,
                                       std::span<const ChunkPart* const> chunks,
                                       std::span<const int32_t> first_rows, Pass& pass);
  static Logprobs logprobs(const Model::Results& results, size_t row);
  std::vector<Drawn> drawn(const Model::Results& results, int window, const Reply& reply, bool hashes) const;

  std::shared_ptr<Model> model_;
  int n_valid_;
  bool serial_drafts_;
  WriteMasks write_masks_;
  Model::Wanted wanted_;
  EventRef done_;
  EventRef masked_;  // passes whose masks, those of the tokens behind what they drew, are written
  uint64_t n_passes_ = 0, n_landed_ = 0;
  std::vector<Unmasked> unmasked_;
  uint64_t n_committed_ = 0;
  int next_slot_ = 0;
  std::deque<Pass> passes_;
  std::vector<LandedPart> left_out_;
};

}  // namespace flashnext
