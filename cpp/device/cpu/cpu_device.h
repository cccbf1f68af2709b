// The CPU device: kernels are functions, a grid step is a task, a worker pool runs the tasks between two
// barriers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/cpu/fault_plan.h"
#include "device/cpu/task.h"
#include "device/device.h"

namespace flashnext::cpu {

struct Options {
  int workers = 0;  // 0: one for each processor the process may use
  uint64_t shuffle_seed =
      0;  // tests: run the tasks between two barriers in a seeded random order; 0: in order
  bool reversed_prompts = false;  // tests: prompt rows sum in another order than window rows
};

// `path` names the instruction path of the table, for name().
DeviceRef open_device(std::string path, std::vector<KernelEntry> kernels, const Options& options);

// Tests: where failures of a CPU device are planted. Throws InvalidArgument for another device.
FaultPlan& fault_plan(Device& device);

}  // namespace flashnext::cpu
