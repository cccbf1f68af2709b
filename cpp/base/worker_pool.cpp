#include "base/worker_pool.h"

#include <string>
#include <system_error>

#include "base/error.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif
#ifdef __APPLE__
#include <pthread/qos.h>
#endif

namespace flashnext {
namespace {

// About fifty microseconds on the machine of docs/performance.md: longer than the usual skew between workers
// at the end of a segment (a task), and far shorter than a time slice.
constexpr int kSpins = 2000;

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Returns once `changed(a.load())`.
template <class T, class Changed>
T await(std::atomic<T>& a, Changed changed) {
  T seen = a.load(std::memory_order_acquire);
  for (int i = 0; i < kSpins && !changed(seen); ++i) {
    relax();
    seen = a.load(std::memory_order_acquire);
  }
  while (!changed(seen)) {
    a.wait(seen, std::memory_order_acquire);
    seen = a.load(std::memory_order_acquire);
  }
  return seen;
}

}  // namespace

WorkerPool::WorkerPool(int n_workers) {
  try {
    for (int i = 1; i < n_workers; ++i) threads_.emplace_back([this, i] { serve(i); });
  } catch (const std::system_error& e) {
    const std::string started = std::to_string(threads_.size());
    end_threads();
    throw OutOfMemory("the system does not give " + std::to_string(n_workers - 1) + " worker threads, only " +
                      started + " (" + e.what() + "); ask for fewer threads");
  }
}

WorkerPool::~WorkerPool() { end_threads(); }

void WorkerPool::end_threads() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void WorkerPool::run(std::span<const uint32_t> tasks, Body body, void* context) {
  uint32_t first = 0;
  while (first < tasks.size() && tasks[first] == 0) ++first;
  if (first == tasks.size()) return;
  tasks_ = tasks;
  body_ = body;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t{first} << 32, std::memory_order_release);
  open_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_part(0);
  // A thread that wakes after the last task finds the program closed and is not waited for.
  open_ = false;
  // The worker writes inside_ and then reads open_; here it is the other way round, so both need one order of
  // all four that every thread sees.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  await(inside_, [](uint32_t n) { return n == 0; });
}

void WorkerPool::serve(int worker) {
#ifdef __APPLE__
  // Somebody waits for what is done here: otherwise the system may leave it to the slow cores.
  pthread_set_qos_class_self_np(QOS_CLASS_USER_INITIATED, 0);
#endif
  uint32_t seen = 0;
  for (;;) {
    seen = await(epoch_, [seen](uint32_t e) { return e != seen; });
    if (stop_) return;
    inside_.fetch_add(1);  // before looking at open_, as run() closes before it looks at inside_
    if (open_) take_part(worker);
    if (inside_.fetch_sub(1) == 1) inside_.notify_all();
  }
}

void WorkerPool::take_part(int worker) {
  const auto end = static_cast<uint32_t>(tasks_.size());
  uint64_t seen = ticket_.load(std::memory_order_acquire);
  for (;;) {
    auto segment = static_cast<uint32_t>(seen >> 32);
    if (segment == end) return;
    if (static_cast<uint32_t>(seen) >= tasks_[segment]) {  // all handed out: wait for the next segment
      seen = await(ticket_, [segment](uint64_t t) { return (t >> 32) != segment; });
      continue;
    }
    const uint64_t mine = ticket_.fetch_add(1, std::memory_order_acq_rel);
    segment = static_cast<uint32_t>(mine >> 32);
    if (segment == end) return;
    const auto task = static_cast<uint32_t>(mine);
    if (task < tasks_[segment]) {
      body_(context_, segment, task, worker);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks_[segment]) advance(segment);
    }
    seen = ticket_.load(std::memory_order_acquire);
  }
}

void WorkerPool::advance(uint32_t segment) {
  uint32_t next = segment + 1;
  while (next < tasks_.size() && tasks_[next] == 0) ++next;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(uint64_t{next} << 32, std::memory_order_release);
  ticket_.notify_all();
}

}  // namespace flashnext
