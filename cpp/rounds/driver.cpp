#include "rounds/driver.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "rounds/allocate.h"

namespace flashnext {
namespace {

struct Woken {};  // ends the timing of a price

double ms_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

}  // namespace

Driver::Driver(std::shared_ptr<Model> model, int n_valid, const DriverOptions& options,
               WriteMasks write_masks)
    : runner_(std::move(model), n_valid, options.serial_drafts, std::move(write_masks)), options_(options) {
  if (options.row_limit < 1 || options.row_limit > runner_.max_round()) {
    throw InvalidArgument("round rows are " + std::to_string(options.row_limit) + ", expected 1 to " +
                          std::to_string(runner_.max_round()));
  }
  if (!options.prices) timings_left_ = 0;
  thread_ = std::thread([this] { serve(); });
}

Driver::~Driver() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
    wanted_ = false;
  }
  changed_.notify_all();
  thread_.join();
}

std::vector<Driver::RunningPart> Driver::parts_of(const std::vector<SessionRef>& sessions) const {
  std::vector<RunningPart> parts;
  for (const SessionRef& s : sessions) {
    if (const auto limits = runner_.limits(*s)) parts.push_back({s, limits->most, limits->known_end});
  }
  return parts;
}

void Driver::start(std::vector<SessionRef> sessions) {
  std::vector<RunningPart> running = parts_of(sessions);  // and then those before, freed without the lock
  {
    const std::lock_guard lock(mutex_);
    running_.swap(running);
    wanted_ = !running_.empty();
  }
  changed_.notify_all();
}

void Driver::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

std::vector<LandedPart> Driver::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !landed_.empty() || woken_ || (!wanted_ && !busy_); });
  woken_ = false;
  return std::exchange(landed_, {});
}

std::vector<LandedPart> Driver::stop() {
  std::vector<RunningPart> dropped;  // freed without the lock
  std::unique_lock lock(mutex_);
  wanted_ = false;
  changed_.wait(lock, [&] { return !busy_; });
  dropped.swap(running_);
  std::vector<LandedPart> landed = std::exchange(landed_, {});
  lock.unlock();
  return landed;
}

SnapshotRef Driver::snapshot(Session& session) {
  struct Pause {  // what rounds in flight come to is for take()
    Driver& driver;
    bool wanted = false;
    explicit Pause(Driver& d) : driver(d) {
      std::unique_lock lock(driver.mutex_);
      wanted = std::exchange(driver.wanted_, false);
      driver.changed_.wait(lock, [&] { return !driver.busy_; });
    }
    ~Pause() {
      const std::lock_guard lock(driver.mutex_);
      driver.wanted_ = wanted && !driver.running_.empty();
      driver.changed_.notify_all();
    }
  } pause(*this);
  return runner_.snapshot(session);
}

std::vector<LandedPart> Driver::step(std::vector<ChunkPart> chunks, const std::vector<SessionRef>& sessions) {
  std::vector<LandedPart> out = stop();
  try {
    run_step(std::move(chunks), sessions, out);
  } catch (...) {  // what has landed before is for the next call
    const std::lock_guard lock(mutex_);
    push(std::move(out));
    throw;
  }
  return out;
}

void Driver::run_step(std::vector<ChunkPart> chunks, const std::vector<SessionRef>& sessions,
                      std::vector<LandedPart>& out) {
  // The thread sleeps: what it uses is this one's now.
  const std::vector<RunningPart> running = parts_of(sessions);
  std::vector<RunningPart> last;
  for (const ChunkPart& c : chunks) {
    if (!c.last) continue;
    drafting_.erase(c.session.get());  // of a session that lay there before
    const auto limits = runner_.limits(*c.session);
    last.push_back({c.session, limits ? limits->most : MostDrafts(), 0});
  }
  // Their first drafts share a round with those that run.
  std::vector<const RunningPart*> parts;
  for (const RunningPart& p : last) parts.push_back(&p);
  for (const RunningPart& p : running) {
    if (!last.empty() && parts.size() < kMaxCandidates) parts.push_back(&p);
  }
  std::vector<MostDrafts> allotted(parts.size());
  allot(parts, allotted);
  size_t i = 0;
  for (ChunkPart& c : chunks) {
    if (c.last) c.drafts = allotted[i++];
  }
  if (!chunks.empty()) {
    const Clock::time_point began = Clock::now();
    runner_.commit_prompt(chunks);
    if (runner_.in_flight()) {  // else no part could begin
      committed_at_.push_back(began);
      const std::lock_guard lock(mutex_);
      ++counts_.chunks;
      counts_.chunks_beside_rounds += !running.empty();
    }
  }
  // The prompt's results first: the round's price is not to hold the chunk's time.
  do {
    for (LandedPart& part : land()) out.push_back(std::move(part));
  } while (runner_.in_flight());
  if (!running.empty()) {
    commit(running, false);
    do {
      for (LandedPart& part : land()) out.push_back(std::move(part));
    } while (runner_.in_flight());
  }
}

