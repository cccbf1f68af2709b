// Events of the CPU device: order across command buffers and threads, and failures that reach
// whoever waits.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "check.h"
#include "device_kernels.h"

namespace flashnext::test {
namespace {

int32_t* at(const BufferRef& b) { return reinterpret_cast<int32_t*>(b->host()); }

void commit_add(Device& device, const BufferRef& values, int32_t value, const EventRef& done,
                uint64_t signal) {
  const auto cb = device.command_buffer();
  cb->dispatch(device.kernel("add"), Grid{static_cast<uint32_t>(values->size_bytes() / 4)}, {values},
               AddParams{value});
  cb->signal(done, signal);
  cb->commit();
}

void an_event_only_grows_and_a_reached_value_does_not_block() {
  const DeviceRef device = open_test_device(1);
  const EventRef event = device->event();
  CHECK_EQ(event->value(), 0u);
  event->wait(0);
  event->signal(5);
  event->signal(3);
  CHECK_EQ(event->value(), 5u);
  event->wait(4);
  event->wait(5);
}

void commit_returns_before_the_work_has_run() {
  const DeviceRef device = open_test_device(2);
  const EventRef gate = device->event(), done = device->event();
  const BufferRef values = device->allocate(16);
  const auto cb = device->command_buffer();
  cb->wait(gate, 1);
  cb->dispatch(device->kernel("add"), Grid{4}, {values}, AddParams{1});
  cb->signal(done, 1);
  cb->commit();
  CHECK_EQ(done->value(), 0u);  // the gate is shut
  CHECK_EQ(at(values)[0], 0);
  gate->signal(1);
  done->wait(1);
  CHECK_EQ(at(values)[3], 1);
}

// A command buffer waits in its middle for what another thread computes on the host, and signals in
// its middle.
void host_and_device_hand_work_to_each_other() {
  const DeviceRef device = open_test_device(2, 11);
  const EventRef published = device->event(), gathered = device->event(), done = device->event();
  const BufferRef values = device->allocate(400);
  std::thread host([&] {
    for (uint64_t step = 1; step <= 20; ++step) {
      published->wait(step);
      for (int i = 0; i < 100; ++i) at(values)[i] *= 2;
      gathered->signal(step);
    }
  });
  for (uint64_t step = 1; step <= 20; ++step) {
    const auto cb = device->command_buffer();
    cb->dispatch(device->kernel("add"), Grid{100}, {values}, AddParams{1});
    cb->signal(published, step);
    cb->wait(gathered, step);
    cb->dispatch(device->kernel("add"), Grid{100}, {values}, AddParams{1});
    cb->signal(done, step);
    cb->commit();
  }
  done->wait(20);
  host.join();
  int32_t expected = 0;
  for (int step = 0; step < 20; ++step) expected = (expected + 1) * 2 + 1;
  for (int i = 0; i < 100; ++i) CHECK_EQ(at(values)[i], expected);
}

void two_threads_commit_and_wait_without_losing_work() {
  const DeviceRef device = open_test_device(3);
  const BufferRef values = device->allocate(256);
  auto client = [&] {
    const EventRef done = device->event();
    for (uint64_t i = 1; i <= 200; ++i) {
      commit_add(*device, values, 1, done, i);
      if (i % 16 == 0) done->wait(i - 8);
    }
    done->wait(200);
  };
  std::thread a(client), b(client);
  a.join();
  b.join();
  for (int i = 0; i < 64; ++i) CHECK_EQ(at(values)[i], 400);
}

// One thread's command buffers wait for events that the other thread's signal. Commits run in
// order, so each is committed after what it waits for.
void a_wait_for_another_threads_command_buffer_is_kept() {
  const DeviceRef device = open_test_device(2);
  const BufferRef values = device->allocate(40);
  const EventRef first = device->event(), second = device->event();
  std::atomic<uint64_t> committed{0};
  std::thread producer([&] {
    for (uint64_t i = 1; i <= 50; ++i) {
      second->wait(i - 1);
      commit_add(*device, values, 1, first, i);
      committed = i;
      committed.notify_all();
    }
  });
  for (uint64_t i = 1; i <= 50; ++i) {
    committed.wait(i - 1);
    const auto cb = device->command_buffer();
    cb->wait(first, i);
    cb->dispatch(device->kernel("add"), Grid{10}, {values}, AddParams{2});
    cb->signal(second, i);
    cb->commit();
  }
  second->wait(50);
  producer.join();
  for (int i = 0; i < 10; ++i) CHECK_EQ(at(values)[i], 150);
}

void a_failure_reaches_the_wait_and_skips_what_follows_it() {
  for (const int workers : {1, 3}) {
    const DeviceRef device = open_test_device(workers);
    const BufferRef values = device->allocate(16);
    const EventRef done = device->event();
    const auto cb = device->command_buffer();
    cb->dispatch(device->kernel("fail_at_3"), Grid{10}, {}, 0);
    cb->signal(done, 1);
    cb->dispatch(device->kernel("add"), Grid{4}, {values}, AddParams{1});
    cb->signal(done, 2);
    cb->commit();
    CHECK_THROWS(done->wait(1), DeviceError, "fail_at_3: step 3 breaks");
    CHECK_THROWS(done->wait(2), DeviceError, "fail_at_3: step 3 breaks");
    CHECK_THROWS(done->wait(1), DeviceError, "step 3");  // the wait throws as often as it is asked
    CHECK_EQ(at(values)[0], 0);
  }
}

void work_committed_after_a_failure_still_runs() {
  const DeviceRef device = open_test_device(2);
  const BufferRef values = device->allocate(16);
  const EventRef broken = device->event(), done = device->event();
  const auto cb = device->command_buffer();
  cb->dispatch(device->kernel("fail_at_3"), Grid{4}, {}, 0);
  cb->signal(broken, 1);
  cb->commit();
  commit_add(*device, values, 7, done, 1);
  done->wait(1);
  CHECK_EQ(at(values)[3], 7);
  CHECK_THROWS(broken->wait(1), DeviceError, "fail_at_3");
}

void a_failure_is_handed_on_to_what_waits_for_it() {
  const DeviceRef device = open_test_device(2);
  const BufferRef values = device->allocate(16);
  const EventRef broken = device->event(), done = device->event();
  const auto failing = device->command_buffer();
  failing->dispatch(device->kernel("fail_at_3"), Grid{4}, {}, 0);
  failing->signal(broken, 1);
  failing->commit();
  const auto cb = device->command_buffer();
  cb->wait(broken, 1);
  cb->dispatch(device->kernel("add"), Grid{4}, {values}, AddParams{1});
  cb->signal(done, 1);
  cb->commit();
  CHECK_THROWS(done->wait(1), DeviceError, "fail_at_3: step 3 breaks");
  CHECK_EQ(at(values)[0], 0);
}

void a_second_commit_is_refused_and_the_first_counts() {
  const DeviceRef device = open_test_device(1);
  const BufferRef values = device->allocate(16);
  const EventRef done = device->event();
  const auto cb = device->command_buffer();
  cb->dispatch(device->kernel("add"), Grid{4}, {values}, AddParams{1});
  cb->signal(done, 1);
  cb->commit();
  CHECK_THROWS(cb->commit(), Error, "committed twice");
  done->wait(1);
  CHECK_EQ(at(values)[0], 1);
}

void a_device_ends_after_the_work_that_was_committed() {
  std::vector<int32_t> seen;
  {
    DeviceRef device = open_test_device(2);
    const BufferRef values = device->allocate(16);
    const EventRef done = device->event();
    for (uint64_t i = 1; i <= 10; ++i) {
      const auto cb = device->command_buffer();
      cb->dispatch(device->kernel("pause"), Grid{1}, {}, 0);
      cb->commit();
      commit_add(*device, values, 1, done, i);
    }
    device.reset();
    CHECK_EQ(done->value(), 10u);
    seen.assign(at(values), at(values) + 4);
  }
  CHECK(seen == std::vector<int32_t>(4, 10));
}

}  // namespace
}  // namespace flashnext::test

int main() {
  using namespace flashnext::test;
  return run_all({TEST(an_event_only_grows_and_a_reached_value_does_not_block),
                  TEST(commit_returns_before_the_work_has_run), TEST(host_and_device_hand_work_to_each_other),
                  TEST(two_threads_commit_and_wait_without_losing_work),
                  TEST(a_wait_for_another_threads_command_buffer_is_kept),
                  TEST(a_failure_reaches_the_wait_and_skips_what_follows_it),
                  TEST(work_committed_after_a_failure_still_runs),
                  TEST(a_failure_is_handed_on_to_what_waits_for_it),
                  TEST(a_second_commit_is_refused_and_the_first_counts),
                  TEST(a_device_ends_after_the_work_that_was_committed)});
}
