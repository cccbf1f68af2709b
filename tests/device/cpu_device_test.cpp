// The CPU device: what a command buffer records runs as device.h says, whatever the order between
// barriers.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "check.h"
#include "device_kernels.h"

namespace flashnext::test {
namespace {

// Commits, and waits for what was recorded.
void finish(Device& device, CommandBuffer& cb) {
  const EventRef done = device.event();
  cb.signal(done, 1);
  cb.commit();
  done->wait(1);
}

BufferRef ints(Device& device, size_t n, int32_t value = 0) {
  const BufferRef b = device.allocate(n * sizeof(int32_t));
  std::fill_n(reinterpret_cast<int32_t*>(b->host()), n, value);
  return b;
}

int32_t* at(const BufferRef& b) { return reinterpret_cast<int32_t*>(b->host()); }

void a_grid_runs_every_step_once_and_an_empty_one_none() {
  for (const int workers : {1, 2, 4}) {
    for (const uint64_t seed : {0u, 1u, 99u}) {
      const DeviceRef device = open_test_device(workers, seed);
      const BufferRef counts = ints(*device, 5 * 3 * 7);
      const auto cb = device->command_buffer();
      const Kernel& count = device->kernel("count");
      cb->dispatch(count, Grid{7, 3, 5}, {counts}, 0);
      cb->barrier();
      cb->dispatch(count, Grid{7, 0, 5}, {counts}, 0);
      cb->dispatch(count, Grid{7, 3, 5}, {counts}, 0);
      finish(*device, *cb);
      for (int i = 0; i < 5 * 3 * 7; ++i) CHECK_EQ(at(counts)[i], 2);
    }
  }
}

std::vector<int32_t> order_of_steps(uint64_t seed) {
  constexpr uint32_t kSteps = 100;
  const DeviceRef device = open_test_device(1, seed);
  const BufferRef list = ints(*device, 1 + kSteps);
  const auto cb = device->command_buffer();
  cb->dispatch(device->kernel("append"), Grid{kSteps}, {list}, 0);
  finish(*device, *cb);
  CHECK_EQ(at(list)[0], static_cast<int32_t>(kSteps));
  return {at(list) + 1, at(list) + 1 + kSteps};
}

void a_shuffle_seed_changes_the_order_and_no_seed_keeps_it() {
  std::vector<int32_t> in_order(100);
  std::iota(in_order.begin(), in_order.end(), 0);
  CHECK(order_of_steps(0) == in_order);
  CHECK(order_of_steps(5) != in_order);
  CHECK(order_of_steps(5) == order_of_steps(5));
  CHECK(order_of_steps(5) != order_of_steps(6));
  std::vector<int32_t> sorted = order_of_steps(5);
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == in_order);
}

// Each step reads what its neighbour wrote before the barrier.
void barriers_order_dispatches_under_any_shuffle() {
  constexpr uint32_t kValues = 97, kSteps = 24;
  for (const int workers : {1, 2, 4}) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const DeviceRef device = open_test_device(workers, seed);
      const BufferRef a = ints(*device, kValues, 1), b = ints(*device, kValues);
      const auto cb = device->command_buffer();
      for (uint32_t i = 0; i < kSteps; ++i) {
        cb->dispatch(device->kernel("add_neighbour"), Grid{kValues}, {i % 2 ? b : a, i % 2 ? a : b}, 0);
        cb->barrier();
      }
      finish(*device, *cb);
      for (uint32_t i = 0; i < kValues; ++i) CHECK_EQ(at(a)[i], 1 << kSteps);
    }
  }
}

// Without the barrier a shuffled order shows: else the tests that shuffle could not find a barrier
// that is missing.
void a_missing_barrier_is_found_by_shuffling() {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const DeviceRef device = open_test_device(1, seed);
    const BufferRef a = ints(*device, 50, 1), b = ints(*device, 50), c = ints(*device, 50);
    const auto cb = device->command_buffer();
    cb->dispatch(device->kernel("add_neighbour"), Grid{50}, {a, b}, 0);
    cb->dispatch(device->kernel("add_neighbour"), Grid{50}, {b, c}, 0);
    finish(*device, *cb);
    wrong += std::any_of(at(c), at(c) + 50, [](int32_t v) { return v != 4; });
  }
  CHECK(wrong > 0);
}

