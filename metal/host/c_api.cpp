// The runtime as shim.py calls it.
#include <cstring>

#include "metal/host/internal.h"

namespace {
std::string error;
}

extern "C" {

const char* msl_error() { return error.c_str(); }
const char* msl_kernel(int i) {
  const auto all = msl::all_kernels();
  return i < static_cast<int>(all.size()) ? msl::name_of(*all[static_cast<size_t>(i)]) : nullptr;
}
void* msl_allocate(size_t n, int at_start) { return msl::allocate(n, 0xff, at_start != 0); }
int msl_release(void* memory) { return (error = msl::release(memory)).empty() ? 0 : 1; }

// sizes[i]: 0 for a buffer, else what is bound by value. schedule: 0 forward, 1 reverse, 2 random.
int msl_run(const char* name,
            int n_buffers,
            const void* const* buffers,
            const size_t* sizes,
            const uint32_t* grid,
            const uint32_t* threads,
            int n_threadgroup,
            const uint32_t* threadgroup_bytes,
            int schedule,
            uint64_t seed) {
  msl::Dispatch d = {};
  d.kernel = msl::find_kernel(name);
  if (!d.kernel) {
    error = std::string("there is no kernel ") + name;
    return 1;
  }
  std::vector<msl::Bytes> bound;
  for (int i = 0; i < n_buffers; i++) bound.push_back({buffers[i], sizes[i]});
  d.buffers = bound;
  d.threadgroup_bytes = {threadgroup_bytes, static_cast<size_t>(n_threadgroup)};
  std::memcpy(d.grid, grid, sizeof d.grid);
  std::memcpy(d.threads, threads, sizeof d.threads);
  error = msl::run({&d, 1}, static_cast<msl::Schedule>(schedule), seed).what;
  return error.empty() ? 0 : 1;
}
}