DriverCounts Driver::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

Prices Driver::prices() const {
  const std::lock_guard lock(mutex_);
  return prices_;
}

void Driver::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return quit_ || wanted_; });
    if (quit_) return;
    busy_ = true;
    try {
      run_rounds(lock);
    } catch (...) {  // who should have run is told, and what is in flight is waited for
      if (!lock.owns_lock()) lock.lock();
      wanted_ = false;
      push(failed(std::exchange(running_, {})));
      lock.unlock();
      drain();
      lock.lock();
    }
    busy_ = false;
    changed_.notify_all();
  }
}

// Entered and left with the lock held; it is free while rounds are recorded and run.
void Driver::run_rounds(std::unique_lock<std::mutex>& lock) {
  while (wanted_ || runner_.in_flight()) {
    if (wanted_) {
      const std::vector<RunningPart> running = running_;
      const int depth = running.size() == 1 && options_.lone ? 2 : 1;
      lock.unlock();
      forget_absent(running);
      try {
        while (runner_.in_flight() < depth && commit(running, runner_.in_flight() > 0)) {
        }
      } catch (...) {  // nothing could be recorded: who should have run is told
        std::vector<LandedPart> told = failed(running);
        lock.lock();
        running_.clear();
        wanted_ = false;
        push(std::move(told));
        continue;
      }
      lock.lock();
    }
    lock.unlock();
    std::vector<LandedPart> parts = land();
    lock.lock();
    for (const LandedPart& part : parts) {
      const auto leaves = [&](const RunningPart& r) { return r.session == part.session; };
      if (part.ended || part.error) std::erase_if(running_, leaves);
    }
    std::erase_if(running_, [](const RunningPart& r) { return r.session->closed(); });
    if (running_.empty()) wanted_ = false;
    push(std::move(parts));
  }
}

// Lands what is in flight and drops what it came to.
void Driver::drain() {
  while (runner_.in_flight()) {
    try {
      runner_.land();
    } catch (...) {
    }
  }
  committed_at_.clear();
}

// With the exception that is being handled.
std::vector<LandedPart> Driver::failed(const std::vector<RunningPart>& running) const {
  std::vector<LandedPart> parts;
  for (const RunningPart& r : running) {
    parts.emplace_back().session = r.session;
    parts.back().error = std::current_exception();
  }
  return parts;
}

// Drops what is known of sequences that do not run, when it becomes much: some have ended unseen.
void Driver::forget_absent(const std::vector<RunningPart>& running) {
  if (drafting_.size() < 4 * kMaxCandidates) return;
  std::erase_if(drafting_, [&](const auto& entry) {
    return std::none_of(running.begin(), running.end(),
                        [&](const RunningPart& r) { return r.session.get() == entry.first; });
  });
}

void Driver::push(std::vector<LandedPart> parts) {
  if (parts.empty()) return;
  for (LandedPart& part : parts) landed_.push_back(std::move(part));
  changed_.notify_all();
}

// How many drafts each sequence gets behind its next tokens.
void Driver::allot(std::span<const RunningPart* const> running, std::span<MostDrafts> out) {
  if (!options_.prices) {
    for (size_t i = 0; i < running.size(); ++i) out[i] = running[i]->most;
    return;
  }
  std::vector<Candidate> candidates;
  for (const RunningPart* r : running) {
    candidates.push_back(
        Candidate::of(drafting_[r->session.get()].acceptance, all_, r->most.head, r->most.copied));
  }
  std::vector<Allotment> allotments(candidates.size());
  allocate(candidates, prices(), options_.row_limit, allotments);
  for (size_t i = 0; i < running.size(); ++i) {
    const Allotment& a = allotments[i];
    // Where the text has no copy the head may draft as many, if it may at all.
    out[i] = a.source == DraftSource::kCopy ? MostDrafts{0, a.n_drafts} : MostDrafts{a.n_drafts, 0};
  }
}

