#include "rounds/runner.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

// Takes drafts from the longest windows until all have at most max_rows rows together.
void trim(std::vector<std::vector<int32_t>>& windows, size_t max_rows) {
  size_t rows = 0;
  for (const auto& w : windows) rows += w.size();
  for (; rows > max_rows; --rows) {
    auto& longest = *std::max_element(windows.begin(), windows.end(),
                                      [](const auto& a, const auto& b) { return a.size() < b.size(); });
    if (longest.size() <= 1) return;  // the sessions themselves are too many: refused by name
    longest.pop_back();
  }
}

// The head has absorbed all that it can know before a prompt chunk.
bool follows_prompt(const Session& s) { return s.head_length() >= s.length() - 1; }

}  // namespace

// What a session needs while it generates a reply.
struct Runner::Reply final : Session::Attachment {
  Sampling sampling;
  TokenCounts counts;
  int32_t pending = -1;         // drawn, not yet fed
  std::vector<int32_t> drafts;  // of the tokens behind it
  DraftCounts draft_counts;
};

Runner::Reply& Runner::reply_of(const Session& session) {
  auto* reply = static_cast<Reply*>(session.attachment.get());
  if (!reply || reply->pending < 0)
    throw InvalidArgument("round: the session has no pending token; its prompt is not read yet");
  return *reply;
}

Runner::Runner(std::shared_ptr<Model> model, int n_valid)
    : model_(std::move(model)), n_valid_(n_valid), done_(model_->device()->event()) {
  if (n_valid < 1 || n_valid > model_->config().vocab_size) {
    throw InvalidArgument("runner: n_valid is " + std::to_string(n_valid) +
                          ", expected 1 to the vocabulary size " +
                          std::to_string(model_->config().vocab_size));
  }
}

void Runner::check(std::span<const Part> parts) const {
  const ModelOptions& o = model_->options();
  int rows = 0, window_rows = 0;
  for (const Part& p : parts) {
    const int n = static_cast<int>(p.tokens.size());
    rows += n;
    if (p.is_window) window_rows += n;
    if (p.is_window && n > o.max_window) {
      throw InvalidArgument("window of " + std::to_string(n) + " rows, at most " +
                            std::to_string(o.max_window) + " are allowed");
    }
    if (!p.is_window && n == 0) throw InvalidArgument("prompt chunk without tokens");
    for (const int32_t t : p.tokens) {
      if (t < 0 || t >= model_->config().vocab_size) {
        throw InvalidArgument("token id " + std::to_string(t) + " is outside the vocabulary of " +
                              std::to_string(model_->config().vocab_size));
      }
    }
    for (const Part& q : parts) {
      if (&q != &p && q.session == p.session) throw InvalidArgument("a session occurs twice in one pass");
    }
  }
  if (parts.empty() || static_cast<int>(parts.size()) > o.max_sequences || window_rows > o.max_round ||
      rows > model_->max_rows()) {
    throw InvalidArgument("pass of " + std::to_string(parts.size()) + " sequences and " +
                          std::to_string(rows) + " rows; at most " + std::to_string(o.max_sequences) +
                          " sequences, " + std::to_string(o.max_round) + " window rows and " +
                          std::to_string(model_->max_rows()) + " rows are allowed");
  }
}

