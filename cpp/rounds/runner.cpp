#include "rounds/runner.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext {
namespace {

// What a session needs while it generates a reply.
struct Reply final : Session::Attachment {
  Sampling sampling;
  TokenCounts counts;
  int32_t pending = -1;  // drawn, not yet fed
  Logprobs logprobs;
};

Reply& reply_of(const Session& session) {
  auto* reply = static_cast<Reply*>(session.attachment.get());
  if (!reply || reply->pending < 0)
    throw InvalidArgument("round: the session has no pending token; its prompt is not read yet");
  return *reply;
}

}  // namespace

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

void Runner::run(std::span<const Part> parts, Want want, std::vector<float>* all) {
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
  try {
    for (size_t first = 0; first == 0 || first < wanted.size(); first += at_once) {
      const size_t n = std::min(at_once, wanted.size() - first);
      std::copy_n(wanted.begin() + static_cast<ptrdiff_t>(first), n, model_->logit_rows());
      *model_->counts() = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences),
                            static_cast<int32_t>(n), 0}};
      const std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
      if (first == 0) model_->record_rows(*cb, bounds);
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
}

std::vector<float> Runner::forward(std::span<const Part> parts) {
  std::vector<float> logits;
  run(parts, Want::kAll, &logits);
  return logits;
}

void Runner::settle(Session& session) {
  if (session.settled()) return;
  const Part part = {&session, {}, true};
  run({&part, 1}, Want::kNothing, nullptr);
}

int32_t Runner::draw(Session& session, size_t logits_row) {
  Reply& reply = *static_cast<Reply*>(session.attachment.get());
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const std::span row(model_->logits() + logits_row * vocab, vocab);
  // The token takes the position behind the rows that are committed.
  // Where nothing but the largest value counts, the argmax kernel has found it.
  const int32_t token = reply.sampling.is_argmax()
                            ? model_->best()[logits_row]
                            : flashnext::draw(row, n_valid_, reply.sampling, &reply.counts, session.length());
  if (reply.sampling.penalizes()) ++reply.counts.reply[static_cast<size_t>(token)];
  if (reply.sampling.logprobs >= 0) reply.logprobs = logprobs(row, n_valid_, token, reply.sampling.logprobs);
  reply.pending = token;
  return token;
}

int32_t Runner::prompt(Session& session, std::span<const int32_t> tokens, bool last,
                       const Sampling& sampling) {
  sampling.check(n_valid_);
  if (static_cast<int>(tokens.size()) > max_chunk()) {
    throw InvalidArgument("prompt chunk of " + std::to_string(tokens.size()) + " tokens, at most " +
                          std::to_string(max_chunk()) + " are allowed");
  }
  const Part part = {&session, tokens, false};
  run({&part, 1}, last ? Want::kLast : Want::kNothing, nullptr);
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
  return last ? draw(session, 0) : -1;
}

std::vector<int32_t> Runner::round(std::span<Session* const> sessions) {
  std::vector<int32_t> pending, drawn;
  for (const Session* s : sessions) pending.push_back(reply_of(*s).pending);
  std::vector<Part> parts;
  for (size_t i = 0; i < sessions.size(); ++i) parts.push_back({sessions[i], {&pending[i], 1}, true});
  run(parts, Want::kLast, nullptr);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i]->keep(1);
    drawn.push_back(draw(*sessions[i], i));
  }
  return drawn;
}

const Logprobs& Runner::last_logprobs(const Session& session) const { return reply_of(session).logprobs; }

}  // namespace flashnext
