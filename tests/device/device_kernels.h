// Small kernels of the device tests, and a device that has them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace flashnext::test {

struct AddParams {
  int32_t value;
};

// Slot 0: int32[grid.x]; adds `value` to each.
inline void add(const cpu::Task& t) { t.slot<int32_t>(0)[t.x] += t.get<AddParams>().value; }

// Slot 0 in, slot 1 out: int32[grid.x]; out[i] = in[i] + in[i + 1], round the end.
inline void add_neighbour(const cpu::Task& t) {
  const auto* in = t.slot<const int32_t>(0);
  t.slot<int32_t>(1)[t.x] = in[t.x] + in[(t.x + 1) % t.grid.x];
}

// Slot 0: int32[grid.z, grid.y, grid.x]; counts the grid step.
inline void count(const cpu::Task& t) { ++t.slot<int32_t>(0)[(t.z * t.grid.y + t.y) * t.grid.x + t.x]; }

// Slot 0: int32[1 + grid.x]; appends its own index, [0] is the length. Meant for one worker.
inline void append(const cpu::Task& t) {
  auto* list = t.slot<int32_t>(0);
  list[1 + list[0]++] = static_cast<int32_t>(t.x);
}

// Slot 0: int32[grid.x]; 1 where slot 1 is unused and scratch is aligned and keeps what the step
// wrote.
inline void probe(const cpu::Task& t) {
  const bool aligned = reinterpret_cast<uintptr_t>(t.scratch) % 64 == 0;
  auto* mine = reinterpret_cast<volatile uint32_t*>(t.scratch);
  constexpr size_t kLast = cpu::kScratchBytes / sizeof(uint32_t) - 1;
  mine[0] = t.x;
  mine[kLast] = t.x + 1;
  std::this_thread::yield();
  const bool kept = mine[0] == t.x && mine[kLast] == t.x + 1;
  t.slot<int32_t>(0)[t.x] = aligned && kept && t.slots[1] == nullptr ? 1 : 2;
}

// Slot 0: uint8[grid.x] in, slot 1: uint8[grid.x] out; inverts the bits.
inline void invert(const cpu::Task& t) {
  t.slot<uint8_t>(1)[t.x] = static_cast<uint8_t>(~t.slot<const uint8_t>(0)[t.x]);
}

inline void pause(const cpu::Task&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

inline void fail_at_3(const cpu::Task& t) {
  if (t.x == 3) throw std::runtime_error("step 3 breaks");
}

inline DeviceRef open_test_device(int workers, uint64_t shuffle_seed = 0) {
  return cpu::open_device("test",
                          {{"add", add, 1},
                           {"add_neighbour", add_neighbour, 1},
                           {"append", append, 1},
                           {"count", count, 4},
                           {"fail_at_3", fail_at_3, 1},
                           {"invert", invert, 1},
                           {"pause", pause, 1},
                           {"probe", probe, 1}},
                          {workers, shuffle_seed});
}

}  // namespace flashnext::test
