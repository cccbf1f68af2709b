// Prompt passes: chunks of one prompt or more, and what the draft head absorbs of them.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "rounds/reply.h"

namespace flashnext {
namespace {

Row row_of(int32_t token, size_t sequence, int32_t position, const FrameRef& frame) {
  const Axes rotary = axes_of(frame, position);
  return {token, static_cast<int32_t>(sequence), position, {rotary[0], rotary[1], rotary[2]}};
}

// Behind the last row of a prompt, n rows of it in this pass, all are text, and their rotary positions follow
// from where it stands.
void require_text(const Session& session, int n, std::span<const Shown> media) {
  const FrameRef frame = session.frame();
  const int position = session.length() + n - 1;
  const int32_t expected = position + delta_of(frame);
  const bool shows =
      std::any_of(media.begin(), media.end(), [&](const Shown& m) { return m.first + m.n == n; });
  if (shows || axes_of(frame, position) != Axes{expected, expected, expected}) {
    throw InvalidArgument("prompt: row " + std::to_string(position) +
                          ", its last, shows media; at least one row of text has to stand behind them");
  }
}

}  // namespace

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
    check_ids(p.tokens);
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

void Runner::check_marks(const ChunkPart& p) const {
  if (p.marks.empty()) return;
  int32_t before = 0;
  for (const int32_t mark : p.marks) {
    if (mark <= before || mark > static_cast<int32_t>(p.tokens.size())) {
      throw InvalidArgument("prompt chunk of " + std::to_string(p.tokens.size()) + " tokens with a mark at " +
                            std::to_string(mark) + ", expected ascending ones from 1 to all tokens");
    }
    before = mark;
  }
  if (model_->has_head() && !follows_prompt(*p.session)) {
    throw InvalidArgument("prompt chunk with marks: the draft head has not absorbed what is before it");
  }
}

void Runner::check_media(std::span<const Shown> media, size_t n_tokens) const {
  for (const Shown& m : media) {
    if (!m.features || m.features->model() != model_.get()) {
      throw InvalidArgument("prompt chunk with features of no model, or of another one");
    }
    if (m.first < 0 || m.n < 1 || m.from < 0 ||
        static_cast<size_t>(m.first) + static_cast<size_t>(m.n) > n_tokens ||
        int64_t{m.from} + m.n > m.features->n()) {
      throw InvalidArgument("prompt chunk of " + std::to_string(n_tokens) + " tokens whose rows " +
                            std::to_string(m.first) + " and on show " + std::to_string(m.n) + " of " +
                            std::to_string(m.features->n()) + " features from " + std::to_string(m.from) +
                            "; both must have so many");
    }
  }
}

// The snapshots of a part that has begun, for kernels to fill as they go by. n_marks: of the pass.
std::vector<SnapshotRef> Runner::tap(const ChunkPart& p, Sequence& s, int& n_marks) const {
  const Model::HostTables tables = model_->host_tables();
  std::vector<SnapshotRef> snapshots(p.marks.size());
  s.marks = tables.marks_address + static_cast<size_t>(n_marks) * sizeof(Mark);
  for (size_t i = 0; i < snapshots.size(); ++i) {
    try {
      snapshots[i] = p.session->tap(s.start + p.marks[i]);
    } catch (const OutOfMemory&) {  // of the device or, below, of the host: the chunk is read all the same
      continue;
    } catch (const std::bad_alloc&) {
      continue;
    }
    tables.marks[n_marks++] = {snapshots[i]->held()->block->address(), p.marks[i], 0};
    ++s.n_marks;
  }
  return snapshots;
}

// Begins a part's session and fills the host's tables for it; returns its first row.
int32_t Runner::begin_part(const Part& p, PassBounds& bounds) {
  const Model::HostTables tables = model_->host_tables();
  const int n = static_cast<int>(p.tokens.size());
  Sequence s = p.session->begin(n, p.is_window);
  s.first_row = static_cast<int32_t>(bounds.n_rows);
  tables.sequences[bounds.n_sequences] = s;
  const FrameRef frame = p.session->frame();
  for (int r = 0; r < n; ++r) {
    const int32_t token = p.tokens[static_cast<size_t>(r)];
    tables.rows[s.first_row + r] = row_of(token, bounds.n_sequences, s.start + r, frame);
    tables.features[s.first_row + r] = 0;
  }
  for (const Shown& m : p.media) {
    for (int i = 0; i < m.n; ++i)
      tables.features[s.first_row + m.first + i] = m.features->address(m.from + i);
  }
  bounds.shows_media |= !p.media.empty();
  if (!p.is_window) std::copy(p.tokens.begin(), p.tokens.end(), p.session->text().begin() + s.start);
  ++bounds.n_sequences;
  bounds.n_rows += static_cast<uint32_t>(n);
  bounds.max_length = std::max(bounds.max_length, static_cast<uint32_t>(s.start + n));
  return s.first_row;
}

// What the head absorbs of prompt chunks: the last row of the chunk before, and all rows of this one but the
// last, whose next token is not known yet.
std::vector<Runner::AbsorbPart> Runner::absorb_parts(std::span<const Part> parts) const {
  std::vector<AbsorbPart> absorbed;
  if (!model_->has_head()) return absorbed;
  int row = 0;
  for (const Part& p : parts) {
    const int n = static_cast<int>(p.tokens.size()), start = p.session->length();
    if (!p.is_window && follows_prompt(*p.session)) {
      const bool carried = start > 0;
      absorbed.push_back({p.session,
                          carried ? row - 1 : row,
                          carried,
                          {p.tokens.begin() + (carried ? 0 : 1), p.tokens.end()},
                          carried ? start - 1 : 0,
                          row + n - 1});
    }
    row += n;
  }
  return absorbed;
}

void Runner::record_absorb(CommandBuffer& cb, const std::vector<AbsorbPart>& parts) const {
  if (parts.empty()) return;
  const Model::HostTables t = model_->host_tables();
  PassBounds bounds;
  bounds.n_sequences = static_cast<uint32_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const AbsorbPart& p = parts[i];
    const auto first = static_cast<int32_t>(bounds.n_rows), n = static_cast<int32_t>(p.tokens.size());
    if (p.carried) model_->carry_streams(cb, p.session->block(), static_cast<uint32_t>(i));
    Sequence s = p.session->head_sequence();
    s.first_row = first;
    s.n_rows = n;
    s.start = p.start;
    t.head_sequences[i] = s;
    const FrameRef frame = p.session->frame();
    for (int32_t j = 0; j < n; ++j) {
      t.head_rows[first + j] = row_of(p.tokens[static_cast<size_t>(j)], i, p.start + j, frame);
      t.head_sources[first + j] =
          p.carried && j == 0 ? model_->max_rows() + static_cast<int32_t>(i) : p.source + j;
    }
    bounds.n_rows += static_cast<uint32_t>(n);
    bounds.max_length = std::max(bounds.max_length, static_cast<uint32_t>(p.start + n));
  }
  *t.head_counts = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences), 0,
                     static_cast<int32_t>(bounds.n_rows) * model_->config().hc_count}};
  cb.barrier();
  if (bounds.n_rows) model_->record_absorb(cb, bounds);
  for (const AbsorbPart& p : parts) {
    model_->keep_streams(cb, static_cast<uint32_t>(p.last_row), p.session->block());
  }
  cb.barrier();
}

