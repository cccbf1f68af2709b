#include "rounds/runner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace flashnext {
namespace {

// The head has absorbed all that it can know before a prompt chunk.
bool follows_prompt(const Session& s) { return s.head_length() >= s.length() - 1; }

Row row_of(int32_t token, size_t sequence, int32_t position) {
  return {token, static_cast<int32_t>(sequence), position, {position, position, position}};
}

template <class T>
BufferRef buffer_of(Device& device, const std::vector<T>& values) {
  BufferRef buffer = device.allocate(std::max<size_t>(1, values.size()) * sizeof(T));
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(buffer->host()));
  return buffer;
}

// Sessions that have begun a pass; they fail where it is not committed after all.
struct Begun {
  std::vector<SessionRef> sessions;
  ~Begun() {
    for (const SessionRef& s : sessions) s->fail();
  }
};

}  // namespace

// What the host keeps of a session's reply.
struct Runner::Reply final : Session::Attachment {
  ReplyOptions options;
  BufferRef counts, bias, stops;  // of ReplyState
  bool has_head = false;
  DraftCounts draft_counts;
};

std::shared_ptr<Runner::Reply> Runner::reply_of(const Session& session) {
  auto reply = std::static_pointer_cast<Reply>(session.attached());
  if (!reply) throw InvalidArgument("session: it has no reply; begin() comes first");
  return reply;
}

Runner::Runner(std::shared_ptr<Model> model, int n_valid, bool serial_drafts)
    : model_(std::move(model)),
      n_valid_(n_valid),
      serial_drafts_(serial_drafts),
      done_(model_->device()->event()) {
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

void Runner::check_ids(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= model_->config().vocab_size) {
      throw InvalidArgument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                            std::to_string(model_->config().vocab_size));
    }
  }
}

void Runner::begin(Session& session, const ReplyOptions& options) {
  options.sampling.check(n_valid_);
  check_ids(options.stop_ids);
  check_ids(options.known);
  const auto reply = std::make_shared<Reply>();
  reply->options = options;
  Device& device = *model_->device();
  const Sampling& s = options.sampling;
  struct Begins {  // keeps the session's memory in place, whoever closes it
    Session& session;
    std::shared_ptr<Reply> reply;
    ~Begins() { session.end_begin(std::move(reply)); }
  };
  ReplyState& r = session.begin_reply();
  Begins begins = {session, nullptr};
  const auto context = model_->options().context;
  r.end = options.end > 0 ? std::min(options.end, context + 1) : context + 1;
  r.known = options.known.empty() ? 0 : options.n_prompt + static_cast<int32_t>(options.known.size());
  if (r.known >= r.end || options.n_prompt < 0) {
    throw InvalidArgument("reply: " + std::to_string(options.n_prompt) + " tokens of prompt and " +
                          std::to_string(options.known.size()) +
                          " known tokens do not stand before its end at " + std::to_string(r.end));
  }
  std::copy(options.known.begin(), options.known.end(), session.text().begin() + options.n_prompt);
  r.seed = s.seed;
  r.temperature = s.temperature;
  r.top_p = s.top_p;
  r.min_p = s.min_p;
  r.presence = s.presence;
  r.frequency = s.frequency;
  r.repetition = s.repetition;
  r.top_k = s.top_k;
  r.n_logprobs = s.logprobs < 0 ? -1 : std::min(s.logprobs, kMaxTop);
  std::vector<BiasEntry> bias;
  for (const auto& [id, value] : s.bias) bias.push_back({id, value});
  std::sort(bias.begin(), bias.end(), [](const BiasEntry& a, const BiasEntry& b) { return a.id < b.id; });
  reply->bias = buffer_of(device, bias);
  reply->stops = buffer_of(device, options.stop_ids);
  r.bias = reply->bias->address();
  r.n_bias = static_cast<int32_t>(bias.size());
  r.stops = reply->stops->address();
  r.n_stops = static_cast<int32_t>(options.stop_ids.size());
  if (s.penalizes()) {
    reply->counts = device.allocate(2 * static_cast<size_t>(n_valid_) * sizeof(int32_t));
    r.counts = reply->counts->address();
  } else {
    r.counts = 0;
  }
  r.n_drafts = r.copied = r.ended = 0;
  reply->has_head = model_->has_head() && follows_prompt(session);
  r.has_head = reply->has_head;
  begins.reply = reply;
}