void copies_move_bytes_between_offsets_and_obey_barriers() {
  const DeviceRef device = open_test_device(2, 3);
  const BufferRef a = ints(*device, 8), b = ints(*device, 8, -1);
  std::iota(at(a), at(a) + 8, 10);
  const auto cb = device->command_buffer();
  cb->copy(Slice(a, 8), Slice(b, 4), 12);
  cb->barrier();
  cb->dispatch(device->kernel("add"), Grid{8}, {b}, AddParams{100});
  cb->barrier();
  cb->copy(b, a, 32);
  finish(*device, *cb);
  const std::vector<int32_t> expected = {99, 112, 113, 114, 99, 99, 99, 99};
  CHECK(std::equal(expected.begin(), expected.end(), at(a)));
}

void arguments_are_copied_when_they_are_recorded() {
  const DeviceRef device = open_test_device(2);
  const BufferRef a = ints(*device, 4);
  const auto cb = device->command_buffer();
  AddParams p{5};
  cb->dispatch(device->kernel("add"), Grid{4}, {a}, p);
  p.value = 1000;
  CHECK_EQ(at(a)[0], 0);  // nothing runs before the commit
  finish(*device, *cb);
  for (int i = 0; i < 4; ++i) CHECK_EQ(at(a)[i], 5);
}

void a_step_has_scratch_of_its_own_and_null_for_an_unused_slot() {
  const DeviceRef device = open_test_device(4);
  const BufferRef out = ints(*device, 200);
  const auto cb = device->command_buffer();
  cb->dispatch(device->kernel("probe"), Grid{200}, {out, Slice()}, 0);
  finish(*device, *cb);
  for (int i = 0; i < 200; ++i) CHECK_EQ(at(out)[i], 1);
}

void buffers_are_zeroed_aligned_and_refused_with_their_size() {
  const DeviceRef device = open_test_device(1);
  for (const size_t n : {0u, 1u, 63u, 64u, 100'000u}) {
    const BufferRef b = device->allocate(n);
    CHECK_EQ(b->size_bytes(), n);
    CHECK_EQ(b->address(), reinterpret_cast<uint64_t>(b->host()));
    CHECK_EQ(b->address() % 64, 0u);
    CHECK(std::all_of(b->host(), b->host() + n, [](std::byte x) { return x == std::byte{0}; }));
  }
  CHECK_THROWS(device->allocate(size_t{1} << 62), OutOfMemory, "4611686018427387904");
}

void kernels_are_found_by_name_and_an_unknown_one_is_named() {
  const DeviceRef device = open_test_device(2);
  CHECK(device->kernel("count").name() == "count");
  CHECK_EQ(device->kernel("count").tile(), 4u);
  CHECK_THROWS(device->kernel("sum"), InvalidArgument, "device cpu (test, 2 workers) has no kernel sum");
  const std::vector<std::string> names = device->kernel_names();
  CHECK_EQ(names.size(), 8u);
  CHECK(std::is_sorted(names.begin(), names.end()));
}

void limits_tell_workers_and_memory() {
  const DeviceRef device = open_test_device(3);
  CHECK_EQ(device->limits().workers, 3);
  CHECK(device->limits().working_set_bytes > 0);
  CHECK(device->limits().working_set_bytes <= device->limits().max_buffer_bytes);
  CHECK(open_test_device(0)->limits().workers >= 1);
}

void a_residency_set_counts_what_is_in_it() {
  const DeviceRef device = open_test_device(1);
  const auto set = device->residency_set();
  const BufferRef a = device->allocate(100), b = device->allocate(30);
  set->add(a);
  set->add(b);
  CHECK_EQ(set->size_bytes(), 130u);
  set->remove(a);
  CHECK_EQ(set->size_bytes(), 30u);
}

}  // namespace
}  // namespace flashnext::test

int main() {
  using namespace flashnext::test;
  return run_all({TEST(a_grid_runs_every_step_once_and_an_empty_one_none),
                  TEST(a_shuffle_seed_changes_the_order_and_no_seed_keeps_it),
                  TEST(barriers_order_dispatches_under_any_shuffle),
                  TEST(a_missing_barrier_is_found_by_shuffling),
                  TEST(copies_move_bytes_between_offsets_and_obey_barriers),
                  TEST(arguments_are_copied_when_they_are_recorded),
                  TEST(a_step_has_scratch_of_its_own_and_null_for_an_unused_slot),
                  TEST(buffers_are_zeroed_aligned_and_refused_with_their_size),
                  TEST(kernels_are_found_by_name_and_an_unknown_one_is_named),
                  TEST(limits_tell_workers_and_memory), TEST(a_residency_set_counts_what_is_in_it)});
}
