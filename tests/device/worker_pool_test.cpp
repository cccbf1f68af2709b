// The worker pool: every task once, segments in order, for any number of workers.
#include "base/worker_pool.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "check.h"

namespace flashnext::test {
namespace {

using Task = std::function<void(uint32_t segment, uint32_t task, int worker)>;

void run(WorkerPool& pool, const std::vector<uint32_t>& tasks, const Task& task) {
  auto body = [](void* context, uint32_t segment, uint32_t index, int worker) {
    (*static_cast<const Task*>(context))(segment, index, worker);
  };
  pool.run(tasks, body, const_cast<Task*>(&task));
}

// Counts how often each task ran, and checks in each that the segment before has ended and that
// none after it has begun.
struct Ledger {
  explicit Ledger(const std::vector<uint32_t>& t) : tasks(t), ran(t.size()), ended(t.size()) {
    for (size_t i = 0; i < t.size(); ++i) ran[i] = std::vector<std::atomic<int>>(t[i]);
  }
  void begin(uint32_t segment, uint32_t task) {
    CHECK(segment < tasks.size());
    CHECK(task < tasks[segment]);
    for (uint32_t s = 0; s < segment; ++s) CHECK_EQ(ended[s].load(), tasks[s]);
    for (size_t s = segment + 1; s < tasks.size(); ++s) CHECK_EQ(ended[s].load(), 0u);
    ++ran[segment][task];
  }
  void end(uint32_t segment) { ++ended[segment]; }
  void check_all_once() const {
    for (const auto& segment : ran) {
      for (const auto& n : segment) CHECK_EQ(n.load(), 1);
    }
  }

  std::vector<uint32_t> tasks;
  std::vector<std::vector<std::atomic<int>>> ran;
  std::vector<std::atomic<uint32_t>> ended;
};

void check_program(WorkerPool& pool, const std::vector<uint32_t>& tasks) {
  Ledger ledger(tasks);
  run(pool, tasks, [&](uint32_t segment, uint32_t task, int worker) {
    CHECK(worker >= 0);
    CHECK(worker < pool.size());
    ledger.begin(segment, task);
    ledger.end(segment);
  });
  ledger.check_all_once();
}

void every_task_runs_once_and_segments_run_in_order() {
  for (const int workers : {1, 2, 3, 8}) {
    WorkerPool pool(workers);
    CHECK_EQ(pool.size(), workers);
    check_program(pool, {1});
    check_program(pool, {7, 1, 64, 3, 200});
  }
}

void empty_segments_are_passed_over_wherever_they_stand() {
  for (const int workers : {1, 2, 4}) {
    WorkerPool pool(workers);
    check_program(pool, {});
    check_program(pool, {0});
    check_program(pool, {0, 0, 0});
    check_program(pool, {0, 5});
    check_program(pool, {5, 0, 0, 3});
    check_program(pool, {5, 0, 3, 0});
  }
}

void many_random_programs_run_one_after_another() {
  for (const int workers : {1, 2, 4}) {
    const unsigned seed = 7u + static_cast<unsigned>(workers);
    std::printf("  seed %u\n", seed);
    std::mt19937 random(seed);
    WorkerPool pool(workers);
    for (int i = 0; i < 2000; ++i) {
      std::vector<uint32_t> tasks(random() % 6);
      for (uint32_t& n : tasks) n = random() % 3 ? random() % 5 : random() % 40;
      check_program(pool, tasks);
    }
  }
}

// Plain memory: a missing order between segments is a race that the thread sanitizer reports, and a
// wrong sum.
void a_segment_sees_what_the_one_before_wrote() {
  WorkerPool pool(4);
  constexpr uint32_t kValues = 64, kSteps = 30;
  std::vector<uint32_t> values(kValues, 1), next(kValues);
  run(pool, std::vector<uint32_t>(kSteps, kValues), [&](uint32_t segment, uint32_t task, int) {
    const auto& from = segment % 2 ? next : values;
    auto& to = segment % 2 ? values : next;
    to[task] = from[task] + from[(task + 1) % kValues];
  });
  // All values are equal, so each step doubles them.
  for (const uint32_t v : values) CHECK_EQ(v, 1u << kSteps);
}

void the_caller_is_worker_0_and_alone_where_there_is_one() {
  WorkerPool pool(1);
  const auto caller = std::this_thread::get_id();
  run(pool, {3, 4}, [&](uint32_t, uint32_t, int worker) {
    CHECK_EQ(worker, 0);
    CHECK(std::this_thread::get_id() == caller);
  });
}

void a_worker_number_is_never_used_by_two_threads_at_once() {
  WorkerPool pool(4);
  std::vector<std::atomic<int>> busy(4);
  run(pool, {400, 400}, [&](uint32_t, uint32_t, int worker) {
    CHECK_EQ(busy[static_cast<size_t>(worker)]++, 0);
    busy[static_cast<size_t>(worker)]--;
  });
}

void a_pool_ends_while_its_threads_sleep_or_have_never_run() {
  for (int i = 0; i < 50; ++i) WorkerPool(4);
  WorkerPool pool(4);
  check_program(pool, {9});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // long past the spinning
}

// Whoever takes the first task sleeps in it: the others take the rest of its segment, and the next
// segment waits for it.
void a_slow_worker_delays_the_next_segment_and_not_its_own() {
  WorkerPool pool(3);
  int of_others = 0;
  for (int round = 0; round < 5; ++round) {
    Ledger ledger({30, 30});
    std::atomic<int> before_the_end{0};
    run(pool, ledger.tasks, [&](uint32_t segment, uint32_t task, int) {
      ledger.begin(segment, task);
      if (segment == 0 && task == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(40));
        before_the_end = static_cast<int>(ledger.ended[0].load());
      }
      ledger.end(segment);
    });
    ledger.check_all_once();
    of_others += before_the_end;
  }
  CHECK(of_others > 0);
}

}  // namespace
}  // namespace flashnext::test

int main() {
  using namespace flashnext::test;
  return run_all({TEST(every_task_runs_once_and_segments_run_in_order),
                  TEST(empty_segments_are_passed_over_wherever_they_stand),
                  TEST(many_random_programs_run_one_after_another),
                  TEST(a_segment_sees_what_the_one_before_wrote),
                  TEST(the_caller_is_worker_0_and_alone_where_there_is_one),
                  TEST(a_worker_number_is_never_used_by_two_threads_at_once),
                  TEST(a_pool_ends_while_its_threads_sleep_or_have_never_run),
                  TEST(a_slow_worker_delays_the_next_segment_and_not_its_own)});
}
