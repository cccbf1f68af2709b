#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/worker_pool.h"
#include "device/host/program.h"

namespace flashnext::cpu {
namespace {

using host::Dispatch;
using host::Program;

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(size_t size_bytes) : size_bytes_(size_bytes) {
    // Large blocks come zeroed from the system and cost nothing until they are touched.
    constexpr size_t kAlign = 64;
    if (size_bytes > SIZE_MAX / 2)
      throw OutOfMemory("no buffer can hold " + std::to_string(size_bytes) + " bytes");
    const size_t rounded = (std::max<size_t>(size_bytes, 1) + kAlign - 1) / kAlign * kAlign;
    raw_ = std::calloc(rounded + kAlign, 1);
    if (!raw_) {
      throw OutOfMemory("the system does not give " + std::to_string(size_bytes) + " bytes of memory");
    }
    const auto at = reinterpret_cast<uintptr_t>(raw_);
    data_ = reinterpret_cast<std::byte*>((at + kAlign - 1) / kAlign * kAlign);
  }
  ~HostBuffer() override { std::free(raw_); }
  size_t size_bytes() const override { return size_bytes_; }
  std::byte* host() const override { return data_; }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }

 private:
  size_t size_bytes_;
  void* raw_;
  std::byte* data_;
};

class CpuKernel final : public Kernel {
 public:
  explicit CpuKernel(const KernelEntry& entry) : entry_(entry) {}
  std::string_view name() const override { return entry_.name; }
  uint32_t tile() const override { return entry_.tile; }
  void run(const Task& task) const { entry_.run(task); }

 private:
  KernelEntry entry_;
};

// A seeded permutation of 0 .. n-1 without a table: i -> (i * a + b) mod n with a coprime to n.
struct Shuffle {
  uint64_t a = 1, b = 0;
  Shuffle() = default;
  Shuffle(uint64_t seed, uint64_t n) : a(splitmix64(seed) % n), b(splitmix64(seed + 1) % n) {
    while (std::gcd(a, n) != 1) a = (a + 1) % n;
    if (n == 1) a = 1;
  }
  uint32_t operator()(uint64_t i, uint64_t n) const { return static_cast<uint32_t>((i * a + b) % n); }
};

// Runs programs as worker 0 of the pool.
class CpuExecutor final : public host::Executor {
 public:
  CpuExecutor(int workers, uint64_t shuffle_seed, FaultPlan& faults)
      : faults_(faults), pool_(workers), seed_(shuffle_seed), memory_(workers * kWorkerBytes) {
    start();
  }
  ~CpuExecutor() override { stop(); }

  int workers() const { return pool_.size(); }
  uint64_t busy_ns() const { return busy_ns_; }

 private:
  // A planted fault takes the place of its dispatch; what comes before the barrier in front of it runs.
  void run_segments(const Program& program, size_t first, size_t last) override {
    for (size_t s = first; faults_.any_dispatch() && s < last; ++s) {
      const Program::Segment& segment = program.segments[s];
      for (uint32_t i = 0; i < segment.n_dispatches; ++i) {
        const Dispatch& d = program.dispatches[segment.first_dispatch + i];
        if (!d.kernel) continue;
        if (const auto fault = faults_.at_dispatch(d.kernel->name())) {
          run_sound(program, first, s);
          fail_dispatch(d, *fault);
          return;
        }
      }
    }
    run_sound(program, first, last);
  }

  void run_sound(const Program& program, size_t first, size_t last) {
    tasks_.clear();
    shuffles_.clear();
    for (size_t s = first; s < last; ++s) {
      const Program::Segment& segment = program.segments[s];
      uint64_t n = 0;
      for (uint32_t i = 0; i < segment.n_dispatches; ++i) {
        const Grid g = program.dispatches[segment.first_dispatch + i].grid;
        n += uint64_t{g.x} * g.y * g.z;
      }
      tasks_.push_back(static_cast<uint32_t>(n));
      if (seed_) shuffles_.push_back(n ? Shuffle(seed_ = splitmix64(seed_) | 1, n) : Shuffle());
    }
    program_ = &program;
    first_segment_ = first;
    const auto began = std::chrono::steady_clock::now();
    pool_.run(
        tasks_,
        [](void* self, uint32_t segment, uint32_t task, int worker) {
          static_cast<CpuExecutor*>(self)->run_task(segment, task, worker);
        },
        this);
    busy_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
    first_number_ += last - first;
  }

