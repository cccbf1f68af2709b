// The kernel tables of the instruction paths and the choice among them.
#pragma once

#include <string>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace flashnext::cpu {

// The paths this processor can run, best first: "avx2" where the processor has AVX2 and FMA, then "portable".
std::vector<std::string> available_paths();

// A CPU device with the kernels of `path`, or of the best path where it is empty. Throws InvalidArgument for
// a path that this processor cannot run, naming those it can.
DeviceRef open(std::string path, const Options& options);

}  // namespace flashnext::cpu