void Driver::land_untimed() {
  committed_at_.clear();
  for (const LandedPart& part : runner_.land()) {
    if (part.error) std::rethrow_exception(part.error);
  }
}

// Commits a round of as many of the sequences as it can hold.
int Driver::commit(const std::vector<RunningPart>& running, bool behind_another) {
  std::vector<const RunningPart*> taken;
  const size_t n = std::min({running.size(), static_cast<size_t>(options_.row_limit),
                             static_cast<size_t>(runner_.model().options().max_sequences)});
  if (turn_ >= running.size() || n == running.size()) turn_ = 0;
  for (size_t i = 0; i < n; ++i) taken.push_back(&running[(turn_ + i) % running.size()]);
  turn_ += n;
  std::vector<MostDrafts> allotted(n);
  allot(taken, allotted);
  std::vector<RoundPart> parts;
  int rows = 0;
  for (size_t i = 0; i < n; ++i) {
    const SessionRef& session = taken[i]->session;
    const int known = taken[i]->known_end - session->length();
    parts.push_back({session,
                     std::max(1 + drafting_[session.get()].most, std::min(known, runner_.max_window())),
                     allotted[i]});
    rows += parts.back().n_rows;
  }
  // Drafts were made for fewer sequences than there are now: the longest windows give up rows.
  for (; rows > options_.row_limit; --rows) {
    const auto longest =
        std::max_element(parts.begin(), parts.end(),
                         [](const RoundPart& a, const RoundPart& b) { return a.n_rows < b.n_rows; });
    if (longest->n_rows == 1) break;
    --longest->n_rows;
  }
  const Clock::time_point began = Clock::now();
  const int sequences = runner_.commit_round(parts);
  if (!sequences) return 0;
  for (size_t i = 0; i < n; ++i) {
    drafting_[taken[i]->session.get()].most = std::max(allotted[i].head, allotted[i].copied);
  }
  committed_at_.push_back(began);
  const std::lock_guard lock(mutex_);
  ++counts_.rounds;
  counts_.shared_rounds += sequences > 1;
  counts_.lone_rounds += behind_another;
  if (sequences > 1 || behind_another) {
    const bool shared = sequences > 1;
    counts_.to_shared += shared && was_lone_;
    counts_.to_lone += !shared && was_shared_;
    was_shared_ = shared;
    was_lone_ = !shared;
  }
  counts_.widest = std::max(counts_.widest, static_cast<uint64_t>(sequences));
  return sequences;
}