void Runner::run(std::span<const Part> parts, Want want, std::vector<float>* all, bool absorb) {
  check(parts);
  PassBounds bounds;
  bounds.n_sequences = static_cast<uint32_t>(parts.size());
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& p = parts[i];
    const int n = static_cast<int>(p.tokens.size());
    Sequence s = p.session->begin(n, p.is_window);
    s.first_row = static_cast<int32_t>(bounds.n_rows);
    model_->sequences()[i] = s;
    for (int r = 0; r < n; ++r) {
      const int32_t position = s.start + r;
      model_->rows()[s.first_row + r] = {p.tokens[static_cast<size_t>(r)],
                                         static_cast<int32_t>(i),
                                         position,
                                         {position, position, position}};
      if (want == Want::kAll || (want == Want::kLast && r == n - 1)) wanted.push_back(s.first_row + r);
    }
    bounds.n_rows += static_cast<uint32_t>(n);
    bounds.max_length = std::max(bounds.max_length, static_cast<uint32_t>(s.start + n));
  }
  const size_t at_once = static_cast<size_t>(model_->options().max_round),
               vocab = static_cast<size_t>(model_->config().vocab_size);
  std::vector<HeadPart> head = absorb ? prompt_head(parts) : std::vector<HeadPart>();
  try {
    for (size_t first = 0; first == 0 || first < wanted.size(); first += at_once) {
      const size_t n = std::min(at_once, wanted.size() - first);
      std::copy_n(wanted.begin() + static_cast<ptrdiff_t>(first), n, model_->logit_rows());
      *model_->counts() = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences),
                            static_cast<int32_t>(n), 0}};
      const std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
      if (first == 0) {
        model_->record_rows(*cb, bounds);
        record_head(*cb, head);
      }
      if (n) model_->record_logits(*cb, static_cast<uint32_t>(n), static_cast<uint32_t>(n_valid_));
      cb->signal(done_, ++passes_);
      cb->commit();
      done_->wait(passes_);
      if (all) all->insert(all->end(), model_->logits(), model_->logits() + n * vocab);
    }
  } catch (...) {
    for (const Part& p : parts) p.session->poison();
    throw;
  }
  for (const Part& p : parts) p.session->end(static_cast<int>(p.tokens.size()), p.is_window);
  for (const HeadPart& p : head) p.session->end_head(p.start + static_cast<int>(p.tokens.size()));
}

// What the head absorbs of prompt chunks: the last row of the chunk before, and all rows of this one but the
// last, whose next token is not known yet.
std::vector<Runner::HeadPart> Runner::prompt_head(std::span<const Part> parts) const {
  std::vector<HeadPart> head;
  if (!model_->has_head()) return head;
  int row = 0;
  for (const Part& p : parts) {
    const int n = static_cast<int>(p.tokens.size()), start = p.session->length();
    if (!p.is_window && follows_prompt(*p.session)) {
      const bool carried = start > 0;
      head.push_back({p.session,
                      carried ? row - 1 : row,
                      carried,
                      {p.tokens.begin() + (carried ? 0 : 1), p.tokens.end()},
                      carried ? start - 1 : 0,
                      row + n - 1,
                      0});
    }
    row += n;
  }
  return head;
}

