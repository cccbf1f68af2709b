#include "device/cuda/cuda_device.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/executor.h"
#include "device/cuda/memory.h"
#include "metal/host/cuda.h"

namespace flashnext::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(const std::vector<KernelEntry>& kernels, const Options& options, const cudaDeviceProp& gpu)
      : options_(options),
        gpu_(gpu),
        executor_(options,
                  options.device_memory ? [this] { device_memory_->upload(); } : std::function<void()>()) {
    for (const KernelEntry& e : kernels) {
      const msl_cuda::Kernel* compiled = msl_cuda::find_kernel(e.name);
      if (!compiled) throw InvalidArgument("cuda: no file of metal/ has a kernel " + e.name);
      // Loads it now: a graph could not be recorded while the driver does.
      if (const std::string wrong = msl_cuda::prepare(*compiled, e.threads); !wrong.empty())
        throw DeviceError("cuda: " + wrong);
      kernels_.add(CudaKernel(e, compiled));
    }
    limits_.working_set_bytes = limits_.max_buffer_bytes =
        options.device_memory ? gpu.totalGlobalMem : std::min(host::memory_bytes(), gpu.totalGlobalMem);
    limits_.prompt_equals_window = true;  // one kernel for rows of both classes
  }

  std::string name() const override {
    std::string words;
    for (const auto& [is_on, word] :
         {std::pair(options_.graph, "graph"), std::pair(options_.one_by_one, "one by one"),
          std::pair(options_.device_memory, "device memory")}) {
      if (is_on) words += std::string(", ") + word;
    }
    return "cuda (" + std::string(gpu_.name) + words + ")";
  }
  // The kernels are machine code of one architecture, or the driver's from a common text.
  std::string identity() const override {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    return "cuda " + std::to_string(runtime) + ", driver " + std::to_string(driver) + ", sm_" +
           std::to_string(gpu_.major) + std::to_string(gpu_.minor);
  }
  const Limits& limits() const override { return limits_; }
  uint64_t busy_ns() const override { return executor_.busy_ns(); }

  BufferRef allocate(size_t size_bytes) override {
    if (size_bytes > SIZE_MAX / 2)
      throw OutOfMemory("no buffer can hold " + std::to_string(size_bytes) + " bytes");
    return options_.device_memory ? device_memory_->allocate(size_bytes) : pinned_->allocate(size_bytes);
  }
  BufferRef wrap(std::shared_ptr<const MappedFile> file) override { return file_on_gpu(std::move(file)); }
  const Kernel& kernel(std::string_view name) const override { return kernels_.find(*this, name); }
  std::vector<std::string> kernel_names() const override { return kernels_.names(); }
  std::unique_ptr<CommandBuffer> command_buffer() override { return host::command_buffer(executor_); }
  EventRef event() override { return std::make_shared<host::HostEvent>(); }
  std::unique_ptr<ResidencySet> residency_set() override { return host::residency_set(); }

  CudaExecutor& executor() { return executor_; }

 private:
  Options options_;
  cudaDeviceProp gpu_;
  host::Kernels<CudaKernel> kernels_;
  Limits limits_;
  std::shared_ptr<PinnedMemory> pinned_ = std::make_shared<PinnedMemory>();
  std::shared_ptr<DeviceMemory> device_memory_ = std::make_shared<DeviceMemory>([this] { executor_.idle(); });
  CudaExecutor executor_;
};

CudaDevice& of_cuda(Device& device) {
  auto* found = dynamic_cast<CudaDevice*>(&device);
  if (!found) throw InvalidArgument("device " + device.name() + " is no cuda device");
  return *found;
}

}  // namespace

Options options_of(const std::string& words) {
  Options o;
  for (size_t at = 0; at < words.size();) {
    const size_t end = std::min(words.find(", ", at), words.size());
    const std::string word = words.substr(at, end - at);
    if (word == "graph") {
      o.graph = true;
    } else if (word == "one by one") {
      o.one_by_one = true;
    } else if (word == "device memory") {
      o.device_memory = true;
    } else {
      throw InvalidArgument("cuda: the path is '" + words +
                            "', expected nothing or some of graph, one by one, device memory");
    }
    at = end + 2;
  }
  if (o.graph && o.one_by_one)
    throw InvalidArgument("cuda: the path is '" + words + "'; a graph does not run one by one");
  return o;
}

DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options) {
  cudaDeviceProp gpu;
  if (const cudaError_t error = cudaGetDeviceProperties(&gpu, 0); error != cudaSuccess)
    throw DeviceError("cuda: no NVIDIA GPU can be used here: " + std::string(cudaGetErrorString(error)));
  check(cudaSetDevice(0), "opening the GPU");
  return std::make_shared<CudaDevice>(kernels, options, gpu);
}

std::vector<Trace> take_trace(Device& device) { return of_cuda(device).executor().take_trace(); }

Replay replay(Device& device, int n) { return of_cuda(device).executor().replay(n); }

double copy_bandwidth(Device& device, size_t size_bytes) {
  return of_cuda(device).executor().copy_bandwidth(size_bytes);
}

}  // namespace flashnext::cuda
