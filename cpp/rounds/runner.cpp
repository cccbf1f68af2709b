#include "rounds/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "rounds/reply.h"

namespace flashnext {

Runner::Runner(std::shared_ptr<Model> model, int n_valid, bool serial_drafts, WriteMasks write_masks)
    : model_(std::move(model)),
      n_valid_(n_valid),
      serial_drafts_(serial_drafts),
      write_masks_(std::move(write_masks)),
      done_(model_->device()->event()),
      masked_(model_->device()->event()) {
  if (n_valid < 1 || n_valid > model_->config().vocab_size) {
    throw InvalidArgument("runner: n_valid is " + std::to_string(n_valid) +
                          ", expected 1 to the vocabulary size " +
                          std::to_string(model_->config().vocab_size));
  }
}

// What is in flight still reads and writes the model and the sessions.
Runner::~Runner() {
  while (in_flight()) land();
}

// Lands a part that could not begin, with the exception that is being handled.
void Runner::leave_out(const SessionRef& session) {
  LandedPart part;
  part.session = session;
  part.error = std::current_exception();
  try {
    throw;
  } catch (const OutOfPages&) {
    part.short_of_pages = true;
  } catch (...) {
  }
  left_out_.push_back(std::move(part));
}

void Runner::commit(CommandBuffer& cb, Pass pass) {
  pass.value = ++n_committed_;
  cb.signal(done_, pass.value);
  cb.commit();
  passes_.push_back(std::move(pass));
  ++n_passes_;
  next_slot_ = (next_slot_ + 1) % Model::kSlots;
}

// Commits the first part of a pass and waits for it; the pass goes on in a new command buffer. Returns what
// failed.
std::exception_ptr Runner::run_so_far(std::unique_ptr<CommandBuffer>& cb) {
  std::exception_ptr error;
  cb->signal(done_, ++n_committed_);
  cb->commit();
  try {
    done_->wait(n_committed_);
  } catch (...) {
    error = std::current_exception();
  }
  cb = model_->device()->command_buffer();
  return error;
}

int Runner::commit_round(std::span<const RoundPart> parts) {
  if (in_flight() == kMost) throw Error("round: too many passes are in flight");
  if (serial_drafts_ && write_masks_) {
    // The first part of the round is waited for below, so its masks have to be there: the pass in front of it
    // lands first.
    const auto has_grammar = [](const RoundPart& p) {
      const auto reply = std::static_pointer_cast<Reply>(p.session->attached());
      return reply && reply->masks;
    };
    if (in_flight() && std::any_of(parts.begin(), parts.end(), has_grammar)) return 0;
    mask_next();
  }
  Pass pass;
  pass.slot = next_slot_;
  pass.hashes = wanted_.hashes;
  pass.is_round = true;
  Window* windows = model_->windows(pass.slot);
  PassBounds bounds;
  int most_drafts = 0;
  Model::Wanted wanted = wanted_;
  bool masked = false;
  const auto n_sequences =
      std::count_if(parts.begin(), parts.end(), [](const RoundPart& p) { return !p.session->closed(); });
  if (n_sequences > std::min(model_->options().max_sequences, max_round())) {
    throw InvalidArgument("round of " + std::to_string(n_sequences) + " sequences, at most " +
                          std::to_string(std::min(model_->options().max_sequences, max_round())) +
                          " are allowed");
  }
  int spare = max_round() - static_cast<int>(n_sequences);
  Begun begun;
  begun.sessions.reserve(parts.size());
  for (const RoundPart& p : parts) {
    int n_rows = std::clamp(p.n_rows, 1, std::min(max_window(), 1 + spare));
    int n_ahead = std::clamp(std::max(p.drafts.head, p.drafts.copied), 0, max_window() - 1);
    try {
      const Session::Ready ready = p.session->try_begin_round(n_rows, n_ahead);
      if (ready == Session::Ready::kClosed) continue;
      if (ready == Session::Ready::kNoPages) throw OutOfPages("all pages of the cache are in use");
    } catch (...) {
      leave_out(p.session);
      continue;
    }
    begun.sessions.push_back(p.session);
    const std::shared_ptr<Reply> reply = reply_of(*p.session);
    wanted.logprobs |= reply->options.sampling.logprobs >= 0;
    masked |= reply->masks != nullptr;
    spare -= n_rows - 1;
    const int n_drafts = std::min(p.drafts.head, n_ahead), n_copied = std::min(p.drafts.copied, n_ahead);
    most_drafts = std::max(most_drafts, n_drafts);
    wanted.copies |= n_copied > 0;
    windows[bounds.n_sequences] = {p.session->reply_address(), n_rows, n_drafts, 1, 0, 0, 0, 0, n_copied};
    pass.entries.push_back({p.session, reply, n_rows, static_cast<int>(bounds.n_sequences), -1});
    ++bounds.n_sequences;
    bounds.n_rows += static_cast<uint32_t>(n_rows);
    bounds.max_length = std::max(bounds.max_length, static_cast<uint32_t>(p.session->most_length()));
  }
  if (!bounds.n_sequences) return 0;
  const auto n_valid = static_cast<uint32_t>(n_valid_);
  std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
  model_->record_round_rows(*cb, pass.slot, bounds.n_sequences);
  model_->record_rows(*cb, Model::Tables::kRound, bounds);
  model_->record_logits(*cb, Model::Tables::kRound, bounds.n_rows);
  if (masked) cb->wait(masked_, n_passes_);
  model_->record_verdict(*cb, Model::Tables::kRound, pass.slot, bounds.n_sequences, bounds.n_rows, wanted,
                         n_valid);
  if (model_->has_head()) {
    if (serial_drafts_) pass.error = run_so_far(cb);
    // Behind a failure the head's tables are those of another pass.
    if (!pass.error) {
      model_->record_drafts(*cb, bounds.n_sequences, bounds, static_cast<uint32_t>(most_drafts), n_valid);
    }
  }
  const int n = static_cast<int>(bounds.n_sequences);
  commit(*cb, std::move(pass));
  begun.sessions.clear();
  return n;
}

// Its state and its drafts stand still until the masks are written: no round draws before.
Runner::Unmasked Runner::unmasked(Session& session, const std::shared_ptr<Reply>& reply,
                                  std::span<const Drawn> drawn) {
  const ReplyState& r = session.reply();
  const int n_drafts = std::clamp(std::max(r.n_drafts, r.known - r.length - 1), 0, kMaxWindow - 1);
  const auto first = session.text().begin() + r.length + 1;
  Unmasked found = {reply, r.length + 1, {}, {first, first + n_drafts}};
  for (const Drawn& token : drawn) found.drawn.push_back(token.token);
  return found;
}

// Writes the masks of what replies draw next, those that landed last, and lets the round that waits for them
// draw.
void Runner::mask_next() {
  for (const Unmasked& u : std::exchange(unmasked_, {})) write_masks(*u.reply, u.position, u.drawn, u.drafts);
  if (masked_->value() < n_landed_) masked_->signal(n_landed_);
}

// position: of the first token to draw.
void Runner::write_masks(const Reply& reply, int position, std::span<const int32_t> drawn,
                         std::span<const int32_t> drafts) {
  const size_t n_words = mask_words();
  std::vector<uint32_t> masks;
  try {
    masks.resize((1 + drafts.size()) * n_words);
    write_masks_(reply.options.grammar, drawn, drafts, masks);
  } catch (...) {  // whoever made the grammar knows why; here the reply ends
    masks.clear();
  }
  auto* const rows = reinterpret_cast<uint32_t*>(reply.masks->host());
  for (size_t i = 0; i <= drafts.size(); ++i) {
    uint32_t* const row = rows + (static_cast<size_t>(position) + i) % kMaxWindow * n_words;
    if (masks.empty()) {
      std::fill_n(row, n_words, 0);
    } else {
      std::copy_n(masks.begin() + static_cast<ptrdiff_t>(i * n_words), n_words, row);
    }
  }
}

Logprobs Runner::logprobs(const Model::Results& results, size_t row) {
  Logprobs found;
  found.chosen = results.chosen[row];
  const size_t first = row * kMaxTop;
  for (size_t k = 0; k < kMaxTop && results.top_ids[first + k] >= 0; ++k) {
    found.top.emplace_back(results.top_ids[first + k], results.top_values[first + k]);
  }
  return found;
}

std::vector<Drawn> Runner::drawn(const Model::Results& results, int window, const Reply& reply,
                                 bool hashes) const {
  const Landed& landed = results.landed[window];
  std::vector<Drawn> tokens;
  for (int i = 0; i < landed.n_tokens; ++i) {
    const auto row = static_cast<size_t>(landed.first_logits + i);
    Drawn drawn = {landed.tokens[i], {}, hashes ? results.hashes[row] : 0};
    if (reply.options.sampling.logprobs >= 0 && drawn.token >= 0) drawn.logprobs = logprobs(results, row);
    tokens.push_back(std::move(drawn));
  }
  return tokens;
}

std::vector<LandedPart> Runner::land() {
  std::vector<LandedPart> out;
  // What was left out comes behind what has landed: it was committed later.
  const auto with_left_out = [&] {
    for (LandedPart& part : std::exchange(left_out_, {})) out.push_back(std::move(part));
    return std::move(out);
  };
  mask_next();
  if (passes_.empty()) return with_left_out();
  Pass pass = std::move(passes_.front());
  passes_.pop_front();
  std::exception_ptr error = pass.error;
  try {
    done_->wait(pass.value);
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  const Model::Results results = model_->results(pass.slot);
  struct Unended {  // fail where this one throws
    const std::vector<Pass::Entry>& entries;
    size_t first = 0;
    ~Unended() {
      for (; first < entries.size(); ++first) entries[first].session->fail();
    }
  } unended = {pass.entries};
  ++n_landed_;
  for (Pass::Entry& e : pass.entries) {
    LandedPart part;
    part.session = e.session;
    part.is_round = pass.is_round;
    if (error || e.session->failed()) {
      part.error = error ? error
                         : std::make_exception_ptr(DeviceError(
                               "a pass before this one failed; close the session and start again"));
      e.session->fail();
    } else {
      const Landed* landed = e.window >= 0 ? &results.landed[e.window] : nullptr;
      const bool closed = e.session->closed();
      part.scores = std::move(e.scores);
      part.snapshots = std::move(e.snapshots);
      if (landed && !closed) {
        Reply& reply = *e.reply;
        part.tokens = drawn(results, e.window, reply, pass.hashes);
        if (reply.masks && !part.tokens.empty() && !landed->ended) {
          unmasked_.push_back(unmasked(*e.session, e.reply, part.tokens));
        }
        part.ended = landed->ended;
        part.n_head = landed->n_head;
        part.n_copied = landed->n_copied;
        if (pass.is_round && landed->n_tokens) {
          part.n_rows = 1 + landed->n_verified;
          const int start = landed->length - landed->n_tokens;
          if (start + 1 >= reply.options.n_prompt + static_cast<int>(reply.options.known.size())) {
            part.proposed = landed->n_verified;
            part.accepted = landed->n_accepted;
          }
          part.copied = landed->copied;
          reply.draft_counts.proposed += part.proposed;
          reply.draft_counts.accepted += part.accepted;
        }
      }
      const bool with_head =
          !closed && landed && e.reply->has_head && !part.tokens.empty() && part.tokens.back().token >= 0;
      if (pass.is_round) {
        e.session->end_round(e.n_rows, *landed, with_head);
      } else {
        if (e.head_length >= 0) e.session->end_head(e.head_length);
        e.session->end(e.n_rows, false);
        if (with_head) e.session->end_head(e.session->length());
      }
    }
    ++unended.first;
    out.push_back(std::move(part));
  }
  return with_left_out();
}

}  // namespace flashnext