// The streams of the rows before marks go to their snapshots, for the draft head to go on from.
void Runner::keep_streams(CommandBuffer& cb, std::span<const ChunkPart* const> chunks,
                          std::span<const int32_t> first_rows, const Pass& pass) const {
  if (!model_->has_head()) return;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const std::vector<SnapshotRef>& snapshots = pass.entries[i].snapshots;
    for (size_t m = 0; m < snapshots.size(); ++m) {
      if (!snapshots[m]) continue;
      const auto row = static_cast<uint32_t>(first_rows[i] + chunks[i]->marks[m] - 1);
      model_->keep_streams(cb, row, {snapshots[m]->held()->block, 0});
    }
  }
}

// Log-probabilities of given tokens. The logits of all rows come some at a time and the host's tables are
// one, so each time is waited for; returns the command buffer in which the pass goes on. What fails is the
// pass's.
std::unique_ptr<CommandBuffer> Runner::score(std::unique_ptr<CommandBuffer> cb,
                                             std::span<const ChunkPart* const> chunks,
                                             std::span<const int32_t> first_rows, Pass& pass) {
  struct Scored {
    size_t chunk;
    int32_t row, token;
  };
  std::vector<Scored> scored;
  for (size_t i = 0; i < chunks.size(); ++i) {
    int32_t row = first_rows[i];
    for (const int32_t token : chunks[i]->scored) scored.push_back({i, row++, token});
  }
  const Model::HostTables tables = model_->host_tables();
  const size_t at_once = static_cast<size_t>(max_round());
  for (size_t first = 0; first < scored.size(); first += at_once) {
    const size_t n = std::min(at_once, scored.size() - first);
    for (size_t i = 0; i < n; ++i) {
      const Scored& s = scored[first + i];
      tables.logit_rows[i] = s.row;
      tables.draws[i] = {chunks[s.chunk]->session->reply_address(), 0, 0};
      tables.scored[i] = s.token;
    }
    tables.counts->n[kCountLogits] = static_cast<int32_t>(n);
    model_->record_logits(*cb, Model::Tables::kHost, static_cast<uint32_t>(n));
    model_->record_scores(*cb, pass.slot, static_cast<uint32_t>(n), static_cast<uint32_t>(n_valid_));
    pass.error = run_so_far(cb);
    if (pass.error) break;
    const Model::Results results = model_->results(pass.slot);
    for (size_t i = 0; i < n; ++i) {
      const Scored& s = scored[first + i];
      pass.entries[s.chunk].scores.push_back({s.token, logprobs(results, i)});
    }
  }
  return cb;
}

