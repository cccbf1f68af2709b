// Launches kernels that generate.py turned into C++ and nvcc compiled: the runtime of the cuda flavour. A
// threadgroup is a block, a simdgroup a warp; the GPU runs them in whatever order it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace msl_cuda {

struct Kernel;  // include/msl_cuda.h

// Null where there is none.
const Kernel* find_kernel(std::string_view name);
std::vector<const Kernel*> all_kernels();
const char* name_of(const Kernel& kernel);
int max_threads_of(const Kernel& kernel);

// Loads a kernel for threadgroups of so many threads; what is wrong, or nothing.
std::string prepare(const Kernel& kernel, uint32_t threads);

struct Launch {
  const Kernel* kernel;
  uint32_t grid[3];                   // threadgroups
  uint32_t threads;                   // of a threadgroup, whole simdgroups
  std::span<void* const> slots;       // addresses of the GPU in slot order; null is an empty slot
  std::span<const std::byte> params;  // the argument struct
};

// Puts a kernel into a stream (a cudaStream_t). Returns what is wrong with the launch, or nothing; what goes
// wrong while it runs, the stream tells.
std::string launch(const Launch& launch, void* stream);

}  // namespace msl_cuda
