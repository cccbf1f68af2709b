// flashnext._core.testing of the cuda device: what it traced, and times of what it ran.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/error.h"
#include "bindings/testing.h"
#include "device/device.h"
#if defined(FLASHNEXT_HAS_CUDA)
#include "device/cuda/cuda_device.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace flashnext {
namespace {

using Traces = std::vector<std::map<std::string, int64_t>>;
using Timed =
    std::tuple<std::string, std::string, std::tuple<uint32_t, uint32_t, uint32_t>, nb::bytes, double>;
using Replay = std::tuple<std::vector<Timed>, std::vector<double>, std::vector<double>>;

#if defined(FLASHNEXT_HAS_CUDA)

Traces cuda_trace(const DeviceRef& device) {
  Traces out;
  for (const cuda::Trace& t : cuda::take_trace(*device)) {
    out.push_back({{"number", static_cast<int64_t>(t.number)},
                   {"dispatches", static_cast<int64_t>(t.n_dispatches)},
                   {"host_waits", static_cast<int64_t>(t.n_host_waits)},
                   {"host_signals", static_cast<int64_t>(t.n_host_signals)},
                   {"committed_ns", t.committed_ns},
                   {"issued_ns", t.issued_ns},
                   {"landed_ns", t.landed_ns}});
  }
  return out;
}

Replay cuda_replay(const DeviceRef& device, int n) {
  cuda::Replay r;
  {
    const nb::gil_scoped_release release;
    r = cuda::replay(*device, n);
  }
  std::vector<Timed> timed;
  for (const cuda::Timed& t : r.dispatches) {
    timed.emplace_back(t.part, t.kernel, std::tuple(t.grid.x, t.grid.y, t.grid.z),
                       nb::bytes(t.params.data(), t.params.size()), t.us);
  }
  return {std::move(timed), std::move(r.graph_ms), std::move(r.launch_ms)};
}

double cuda_copy_bandwidth(const DeviceRef& device, size_t size_bytes) {
  return cuda::copy_bandwidth(*device, size_bytes);
}

#else

[[noreturn]] void refuse() { throw InvalidArgument("this build has no cuda device (docs/metal.md)"); }
Traces cuda_trace(const DeviceRef&) { refuse(); }
Replay cuda_replay(const DeviceRef&, int) { refuse(); }
double cuda_copy_bandwidth(const DeviceRef&, size_t) { refuse(); }

#endif

}  // namespace

void bind_testing_cuda(nb::module_& m) {
  m.def("cuda_trace", &cuda_trace, "device"_a,
        "Command buffers that a cuda device was given since the last call, in order: how many dispatches, "
        "waits "
        "for the host and signals to it each had, and when it was committed, put into streams and landed.");
  m.def("cuda_replay", &cuda_replay, "device"_a, "n"_a,
        "Run the last command buffer of a cuda device with path 'device memory' again: (each dispatch with "
        "part, "
        "kernel, grid, argument struct and microseconds alone; milliseconds of n runs as one graph; of n "
        "runs by "
        "single launches).");
  m.def("cuda_copy_bandwidth", &cuda_copy_bandwidth, "device"_a, "size_bytes"_a,
        nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second, read and written, that a copy within a cuda device's memory moves at best.");
}

}  // namespace flashnext