  void run_task(uint32_t segment, uint32_t task, int worker) {
    if (seed_) task = shuffles_[segment](task, tasks_[segment]);
    const Program::Segment& s = program_->segments[first_segment_ + segment];
    const Dispatch* d = &program_->dispatches[s.first_dispatch];
    for (;; ++d) {
      const uint32_t n = d->grid.x * d->grid.y * d->grid.z;
      if (task < n) break;
      task -= n;
    }
    void* const* slots = program_->slots.data() + d->first_slot;
    const void* params = program_->params.data() + d->params;
    if (!d->kernel) {
      program_->copy(*d);
      return;
    }
    // y runs slowest: neighbouring tasks are neighbouring columns, so weights stream in order.
    const Task t = {slots,
                    params,
                    d->grid,
                    task % d->grid.x,
                    task / d->grid.x % d->grid.y,
                    task / d->grid.x / d->grid.y,
                    memory_.data() + worker * kWorkerBytes,
                    memory_.data() + worker * kWorkerBytes + kScratchBytes,
                    first_number_ + segment,
                    static_cast<uint32_t>(pool_.size())};
    try {
      static_cast<const CpuKernel*>(d->kernel)->run(t);
    } catch (const std::exception& e) {
      fail_dispatch(*d, e.what());
    }
  }

  void fail_dispatch(const Dispatch& d, const std::string& what) {
    fail(named(d, std::string(d.kernel->name()) + ": " + what));
  }

  static constexpr size_t kWorkerBytes = kScratchBytes + kKeptBytes;
  struct Memory {  // aligned and untouched until used
    explicit Memory(size_t n) : block(n) {}
    std::byte* data() { return block.host(); }
    HostBuffer block;
  };

  FaultPlan& faults_;
  WorkerPool pool_;
  uint64_t seed_;
  Memory memory_;
  std::vector<uint32_t> tasks_;
  std::vector<Shuffle> shuffles_;
  const Program* program_ = nullptr;
  size_t first_segment_ = 0;
  uint64_t first_number_ = 1;  // of that segment, of all that ever ran
  std::atomic<uint64_t> busy_ns_{0};
};

class CpuDevice final : public Device {
 public:
  CpuDevice(std::string path, std::vector<KernelEntry> kernels, const Options& options)
      : path_(std::move(path)),
        executor_(options.workers > 0 ? options.workers : host::processors(), options.shuffle_seed, faults_) {
    for (const KernelEntry& e : kernels) kernels_.add(CpuKernel(e));
    const size_t memory = host::memory_bytes();
    limits_.working_set_bytes = memory;
    limits_.max_buffer_bytes = memory;
    limits_.tensor_alignment = sizeof(float);
    limits_.workers = executor_.workers();
    limits_.prompt_equals_window = !options.reversed_prompts;
  }

  std::string identity() const override {
    return "cpu " + path_ + ", prompt order " + (limits_.prompt_equals_window ? "as windows" : "reversed") +
           ", " + host::math_library();
  }
  std::string name() const override {
    const int n = executor_.workers();
    return "cpu (" + path_ + ", " + std::to_string(n) + (n == 1 ? " worker)" : " workers)");
  }
  const Limits& limits() const override { return limits_; }
  uint64_t busy_ns() const override { return executor_.busy_ns(); }
  FaultPlan& faults() { return faults_; }
  BufferRef allocate(size_t size_bytes) override {
    if (faults_.at_allocation())
      throw OutOfMemory("no memory for " + std::to_string(size_bytes) + " bytes, by a planted fault");
    return std::make_shared<HostBuffer>(size_bytes);
  }
  BufferRef wrap(std::shared_ptr<const MappedFile> file) override {
    return std::make_shared<host::FileBuffer>(std::move(file));
  }
  const Kernel& kernel(std::string_view name) const override { return kernels_.find(*this, name); }
  std::vector<std::string> kernel_names() const override { return kernels_.names(); }
  std::unique_ptr<CommandBuffer> command_buffer() override { return host::command_buffer(executor_); }
  EventRef event() override { return std::make_shared<host::HostEvent>(); }
  std::unique_ptr<ResidencySet> residency_set() override { return host::residency_set(); }

 private:
  std::string path_;
  host::Kernels<CpuKernel> kernels_;
  Limits limits_;
  FaultPlan faults_;
  CpuExecutor executor_;
};

}  // namespace

DeviceRef open_device(std::string path, std::vector<KernelEntry> kernels, const Options& options) {
  return std::make_shared<CpuDevice>(std::move(path), std::move(kernels), options);
}

FaultPlan& fault_plan(Device& device) {
  auto* cpu = dynamic_cast<CpuDevice*>(&device);
  if (!cpu) throw InvalidArgument("device " + device.name() + " cannot plant faults; the CPU device can");
  return cpu->faults();
}

}  // namespace flashnext::cpu
