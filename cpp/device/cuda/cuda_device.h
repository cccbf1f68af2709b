// The cuda device: the kernels of metal/, compiled by nvcc, on an NVIDIA GPU. For verification: the kernels
// are written for Apple GPUs, and here they run with real parallelism under the whole engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"

namespace flashnext::cuda {

// A kernel of the device's table: threads of a threadgroup, and `tile` and `rows` as in Kernel.
struct KernelEntry {
  std::string name;
  uint32_t threads, tile, rows = 0;
};

struct Options {
  bool graph = false;       // each part of a command buffer between waits and signals becomes one CUDA graph
  bool one_by_one = false;  // waits for every dispatch, so that errors name it
  // Buffers lie in the GPU's memory and the host sees copies of them, made as they are asked for. Faster for
  // kernels; a pointer of Buffer::host() is good until the next commit, and asking for one waits for all
  // work. Otherwise buffers are the host's memory, which both address.
  bool device_memory = false;
};
// "graph", "one by one", "device memory", with ", " between. Throws InvalidArgument for other words.
Options options_of(const std::string& words);

// Throws DeviceError where there is no GPU, InvalidArgument for a kernel that this build lacks.
DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options);

// One command buffer, as the device saw it. Moments are steady_clock nanoseconds, 0 where not yet.
struct Trace {
  uint64_t number;              // in order of commits, from 1
  uint64_t n_dispatches = 0;    // copies included
  uint64_t n_host_waits = 0;    // waits for events between its dispatches or before them
  uint64_t n_host_signals = 0;  // moments at which the host hears of it
  int64_t committed_ns = 0, issued_ns = 0, landed_ns = 0;
};
// What was traced since the last call, oldest first. These functions throw InvalidArgument for other devices.
std::vector<Trace> take_trace(Device& device);

// A dispatch of a command buffer, and how long it took alone, less what taking the time took.
struct Timed {
  std::string part, kernel;  // no kernel: a copy
  Grid grid;
  std::vector<std::byte> params;
  double us;
};
struct Replay {
  std::vector<Timed> dispatches;
  std::vector<double> graph_ms;   // of each run as one graph
  std::vector<double> launch_ms;  // of each run by single launches
};
// Runs the last committed command buffer n times more each way, and once with a time stamp before each
// dispatch. What it does to memory it does again. Nothing may be in flight.
Replay replay(Device& device, int n);
// Bytes a second, read and written, of a copy within the GPU's memory: the best of several.
double copy_bandwidth(Device& device, size_t size_bytes);

}  // namespace flashnext::cuda