// Counts what the session has read, when the pass that reads the last of it is about to be committed.
void Runner::fill_counts(Session& session, const Reply& reply, int n_read) const {
  if (!reply.counts) return;
  auto* counts = reinterpret_cast<int32_t*>(reply.counts->host());
  const std::span<const int32_t> text = session.text();
  for (int at = 0; at < n_read; ++at) {
    const int32_t token = text[static_cast<size_t>(at)];
    if (token < n_valid_) ++counts[(at < reply.options.n_prompt ? 0 : n_valid_) + token];
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

// Begins a part's session and fills the host's tables for it; returns its first row.
int32_t Runner::begin_part(const Part& p, PassBounds& bounds) {
  const Model::HostTables tables = model_->host_tables();
  const int n = static_cast<int>(p.tokens.size());
  Sequence s = p.session->begin(n, p.is_window);
  s.first_row = static_cast<int32_t>(bounds.n_rows);
  tables.sequences[bounds.n_sequences] = s;
  for (int r = 0; r < n; ++r) {
    tables.rows[s.first_row + r] = row_of(p.tokens[static_cast<size_t>(r)], bounds.n_sequences, s.start + r);
  }
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
    for (int32_t j = 0; j < n; ++j) {
      t.head_rows[first + j] = row_of(p.tokens[static_cast<size_t>(j)], i, p.start + j);
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
  next_slot_ = (next_slot_ + 1) % Model::kSlots;
}

void Runner::commit_prompt(std::span<const ChunkPart> parts) {
  // The host's tables are one.
  while (std::any_of(passes_.begin(), passes_.end(), [](const Pass& p) { return !p.is_round; }) ||
         in_flight() == kMost) {
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
  Begun begun;
  std::vector<const ChunkPart*> chunks;
  taken.clear();
  std::vector<int32_t> first_rows;
  const Model::HostTables tables = model_->host_tables();
  PassBounds bounds;
  for (const ChunkPart& p : parts) {
    if (p.session->closed()) continue;
    const Part part = {p.session.get(), p.tokens, false};
    try {
      const std::shared_ptr<Reply> reply = p.last ? reply_of(*p.session) : nullptr;
      begun.sessions.reserve(parts.size());
      first_rows.push_back(begin_part(part, bounds));
      begun.sessions.push_back(p.session);
      pass.entries.push_back({p.session, reply, static_cast<int>(p.tokens.size()), -1, -1});
    } catch (...) {
      leave_out(p.session);
      continue;
    }
    taken.push_back(part);
    chunks.push_back(&p);
  }
  if (taken.empty()) return;

  const std::vector<AbsorbPart> absorbed = absorb_parts(taken);
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
  *tables.counts = {{static_cast<int32_t>(bounds.n_rows), static_cast<int32_t>(bounds.n_sequences),
                     static_cast<int32_t>(n_windows), 0}};
  const std::unique_ptr<CommandBuffer> cb = model_->device()->command_buffer();
  model_->record_rows(*cb, Model::Tables::kHost, bounds);
  record_absorb(*cb, absorbed);
  if (n_windows) {
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

int Runner::commit_round(std::span<const RoundPart> parts) {
  if (in_flight() == kMost) throw Error("round: too many passes are in flight");
  Pass pass;
  pass.slot = next_slot_;
  pass.hashes = wanted_.hashes;
  pass.is_round = true;
  Window* windows = model_->windows(pass.slot);
  PassBounds bounds;
  int most_drafts = 0;
  Model::Wanted wanted = wanted_;
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
  model_->record_verdict(*cb, Model::Tables::kRound, pass.slot, bounds.n_sequences, bounds.n_rows, wanted,
                         n_valid);
  if (model_->has_head()) {
    if (serial_drafts_) {
      cb->signal(done_, ++n_committed_);
      cb->commit();
      try {
        done_->wait(n_committed_);
      } catch (...) {
        pass.error = std::current_exception();
      }
      cb = model_->device()->command_buffer();
    }
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

std::vector<Drawn> Runner::drawn(const Model::Results& results, int window, const Reply& reply,
                                 bool hashes) const {
  const Landed& landed = results.landed[window];
  std::vector<Drawn> tokens;
  for (int i = 0; i < landed.n_tokens; ++i) {
    const auto row = static_cast<size_t>(landed.first_logits + i);
    Drawn drawn = {landed.tokens[i], {}, hashes ? results.hashes[row] : 0};
    if (reply.options.sampling.logprobs >= 0 && drawn.token >= 0) {
      drawn.logprobs.chosen = results.chosen[row];
      const size_t first = row * kMaxTop;
      for (size_t k = 0; k < kMaxTop && results.top_ids[first + k] >= 0; ++k) {
        drawn.logprobs.top.emplace_back(results.top_ids[first + k], results.top_values[first + k]);
      }
    }
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
  if (passes_.empty()) return with_left_out();
  const Pass pass = std::move(passes_.front());
  passes_.pop_front();
  std::exception_ptr error = pass.error;
  try {
    done_->wait(pass.value);
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  const Model::Results results = model_->results(pass.slot);
  for (const Pass::Entry& e : pass.entries) {
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
      if (landed && !closed) {
        Reply& reply = *e.reply;
        part.tokens = drawn(results, e.window, reply, pass.hashes);
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
    out.push_back(std::move(part));
  }
  return with_left_out();
}

void Runner::run(std::span<const Part> parts, std::vector<float>* all) {
  if (in_flight()) throw InvalidArgument("forward: passes are in flight");
  check(parts);
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

std::vector<Drawn> Runner::prompt(const SessionRef& session, std::span<const int32_t> tokens, bool last,
                                  const Sampling& sampling, int n_drafts) {
  if (static_cast<int>(tokens.size()) > max_chunk()) {
    throw InvalidArgument("prompt chunk of " + std::to_string(tokens.size()) + " tokens, at most " +
                          std::to_string(max_chunk()) + " are allowed");
  }
  sampling.check(n_valid_);
  if (last) begin(*session, {sampling, {}, session->length() + static_cast<int>(tokens.size()), 0, {}});
  const ChunkPart part = {session, {tokens.begin(), tokens.end()}, last, {n_drafts, 0}};
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

std::vector<int32_t> Runner::drafts(Session& session) const {
  reply_of(session);
  const ReplyState& r = session.reply();
  const auto first = session.text().begin() + r.length + 1;
  return {first, first + r.n_drafts};
}

DraftCounts Runner::draft_counts(const Session& session) const { return reply_of(session)->draft_counts; }

std::optional<ReplyLimits> Runner::limits(const Session& session) const {
  if (session.closed()) return std::nullopt;
  const auto reply = std::static_pointer_cast<Reply>(session.attached());
  if (!reply && session.closed()) return std::nullopt;
  const ReplyOptions& options = reply_of(session)->options;
  return ReplyLimits{options.most,
                     options.known.empty() ? 0 : options.n_prompt + static_cast<int>(options.known.size())};
}

}  // namespace flashnext