void Runner::commit_prompt(std::span<const ChunkPart> parts) {
  // The host's tables are one, and scored tokens lie where rounds in flight draw theirs.
  const bool scores =
      std::any_of(parts.begin(), parts.end(), [](const auto& p) { return !p.scored.empty(); });
  while (std::any_of(passes_.begin(), passes_.end(), [](const Pass& p) { return !p.is_round; }) ||
         in_flight() == kMost || (scores && in_flight())) {
    for (LandedPart& part : land()) left_out_.push_back(std::move(part));
  }
  Pass pass;
  pass.slot = next_slot_;
  pass.hashes = wanted_.hashes;
  std::vector<Part> taken;
  for (const ChunkPart& p : parts) taken.push_back({p.session.get(), p.tokens, false});
  check(taken);
  const auto n_last = std::count_if(parts.begin(), parts.end(), [](const ChunkPart& p) { return p.last; });
  if (n_last > max_round()) {
    throw InvalidArgument("prompt pass: " + std::to_string(n_last) + " prompts end in it, at most " +
                          std::to_string(max_round()) + " are allowed");
  }
  // A part that cannot begin is left out: a page that is missing is its own alone.
  // The lists stay in step: once a part has begun, nothing of its turn can fail but the whole pass.
  Begun begun;
  std::vector<const ChunkPart*> chunks;
  taken.clear();
  std::vector<int32_t> first_rows;
  begun.sessions.reserve(parts.size());
  chunks.reserve(parts.size());
  taken.reserve(parts.size());
  first_rows.reserve(parts.size());
  pass.entries.reserve(parts.size());
  const Model::HostTables tables = model_->host_tables();
  PassBounds bounds;
  int n_marks = 0;
  for (const ChunkPart& p : parts) {
    if (p.session->closed()) continue;
    const Part part = {p.session.get(), p.tokens, false, p.media};
    try {
      const std::shared_ptr<Reply> reply = p.last || !p.scored.empty() ? reply_of(*p.session) : nullptr;
      check_ids(p.scored);
      check_marks(p);
      check_media(p.media, p.tokens.size());
      if (p.last) require_text(*p.session, static_cast<int>(p.tokens.size()), p.media);
      if (p.scored.size() > p.tokens.size()) {
        throw InvalidArgument("prompt chunk of " + std::to_string(p.tokens.size()) + " tokens with " +
                              std::to_string(p.scored.size()) + " scored ones, expected at most as many");
      }
      first_rows.push_back(begin_part(part, bounds));
      begun.sessions.push_back(p.session);
      pass.entries.push_back({p.session, reply, static_cast<int>(p.tokens.size()), -1, -1});
    } catch (...) {
      leave_out(p.session);
      continue;
    }
    taken.push_back(part);
    chunks.push_back(&p);
    pass.entries.back().media = p.media;
    pass.entries.back().snapshots = tap(p, tables.sequences[bounds.n_sequences - 1], n_marks);
  }
  if (taken.empty()) return;

  const std::vector<AbsorbPart> absorbed = absorb_parts(taken);
  std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
  model_->record_rows(*cb, Model::Tables::kHost, bounds);
  record_absorb(*cb, absorbed);
  keep_streams(*cb, chunks, first_rows, pass);
  *tables.counts = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences), 0, 0}};
  cb = score(std::move(cb), chunks, first_rows, pass);
  Window* windows = model_->windows(pass.slot);
  uint32_t n_windows = 0;
  int most_drafts = 0;
  Model::Wanted wanted = wanted_;
  PassBounds head;
  for (size_t i = 0; i < taken.size(); ++i) {
    const ChunkPart& p = *chunks[i];
    const int n = static_cast<int>(p.tokens.size()), length = p.session->length() + n;
    Pass::Entry& entry = pass.entries[i];
    for (const AbsorbPart& a : absorbed) {
      if (a.session == p.session.get()) entry.head_length = a.start + static_cast<int>(a.tokens.size());
    }
    if (!p.last) continue;
    entry.window = static_cast<int>(n_windows);
    const Reply& reply = *entry.reply;
    wanted.logprobs |= reply.options.sampling.logprobs >= 0;
    fill_counts(*p.session, reply, length);
    if (reply.masks) write_masks(reply, length, {}, {});
    const int32_t last_row = first_rows[i] + n - 1;
    const int most = std::clamp(std::max(p.drafts.head, p.drafts.copied), 0, max_window() - 1);
    const int room = std::clamp(p.session->reserve(length + most) - length, 0, most);
    const int n_drafts = std::min(p.drafts.head, room), n_copied = std::min(p.drafts.copied, room);
    windows[n_windows] = {p.session->reply_address(),      1,          n_drafts, 0, last_row, 1,
                          static_cast<int32_t>(n_windows), length - 1, n_copied};
    tables.logit_rows[n_windows] = last_row;
    tables.draws[n_windows] = {p.session->reply_address(), length, length};
    ++n_windows;
    most_drafts = std::max(most_drafts, n_drafts);
    wanted.copies |= n_copied > 0;
    head.max_length = std::max(head.max_length, static_cast<uint32_t>(length));
  }
  tables.counts->n[kCountLogits] = static_cast<int32_t>(n_windows);
  if (n_windows && !pass.error) {
    model_->record_logits(*cb, Model::Tables::kHost, n_windows);
    model_->record_verdict(*cb, Model::Tables::kHost, pass.slot, n_windows, n_windows, wanted,
                           static_cast<uint32_t>(n_valid_));
    if (model_->has_head()) {
      head.n_rows = head.n_sequences = n_windows;
      model_->record_drafts(*cb, n_windows, head, static_cast<uint32_t>(most_drafts),
                            static_cast<uint32_t>(n_valid_));
    }
  }
  commit(*cb, std::move(pass));
  begun.sessions.clear();
}

}  // namespace flashnext
