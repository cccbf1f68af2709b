// Threads that run the tasks of a program of segments; a segment starts when the one before has ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace flashnext {

// Tasks are handed out one by one in order, so a worker that is slowed down by another process takes fewer of
// them. A worker that finds none spins for some microseconds and then sleeps: a core that somebody else wants
// is given back.
class WorkerPool {
 public:
  // Runs task `task` of segment `segment` on worker `worker` (0 .. size() - 1). Must not throw.
  using Body = void (*)(void* context, uint32_t segment, uint32_t task, int worker);

  // Starts n_workers - 1 threads; the caller of run() is worker 0. n_workers > 0. Throws OutOfMemory where
  // the system gives fewer.
  explicit WorkerPool(int n_workers);
  // Waits for the threads to end. Not during run().
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs all segments, segment i having tasks[i] tasks, and returns when the last has ended. One caller at a
  // time.
  void run(std::span<const uint32_t> tasks, Body body, void* context);

 private:
  void end_threads();
  void serve(int worker);
  void take_part(int worker);
  void advance(uint32_t segment);

  std::vector<std::thread> threads_;

  // The program that runs now; written by run() while no worker is inside.
  std::span<const uint32_t> tasks_;
  Body body_ = nullptr;
  void* context_ = nullptr;

  alignas(64) std::atomic<uint64_t> ticket_{0};  // segment << 32 | next task
  alignas(64) std::atomic<uint32_t> done_{0};    // tasks of the segment that have ended
  alignas(64) std::atomic<uint32_t> epoch_{0};   // programs started
  alignas(64) std::atomic<uint32_t> inside_{
      0};                          // threads that are in the program, or look whether it is open
  std::atomic<bool> open_{false};  // a program runs and may be entered
  std::atomic<bool> stop_{false};
};

}  // namespace flashnext
