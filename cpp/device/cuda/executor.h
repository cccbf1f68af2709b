// Runs committed programs on the GPU. One thread puts them into streams, in order and without waiting for
// what it has put there; another one waits for the GPU and makes their signals. So the next round is in the
// stream while the one before runs.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <functional>

#include "device/cuda/cuda_device.h"
#include "device/host/program.h"

namespace flashnext::cuda {

class CudaKernel final : public Kernel {
 public:
  CudaKernel(const KernelEntry& entry, const void* compiled) : entry_(entry), compiled_(compiled) {}
  std::string_view name() const override { return entry_.name; }
  uint32_t tile() const override { return entry_.tile; }
  uint32_t rows() const override { return entry_.rows; }
  uint32_t threads() const { return entry_.threads; }
  const void* compiled() const { return compiled_; }  // a msl_cuda::Kernel

 private:
  KernelEntry entry_;
  const void* compiled_;
};

// Throws DeviceError with what was tried.
void check(cudaError_t error, const char* what);

class CudaExecutor final : public host::Executor {
 public:
  // before_work: is called before each program is put into a stream.
  CudaExecutor(const Options& options, std::function<void()> before_work);
  ~CudaExecutor() override;

  void submit(std::unique_ptr<host::Program> program) override;
  // Waits until all that was submitted has landed.
  void idle();
  uint64_t busy_ns() const { return busy_ns_; }
  std::vector<Trace> take_trace();
  Replay replay(int n);
  double copy_bandwidth(size_t size_bytes);

 private:
  // What the host is told of when the GPU has come so far.
  struct Landing {
    cudaEvent_t begin = nullptr, end = nullptr;  // none: nothing was put into a stream
    cudaGraphExec_t graph = nullptr;
    Signals signals;
    std::optional<std::string> failure;
    std::shared_ptr<Trace> trace;
    bool last = false;  // of its program
  };

  void run_segments(const host::Program& program, size_t first, size_t last) override;
  void await(const Signals& waits) override;
  void finish(const Signals& signals, const std::optional<std::string>& failure) override;
  void retire(std::unique_ptr<host::Program> program) override;

  using Each = std::function<void(const host::Dispatch&)>;
  void put(const host::Program& program, size_t first, size_t last, bool in_order, const Each& before = {});
  void put_one(const host::Program& program, const host::Dispatch& dispatch, cudaStream_t stream);
  double timed(const std::function<void()>& work);
  cudaGraphExec_t record(const std::function<void()>& work);
  void push(Landing landing);
  void land();
  void land_one(Landing& landing);
  std::optional<std::string> lost();

  static constexpr size_t kStreams = 4;
  Options options_;
  std::function<void()> before_work_;
  std::array<cudaStream_t, kStreams> streams_ = {};
  cudaEvent_t fork_ = nullptr;
  std::array<cudaEvent_t, kStreams> joins_ = {};

  // The issuing thread's.
  Landing next_;
  std::unique_ptr<host::Program> last_;           // for replay
  std::deque<std::shared_ptr<Trace>> committed_;  // under mutex_, in the order of programs

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Landing> landings_;
  std::vector<std::shared_ptr<Trace>> traces_;
  std::optional<std::string> lost_;  // why nothing runs any more
  uint64_t n_submitted_ = 0, n_landed_ = 0;
  bool stop_landing_ = false;
  std::atomic<uint64_t> busy_ns_{0};
  std::thread landing_thread_;
};

}  // namespace flashnext::cuda
