// The round loop: keeps rounds in flight over a set of sequences, without the interpreter.
//
// Policy says which sequences run and is asked again only when a request comes or ends; until then a thread
// of the driver commits round after round. What they draw leaves in batches. One sequence that runs alone has
// two rounds in flight, so that the device never waits for the host (the lone driver); several have one,
// whose results decide how many drafts the next one gets (shared rounds). Both record the same round, so
// going over from one to the other moves no state. Source: docs/scheduling.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "rounds/acceptance.h"
#include "rounds/prices.h"
#include "rounds/runner.h"

namespace flashnext {

struct DriverOptions {
  int row_limit = 32;          // rows of a round, pending tokens and drafts together
  bool lone = true;            // two rounds in flight for one sequence
  bool prices = true;          // drafts by what they cost and bring; without, as many as allowed
  bool serial_drafts = false;  // drafts are made when the host has seen the verdict
};

// How often its mechanisms ran, since it was made.
struct DriverCounts {
  uint64_t rounds = 0;         // committed
  uint64_t shared_rounds = 0;  // of several sequences
  uint64_t lone_rounds = 0;    // committed while the one before was in flight
  uint64_t to_shared = 0;      // handoffs: a shared round that followed lone ones,
  uint64_t to_lone = 0;        // and the other way round
  uint64_t chunks = 0;         // prompt passes
  uint64_t chunks_beside_rounds = 0;
  uint64_t rows = 0;                                  // verified, pending tokens included
  uint64_t widest = 0;                                // most sequences of a round
  uint64_t proposed = 0, accepted = 0;                // drafts of the head
  uint64_t copies_proposed = 0, copies_accepted = 0;  // drafts copied from the text
};

// All methods but wake(), counts() and prices() are for one thread, the engine's.
class Driver {
 public:
  Driver(std::shared_ptr<Model> model, int n_valid, const DriverOptions& options,
         WriteMasks write_masks = {});
  // Waits for what is in flight.
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  Runner& runner() { return runner_; }

  // Rounds over these sequences from now on, in place of those before. A sequence leaves the set by itself
  // when it has ended, failed, was closed, or had no page.
  void start(std::vector<SessionRef> sessions);
  // Waits until something has landed, the rounds have stopped by themselves, or wake() was called; returns
  // what has landed.
  std::vector<LandedPart> take();
  // Commits no more rounds; returns what those in flight came to.
  std::vector<LandedPart> stop();
  // Stops, then runs one prompt pass and one round of these sequences.
  std::vector<LandedPart> step(std::vector<ChunkPart> chunks, const std::vector<SessionRef>& sessions);
  // take() returns soon.
  void wake();
  // Settles the session, of which nothing may be in flight, and takes a snapshot of where it stands. Rounds
  // of others pause for it and go on.
  SnapshotRef snapshot(Session& session);

  // With nothing to do: times one price on scratch sessions of the pool, unless wake() is called meanwhile.
  // All are timed at once and a few times later, since something else may have had the machine: what is found
  // then only lowers them. Returns whether there is more to time now.
  bool time_a_price(const std::shared_ptr<PagePool>& pool);
  DriverCounts counts() const;
  Prices prices() const;

 private:
  // A sequence that runs, and the most drafts of a round that it may have.
  struct RunningPart {
    SessionRef session;
    MostDrafts most;
    int known_end = 0;  // below it rounds are fed with text that is known
  };
  struct Drafting {  // what is known of a sequence's drafts
    Acceptance acceptance;
    int most = 0;  // drafts behind its pending token when the next round is committed
  };
  using Clock = std::chrono::steady_clock;

  std::vector<RunningPart> parts_of(const std::vector<SessionRef>& sessions) const;
  void serve();
  std::vector<LandedPart> failed(const std::vector<RunningPart>& running) const;
  void run_step(std::vector<ChunkPart> chunks, const std::vector<SessionRef>& sessions,
                std::vector<LandedPart>& out);
  void run_rounds(std::unique_lock<std::mutex>& lock);
  int commit(const std::vector<RunningPart>& running, bool behind_another);
  void allot(std::span<const RunningPart* const> running, std::span<MostDrafts> out);
  std::vector<LandedPart> land();
  void land_untimed();
  void drain();
  void forget_absent(const std::vector<RunningPart>& running);
  void push(std::vector<LandedPart> parts);

  Runner runner_;
  DriverOptions options_;
  Prices prices_;
  Acceptance all_ = Acceptance::of_all();
  std::map<const Session*, Drafting> drafting_;
  std::vector<int> widths_left_;                // to time
  int timings_left_ = 4;                        // times that they are all timed
  Clock::time_point timed_at_;                  // when that was done last
  size_t turn_ = 0;                             // where a round begins that cannot hold all sequences
  bool was_lone_ = false, was_shared_ = false;  // the last round that was either
  Clock::time_point landed_at_;
  std::deque<Clock::time_point> committed_at_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RunningPart> running_;
  std::vector<LandedPart> landed_;
  DriverCounts counts_;
  bool wanted_ = false, busy_ = false, woken_ = false, quit_ = false;
  std::thread thread_;
};

}  // namespace flashnext