void Runner::record_head(CommandBuffer& cb, std::vector<HeadPart>& parts) const {
  if (parts.empty()) return;
  const auto S = static_cast<uint32_t>(model_->config().hc_count);
  // Those with most drafts first, so that the sequences of a step are the first ones of the step before.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const HeadPart& a, const HeadPart& b) { return a.n_drafts > b.n_drafts; });
  const auto drafting = [&](int step) {
    return static_cast<uint32_t>(
        std::count_if(parts.begin(), parts.end(), [step](const HeadPart& p) { return p.n_drafts > step; }));
  };
  const auto fill_counts = [&](int step, uint32_t rows, uint32_t sequences) {
    *model_->head_tables(step).counts = {{static_cast<int32_t>(rows), static_cast<int32_t>(sequences),
                                          static_cast<int32_t>(drafting(step)),
                                          static_cast<int32_t>(rows * S)}};
  };
  const Model::HeadTables t = model_->head_tables(0);
  PassBounds bounds;
  bounds.n_sequences = static_cast<uint32_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const HeadPart& p = parts[i];
    const auto first = static_cast<int32_t>(bounds.n_rows), n = static_cast<int32_t>(p.tokens.size());
    if (p.carried) model_->carry_streams(cb, p.session->block(), static_cast<uint32_t>(i));
    Sequence s = p.session->head_sequence();
    s.first_row = first;
    s.n_rows = n;
    s.start = p.start;
    t.sequences[i] = s;
    t.logit_rows[i] = first + n - 1;
    for (int32_t j = 0; j < n; ++j) {
      const int32_t position = p.start + j;
      t.rows[first + j] = {p.tokens[static_cast<size_t>(j)],
                           static_cast<int32_t>(i),
                           position,
                           {position, position, position}};
      t.sources[first + j] =
          p.carried && j == 0 ? model_->max_rows() + static_cast<int32_t>(i) : p.source + j;
    }
    bounds.n_rows += static_cast<uint32_t>(n);
    bounds.max_length = std::max(bounds.max_length, static_cast<uint32_t>(p.start + n));
  }
  cb.barrier();
  if (bounds.n_rows) {
    fill_counts(0, bounds.n_rows, bounds.n_sequences);
    model_->record_head(cb, 0, bounds, drafting(0), static_cast<uint32_t>(n_valid_));
  }
  for (const HeadPart& p : parts) {
    if (p.last_row >= 0) model_->keep_streams(cb, static_cast<uint32_t>(p.last_row), p.session->block());
  }
  for (int step = 1; step < parts.front().n_drafts; ++step) {
    const uint32_t n = drafting(step);
    std::copy_n(t.sequences, n, model_->head_tables(step).sequences);
    fill_counts(step, n, n);
    model_->record_head(cb, step, {n, n, bounds.max_length + static_cast<uint32_t>(step)}, n,
                        static_cast<uint32_t>(n_valid_));
  }
  cb.barrier();
}

void Runner::draft(std::vector<HeadPart> parts) {
  if (parts.empty()) return;
  const ModelOptions& o = model_->options();
  for (HeadPart& p : parts) {
    // The next round needs a row for the pending token and each draft.
    const int length = p.start + static_cast<int>(p.tokens.size());
    const int room = p.session->reserve(length + 1 + p.n_drafts) - length - 1;
    p.n_drafts = std::clamp(p.n_drafts, 0, std::max(0, std::min(room, o.max_window - 1)));
  }
  try {
    const std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
    record_head(*cb, parts);
    cb->signal(done_, ++passes_);
    cb->commit();
    done_->wait(passes_);
  } catch (...) {
    for (const HeadPart& p : parts) p.session->poison();
    throw;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const HeadPart& p = parts[i];
    p.session->end_head(p.start + static_cast<int>(p.tokens.size()));
    Reply& reply = reply_of(*p.session);
    reply.drafts.clear();
    for (int step = 0; step < p.n_drafts; ++step) reply.drafts.push_back(model_->head_tables(step).best[i]);
  }
}

std::vector<float> Runner::forward(std::span<const Part> parts) {
  std::vector<float> logits;
  run(parts, Want::kAll, &logits, true);
  return logits;
}

void Runner::settle(Session& session) {
  if (session.settled()) return;
  const Part part = {&session, {}, true};
  run({&part, 1}, Want::kNothing, nullptr, false);
}

// Draws from a row of logits; the token takes `position`.
Drawn Runner::draw(Reply& reply, size_t logits_row, int64_t position) const {
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const std::span row(model_->logits() + logits_row * vocab, vocab);
  // Where nothing but the largest value counts, the argmax kernel has found it.
  Drawn drawn = {reply.sampling.is_argmax()
                     ? model_->best()[logits_row]
                     : flashnext::draw(row, n_valid_, reply.sampling, &reply.counts, position),
                 {}};
  if (std::isnan(row[static_cast<size_t>(drawn.token)])) {  // NaN is drawn only where there is nothing else
    reply.pending = -1;
    return {-1, {}};
  }
  const auto token = static_cast<size_t>(drawn.token);
  if (reply.sampling.penalizes()) ++reply.counts.reply[token];
  if (reply.sampling.logprobs >= 0)
    drawn.logprobs = logprobs(row, n_valid_, drawn.token, reply.sampling.logprobs);
  reply.pending = drawn.token;
  return drawn;
}

