// What an idle device does, and when: beats that keep memory wired, for a while, and letting the Mac sleep.
// Plain C++ over times that come in as arguments; Ticker is the thread that calls it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "device/metal/metal_device.h"

namespace flashnext::mtl {

using Nanoseconds = std::chrono::nanoseconds;

struct IdleActions {
  std::function<void()> beat;
  std::function<void(bool)> stay_awake;  // from now on, or no longer
};

// From one thread at a time.
class Idle {
 public:
  Idle(IdleTimes times, IdleActions actions) : times_(times), actions_(std::move(actions)) {}
  ~Idle();
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  // Work was committed.
  void used(Nanoseconds now);
  // Does what is due; `busy` says that work is in flight. Returns when to come again, nothing: behind the
  // next use.
  std::optional<Nanoseconds> poll(Nanoseconds now, bool busy);

 private:
  void stay_awake(bool awake);

  IdleTimes times_;
  IdleActions actions_;
  Nanoseconds used_{0}, beat_{0};
  bool awake_ = false;
};

// Polls an Idle by the steady clock.
class Ticker {
 public:
  Ticker(IdleTimes times, IdleActions actions, std::function<bool()> busy);
  ~Ticker();
  void used();

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  Idle idle_;
  std::function<bool()> busy_;
  bool stop_ = false, rests_ = true;  // rests: until the next use
  std::thread thread_;
};

}  // namespace flashnext::mtl
