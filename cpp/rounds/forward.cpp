// One pass that is committed and landed, for tests and for whoever needs no more.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "rounds/reply.h"

namespace flashnext {

void Runner::run(std::span<const Part> parts, std::vector<float>* all) {
  if (in_flight()) throw InvalidArgument("forward: passes are in flight");
  check(parts);
  for (const Part& p : parts) check_media(p.media, p.tokens.size());
  const std::vector<AbsorbPart> absorbed = all ? absorb_parts(parts) : std::vector<AbsorbPart>();
  PassBounds bounds;
  try {
    for (const Part& p : parts) begin_part(p, bounds);
  } catch (...) {
    for (size_t i = 0; i < bounds.n_sequences; ++i) parts[i].session->fail();
    throw;
  }
  const Model::HostTables tables = model_->host_tables();
  const size_t at_once = static_cast<size_t>(max_round()),
               vocab = static_cast<size_t>(model_->config().vocab_size), n_wanted = all ? bounds.n_rows : 0;
  try {
    for (size_t first = 0; first == 0 || first < n_wanted; first += at_once) {
      const size_t n = std::min(at_once, n_wanted - first);
      for (size_t i = 0; i < n; ++i) tables.logit_rows[i] = static_cast<int32_t>(first + i);
      *tables.counts = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences),
                         static_cast<int32_t>(n), 0}};
      const std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
      if (first == 0) {
        model_->record_rows(*cb, Model::Tables::kHost, bounds);
        record_absorb(*cb, absorbed);
      }
      if (n) model_->record_logits(*cb, Model::Tables::kHost, static_cast<uint32_t>(n));
      cb->signal(done_, ++n_committed_);
      cb->commit();
      done_->wait(n_committed_);
      if (all) all->insert(all->end(), model_->logits(), model_->logits() + n * vocab);
    }
  } catch (...) {
    for (const Part& p : parts) p.session->fail();
    throw;
  }
  for (const Part& p : parts) p.session->end(static_cast<int>(p.tokens.size()), p.is_window);
  for (const AbsorbPart& p : absorbed) p.session->end_head(p.start + static_cast<int>(p.tokens.size()));
}

std::vector<float> Runner::forward(std::span<const Part> parts) {
  std::vector<float> logits;
  run(parts, &logits);
  return logits;
}

void Runner::settle(Session& session) {
  if (session.settled()) return;
  const Part part = {&session, {}, true};
  run({&part, 1}, nullptr);
}

SnapshotRef Runner::snapshot(Session& session) {
  settle(session);
  return session.snapshot();
}

std::vector<Drawn> Runner::prompt(const SessionRef& session, std::span<const int32_t> tokens, bool last,
                                  const Sampling& sampling, int n_drafts, std::span<const Shown> media) {
  if (static_cast<int>(tokens.size()) > max_chunk()) {
    throw InvalidArgument("prompt chunk of " + std::to_string(tokens.size()) + " tokens, at most " +
                          std::to_string(max_chunk()) + " are allowed");
  }
  sampling.check(n_valid_);
  if (last) begin(*session, {sampling, {}, session->length() + static_cast<int>(tokens.size()), 0, {}});
  const ChunkPart part = {session, {tokens.begin(), tokens.end()}, last, {}, {n_drafts, 0},
                          {},      {media.begin(), media.end()}};
  commit_prompt({&part, 1});
  std::vector<Drawn> out;
  for (const LandedPart& landed : land()) {
    if (landed.error) std::rethrow_exception(landed.error);
    out = landed.tokens;
  }
  return out;
}

std::vector<std::vector<Drawn>> Runner::round(std::span<const SessionRef> sessions,
                                              std::span<const int> n_drafts) {
  if (n_drafts.size() != sessions.size()) {
    throw InvalidArgument("round: " + std::to_string(n_drafts.size()) + " draft limits for " +
                          std::to_string(sessions.size()) + " sessions");
  }
  std::vector<RoundPart> parts;
  for (size_t i = 0; i < sessions.size(); ++i) parts.push_back({sessions[i], max_window(), {n_drafts[i], 0}});
  commit_round(parts);
  std::vector<std::vector<Drawn>> out(sessions.size());
  for (LandedPart& landed : land()) {
    if (landed.error) std::rethrow_exception(landed.error);
    const auto at = std::find(sessions.begin(), sessions.end(), landed.session);
    out[static_cast<size_t>(at - sessions.begin())] = std::move(landed.tokens);
  }
  return out;
}

}  // namespace flashnext
