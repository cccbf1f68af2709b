// Runs passes over sessions: prompt chunks, windows and rounds.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "rounds/sampler.h"
#include "session/session.h"

namespace flashnext {

// One sequence's part of a pass.
struct Part {
  Session* session;
  std::span<const int32_t> tokens;
  bool is_window;
};

// A token that a round drew.
struct Drawn {
  int32_t token;      // -1: all logits are NaN, and the session has no pending token any more
  Logprobs logprobs;  // where the sampling asks for them
};

// Of one reply: how many drafts were verified, and how many of them kept.
struct DraftCounts {
  int proposed = 0, accepted = 0;
};

// Owns the order of passes over one model. One thread at a time.
class Runner {
 public:
  // n_valid: token ids at or beyond it (padding of the vocabulary) are never drawn.
  Runner(std::shared_ptr<Model> model, int n_valid);

  int max_chunk() const { return model_->options().max_chunk; }
  int max_window() const { return model_->options().max_window; }

  // Reads one prompt chunk. With `last`, draws the first reply token, and up to n_drafts drafts for the first
  // round; without it nothing is drawn.
  std::vector<Drawn> prompt(Session& session, std::span<const int32_t> tokens, bool last,
                            const Sampling& sampling, int n_drafts = 0);
  // One round: feeds each session's pending token and its drafts, draws behind each row as long as the drafts
  // are what was drawn, and returns what was drawn, one token or more a session. n_drafts: most drafts of
  // each session's next round.
  std::vector<std::vector<Drawn>> round(std::span<Session* const> sessions, std::span<const int> n_drafts);
  // The drafts that the session's next round verifies.
  std::span<const int32_t> drafts(const Session& session) const;
  const DraftCounts& draft_counts(const Session& session) const;

  // Tests: one pass over all parts, the logits of every row, [n_rows of all parts, vocab]. Rows of windows
  // wait for keep().
  std::vector<float> forward(std::span<const Part> parts);
  // Applies what the last window kept, by a pass of no rows.
  void settle(Session& session);

 private:
  struct Reply;
  enum class Want { kNothing, kLast, kAll };
  // Rows that the draft head absorbs for one session, and how many tokens it drafts behind the last of them.
  struct HeadPart {
    Session* session;
    int source;                   // row j reads the streams of row source + j of the pass,
    bool carried;                 // save the first, which reads what the session carries
    std::vector<int32_t> tokens;  // behind each row
    int start;                    // position of its first row
    int last_row;                 // of the pass, whose streams the session carries on; -1: it does already
    int n_drafts;
  };

  void run(std::span<const Part> parts, Want want, std::vector<float>* all, bool absorb);
  void check(std::span<const Part> parts) const;
  void record_head(CommandBuffer& cb, std::vector<HeadPart>& parts) const;  // sorts them
  std::vector<HeadPart> prompt_head(std::span<const Part> parts) const;
  static Reply& reply_of(const Session& session);
  // Absorbs, and leaves the drafts with the sessions.
  void draft(std::vector<HeadPart> parts);
  Drawn draw(Reply& reply, size_t logits_row, int64_t position) const;

  std::shared_ptr<Model> model_;
  int n_valid_;
  EventRef done_;
  uint64_t passes_ = 0;
};

}  // namespace flashnext
