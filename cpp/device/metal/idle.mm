#include "device/metal/idle.h"

#include <algorithm>
#include <utility>

namespace flashnext::mtl {

Idle::~Idle() { stay_awake(false); }

void Idle::stay_awake(bool awake) {
  if (awake != awake_) actions_.stay_awake(awake);
  awake_ = awake;
}

void Idle::used(Nanoseconds now) {
  used_ = beat_ = now;
  stay_awake(true);
}

std::optional<Nanoseconds> Idle::poll(Nanoseconds now, bool busy) {
  if (busy) {
    used(now);
    return now + std::min(times_.beat, times_.awake);
  }
  if (now >= used_ + times_.awake) stay_awake(false);
  const bool beats = now < used_ + times_.most;
  if (beats && now >= beat_ + times_.beat) {
    beat_ = now;
    actions_.beat();
  }
  if (!beats && !awake_) return std::nullopt;
  if (!beats) return used_ + times_.awake;
  const Nanoseconds next = beat_ + times_.beat;
  return awake_ ? std::min(next, used_ + times_.awake) : next;
}

namespace {

Nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

}  // namespace

Ticker::Ticker(IdleTimes times, IdleActions actions, std::function<bool()> busy)
    : idle_(times, std::move(actions)), busy_(std::move(busy)), thread_([this] { serve(); }) {}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Ticker::used() {
  const std::lock_guard lock(mutex_);
  idle_.used(now());
  // While it counts it comes by itself: a round is not to cost a switch of threads.
  if (std::exchange(rests_, false)) changed_.notify_all();
}

void Ticker::serve() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::optional<Nanoseconds> next = rests_ ? std::nullopt : idle_.poll(now(), busy_());
    rests_ = !next;
    if (next) {
      changed_.wait_until(lock, std::chrono::steady_clock::time_point(*next), [this] { return stop_; });
    } else {
      changed_.wait(lock, [this] { return stop_ || !rests_; });
    }
  }
}

}  // namespace flashnext::mtl
