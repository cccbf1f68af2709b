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

// Owns the order of passes over one model. One thread at a time.
class Runner {
 public:
  // n_valid: token ids at or beyond it (padding of the vocabulary) are never drawn.
  Runner(std::shared_ptr<Model> model, int n_valid);

  int max_chunk() const { return model_->options().max_chunk; }
  int max_window() const { return model_->options().max_window; }

  // Reads one prompt chunk. With `last`, draws and returns the first reply token; else returns -1.
  int32_t prompt(Session& session, std::span<const int32_t> tokens, bool last, const Sampling& sampling);
  // One round: feeds each session's pending token and draws the next one.
  std::vector<int32_t> round(std::span<Session* const> sessions);
  // Of the token drawn last for the session, where its sampling asks for them.
  const Logprobs& last_logprobs(const Session& session) const;

  // Tests: one pass over all parts, the logits of every row, [n_rows of all parts, vocab]. Rows of windows
  // wait for keep().
  std::vector<float> forward(std::span<const Part> parts);
  // Applies what the last window kept, by a pass of no rows.
  void settle(Session& session);

 private:
  enum class Want { kNothing, kLast, kAll };
  void run(std::span<const Part> parts, Want want, std::vector<float>* all);
  void check(std::span<const Part> parts) const;
  int32_t draw(Session& session, size_t logits_row);

  std::shared_ptr<Model> model_;
  int n_valid_;
  EventRef done_;
  uint64_t passes_ = 0;
};

}  // namespace flashnext
