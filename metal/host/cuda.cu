#include "metal/host/cuda.h"

#include <algorithm>
#include <cstring>

#include "msl_cuda.h"

namespace msl_cuda {
namespace {

// Filled while the program is loaded, before anybody asks.
std::vector<const Kernel*>& registry() {
  static std::vector<const Kernel*> kernels;
  return kernels;
}

constexpr uint32_t kMostRows = 65535;  // of a grid's y and z

}  // namespace

Registered::Registered(const Kernel& kernel) { registry().push_back(new Kernel(kernel)); }

const Kernel* find_kernel(std::string_view name) {
  const auto& all = registry();
  const auto it = std::find_if(all.begin(), all.end(), [&](const Kernel* k) { return k->name == name; });
  return it == all.end() ? nullptr : *it;
}
std::vector<const Kernel*> all_kernels() { return registry(); }
const char* name_of(const Kernel& kernel) { return kernel.name; }
int max_threads_of(const Kernel& kernel) { return kernel.max_threads; }

std::string prepare(const Kernel& k, uint32_t threads) {
  cudaFuncAttributes found;
  const cudaError_t error = cudaFuncGetAttributes(&found, k.function);
  if (error != cudaSuccess) return std::string(k.name) + ": " + cudaGetErrorString(error);
  if (found.maxThreadsPerBlock >= int(threads)) return "";
  return std::string(k.name) + ": the GPU runs at most " + std::to_string(found.maxThreadsPerBlock) +
         " of its threads together, expected " + std::to_string(threads);
}

std::string launch(const Launch& l, void* stream) {
  const Kernel& k = *l.kernel;
  const auto wrong = [&](const std::string& what) { return std::string(k.name) + ": " + what; };
  if (l.threads % 32 || l.threads == 0 || l.threads > uint32_t(k.max_threads)) {
    return wrong("a threadgroup of " + std::to_string(l.threads) + " threads, expected whole simdgroups of " +
                 std::to_string(k.max_threads) + " at most");
  }
  if (std::max(l.grid[1], l.grid[2]) > kMostRows) {
    return wrong("the grid has " + std::to_string(std::max(l.grid[1], l.grid[2])) +
                 " rows, the GPU takes at most " + std::to_string(kMostRows));
  }
  Arguments arguments = {};
  std::fill(std::begin(arguments.value_slots), std::end(arguments.value_slots), -1);
  // Slots that the kernel does not bind are memory that it reaches by address.
  for (int i = 0; i < k.n_bindings; i++) {
    const Binding& b = k.bindings[i];
    const auto slot = size_t(b.index);
    if (b.kind == kBuffer) {
      if (slot >= kMostBuffers) return wrong("binds slot " + std::to_string(b.index));
      if (slot < l.slots.size()) arguments.buffers[slot] = l.slots[slot];
    } else if (b.kind == kBytes) {
      if (l.params.size() > kMostBytes || l.params.size() < size_t(b.size)) {
        return wrong("an argument struct of " + std::to_string(l.params.size()) + " bytes, expected " +
                     std::to_string(b.size));
      }
      std::memcpy(arguments.values[0], l.params.data(), l.params.size());
      arguments.value_slots[0] = b.index;
    }
  }
  void* parameters[] = {&arguments};
  const cudaError_t error =
      cudaLaunchKernel(k.function, dim3(l.grid[0], l.grid[1], l.grid[2]), dim3(l.threads), parameters, 0,
                       static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? "" : wrong(cudaGetErrorString(error));
}

}  // namespace msl_cuda