bool Driver::time_a_price(const std::shared_ptr<PagePool>& pool) {
  constexpr double kLongest = 200;                  // ms of a round beyond which wider ones are not timed
  constexpr auto kPause = std::chrono::seconds(5);  // from one timing of all prices to the next
  const bool first = timed_at_ == Clock::time_point();
  if (widths_left_.empty()) {
    if (!timings_left_ || (!first && Clock::now() < timed_at_ + kPause)) return false;
    widths_left_.assign(Prices::kWidths.rbegin(), Prices::kWidths.rend());
    --timings_left_;
  }
  for (LandedPart& part : stop()) {  // nothing should be in flight; if it was, it is kept for take()
    const std::lock_guard lock(mutex_);
    landed_.push_back(std::move(part));
  }
  const auto give_way = [this] {
    const std::lock_guard lock(mutex_);
    if (std::exchange(woken_, false)) throw Woken();
  };
  const int width = widths_left_.back();
  widths_left_.pop_back();
  if (width > options_.row_limit) {
    widths_left_.clear();
    timed_at_ = Clock::now();
    return false;
  }
  const auto found = [&](double timed, double known) { return first ? timed : std::min(timed, known); };
  try {
    // Windows of tokens that are known, so that every row is one that is verified; of different ids, so that
    // they meet as many experts as the rows of different texts do.
    std::vector<SessionRef> sessions;
    std::vector<RoundPart> parts;
    uint64_t random = 1;
    const auto vocab = static_cast<uint64_t>(runner_.model().config().vocab_size);
    for (int rows = width; rows > 0; rows -= runner_.max_window()) {
      const SessionRef session = std::make_shared<Session>(runner_.model_ref(), pool);
      ReplyOptions options;
      options.sampling.temperature = 0;
      options.n_prompt = 1;
      for (int i = 0; i < 2 * runner_.max_window(); ++i) {
        options.known.push_back(static_cast<int32_t>((random = splitmix64(random)) % vocab));
      }
      give_way();
      runner_.begin(*session, options);
      committed_at_.push_back(Clock::now());
      const ChunkPart chunk = {session, {options.known.front()}, true, {}};
      runner_.commit_prompt({&chunk, 1});
      land_untimed();
      parts.push_back({session, std::min(rows, runner_.max_window()), {}});
      sessions.push_back(session);
    }
    // The best of a few: what else a machine does only adds.
    const auto best_of_rounds = [&](double best) {
      for (int i = 0; i < 3; ++i) {
        give_way();
        const Clock::time_point began = Clock::now();
        runner_.commit_round(parts);
        land_untimed();
        best = std::min(best, ms_between(began, Clock::now()));
      }
      return best;
    };
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const double ms = best_of_rounds(kNever);
    if (width == 1 && ms <= kLongest && runner_.model().has_head()) {
      constexpr int kSteps = 4;
      ReplyOptions options;
      options.sampling.temperature = 0;
      options.n_prompt = parts[0].session->length();
      runner_.begin(*parts[0].session, options);
      double without = kNever, with = kNever;
      for (int i = 0; i < 3; ++i) {
        parts[0].drafts.head = 0;
        without = best_of_rounds(without);
        parts[0].drafts.head = kSteps;
        with = best_of_rounds(with);
      }
      // A step is a layer and the vocabulary: never as much as a forward, whatever a busy machine shows.
      const std::lock_guard lock(mutex_);
      const double step = std::clamp((with - without) / kSteps, ms / 100, ms / 2);
      prices_.set_measured_draft_step(1, found(step, prices_.draft_step_ms(1)));
    }
    {
      const std::lock_guard lock(mutex_);
      prices_.set_measured(width, found(ms, prices_.forward_ms(width)));
    }
    if (ms > kLongest) widths_left_.clear();
    for (const SessionRef& session : sessions) session->close();
  } catch (const Woken&) {  // somebody has come: another time
    widths_left_.push_back(width);
  } catch (const Error&) {  // no room for it: the default prices stay
    drain();
    widths_left_.clear();
    timings_left_ = 0;
  }
  if (widths_left_.empty()) timed_at_ = Clock::now();
  return !widths_left_.empty();
}

// Waits for the oldest pass, and learns from it.
std::vector<LandedPart> Driver::land() {
  const bool any = runner_.in_flight() > 0;
  std::vector<LandedPart> parts = runner_.land();
  const Clock::time_point now = Clock::now();
  double ms = 0;
  if (any && !committed_at_.empty()) {
    ms = ms_between(std::max(landed_at_, committed_at_.front()), now);
    committed_at_.pop_front();
    landed_at_ = now;
  }
  int rows = 0;
  bool complete = true;       // all rows of the round are accounted for
  std::vector<int> drafting;  // sequences of each step of the head
  const std::lock_guard lock(mutex_);
  for (const LandedPart& part : parts) {
    const Session* const key = part.session.get();
    if (part.ended || part.session->closed() || (part.error && !part.short_of_pages)) {
      drafting_.erase(key);
    } else if (!part.error &&
               !runner_.in_flight()) {  // a round in flight verifies them already, and makes others
      drafting_[key].most = part.n_head + part.n_copied;
    }
    complete &= !part.is_round || !part.session->closed();
    if (part.error || !part.is_round || part.tokens.empty()) continue;
    const DraftSource source = part.copied ? DraftSource::kCopy : DraftSource::kHead;
    all_.observe(source, part.proposed, part.accepted);
    if (const auto it = drafting_.find(key); it != drafting_.end()) {
      it->second.acceptance.observe(source, part.proposed, part.accepted);
    }
    (part.copied ? counts_.copies_proposed : counts_.proposed) += static_cast<uint64_t>(part.proposed);
    (part.copied ? counts_.copies_accepted : counts_.accepted) += static_cast<uint64_t>(part.accepted);
    rows += part.n_rows;
    if (drafting.size() < static_cast<size_t>(part.n_head)) drafting.resize(static_cast<size_t>(part.n_head));
    for (int step = 0; step < part.n_head; ++step) ++drafting[static_cast<size_t>(step)];
  }
  counts_.rows += static_cast<uint64_t>(rows);
  if (rows && complete && options_.prices) prices_.observe_round(rows, drafting, ms);
  return parts;
}

}  // namespace flashnext