std::vector<Drawn> Runner::prompt(Session& session, std::span<const int32_t> tokens, bool last,
                                  const Sampling& sampling, int n_drafts) {
  sampling.check(n_valid_);
  if (static_cast<int>(tokens.size()) > max_chunk()) {
    throw InvalidArgument("prompt chunk of " + std::to_string(tokens.size()) + " tokens, at most " +
                          std::to_string(max_chunk()) + " are allowed");
  }
  const Part part = {&session, tokens, false};
  run({&part, 1}, last ? Want::kLast : Want::kNothing, nullptr, true);
  if (!session.attachment) session.attachment = std::make_unique<Reply>();
  Reply& reply = *static_cast<Reply*>(session.attachment.get());
  reply.sampling = sampling;
  if (sampling.penalizes()) {
    reply.counts.prompt.resize(static_cast<size_t>(n_valid_));
    reply.counts.reply.resize(static_cast<size_t>(n_valid_));
    for (const int32_t t : tokens) {
      if (t < n_valid_) ++reply.counts.prompt[static_cast<size_t>(t)];
    }
  }
  if (!last) return {};
  const int length = session.length();
  const Drawn drawn = draw(reply, 0, length);
  if (drawn.token >= 0 && model_->has_head() && session.head_length() == length - 1) {
    draft({{&session, static_cast<int>(tokens.size()) - 1, false, {drawn.token}, length - 1, -1, n_drafts}});
  }
  return {drawn};
}

std::vector<std::vector<Drawn>> Runner::round(std::span<Session* const> sessions,
                                              std::span<const int> n_drafts) {
  if (n_drafts.size() != sessions.size()) {
    throw InvalidArgument("round: " + std::to_string(n_drafts.size()) + " draft limits for " +
                          std::to_string(sessions.size()) + " sessions");
  }
  std::vector<std::vector<int32_t>> windows;
  std::vector<Part> parts;
  for (const Session* s : sessions) {
    const Reply& reply = reply_of(*s);
    windows.push_back({reply.pending});
    windows.back().insert(windows.back().end(), reply.drafts.begin(), reply.drafts.end());
  }
  trim(windows, static_cast<size_t>(model_->options().max_round));
  for (size_t i = 0; i < sessions.size(); ++i) parts.push_back({sessions[i], windows[i], true});
  run(parts, Want::kAll, nullptr, false);
  std::vector<std::vector<Drawn>> all;
  std::vector<HeadPart> head;
  int row = 0;
  for (size_t i = 0; i < sessions.size(); ++i) {
    Session& session = *sessions[i];
    Reply& reply = reply_of(session);
    const std::vector<int32_t>& window = windows[i];
    const int start = session.length();
    std::vector<Drawn> drawn;
    std::vector<int32_t> next;
    for (size_t r = 0; r < window.size(); ++r) {
      if (r > 0 && window[r] != next.back()) break;
      drawn.push_back(draw(reply, static_cast<size_t>(row) + r, start + static_cast<int64_t>(r) + 1));
      next.push_back(drawn.back().token);
      if (next.back() < 0) break;
    }
    const int kept = static_cast<int>(drawn.size());
    session.keep(kept);
    reply.drafts.clear();
    reply.draft_counts.proposed += static_cast<int>(window.size()) - 1;
    reply.draft_counts.accepted += kept - 1;
    if (next.back() >= 0 && model_->has_head() && session.head_length() == start) {
      head.push_back({&session, row, false, std::move(next), start, row + kept - 1, n_drafts[i]});
    }
    row += static_cast<int>(window.size());
    all.push_back(std::move(drawn));
  }
  draft(std::move(head));
  return all;
}

std::span<const int32_t> Runner::drafts(const Session& session) const { return reply_of(session).drafts; }
const DraftCounts& Runner::draft_counts(const Session& session) const {
  return reply_of(session).draft_counts;
}

}  // namespace flashnext
