#include "device/metal_host/metal_host_device.h"

#include <chrono>

#include "base/error.h"
#include "base/hash.h"
#include "device/host/program.h"
#include "metal/host/runtime.h"

namespace flashnext::metal_host {
namespace {

using host::Dispatch;
using host::Program;

class GuardedBuffer final : public Buffer {
 public:
  GuardedBuffer(size_t size_bytes, bool at_start)
      : size_bytes_(size_bytes), data_(msl::allocate(size_bytes, 0, at_start)) {
    if (!data_)
      throw OutOfMemory("the system does not give " + std::to_string(size_bytes) + " bytes of memory");
  }
  ~GuardedBuffer() override { msl::release(data_); }
  size_t size_bytes() const override { return size_bytes_; }
  std::byte* host() const override { return static_cast<std::byte*>(data_); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }

 private:
  size_t size_bytes_;
  void* data_;
};

class WatchedFile final : public host::FileBuffer {
 public:
  explicit WatchedFile(std::shared_ptr<const MappedFile> file) : FileBuffer(std::move(file)) {
    msl::adopt(host(), size_bytes());
  }
  ~WatchedFile() override { msl::disown(host()); }
};

class HostKernel final : public Kernel {
 public:
  HostKernel(const KernelEntry& entry, const msl::Kernel* compiled) : entry_(entry), compiled_(compiled) {}
  std::string_view name() const override { return entry_.name; }
  uint32_t tile() const override { return entry_.tile; }
  uint32_t rows() const override { return entry_.rows; }
  uint32_t threads() const { return entry_.threads; }
  const msl::Kernel* compiled() const { return compiled_; }

 private:
  KernelEntry entry_;
  const msl::Kernel* compiled_;
};

class HostExecutor final : public host::Executor {
 public:
  HostExecutor(msl::Schedule schedule, uint64_t seed, int n_threads)
      : schedule_(schedule), seed_(seed), n_threads_(n_threads) {
    start();
  }
  ~HostExecutor() override { stop(); }
  uint64_t busy_ns() const { return busy_ns_; }

 private:
  void run_segments(const Program& program, size_t first, size_t last) override {
    const auto began = std::chrono::steady_clock::now();
    for (size_t s = first; s < last; ++s) {
      if (!run_segment(program, program.segments[s])) break;
    }
    busy_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  }

  // Copies go before or behind all kernels of their segment, as the schedule has it.
  bool run_segment(const Program& program, const Program::Segment& segment) {
    const auto copies = [&] {
      for (uint32_t i = 0; i < segment.n_dispatches; ++i) {
        const Dispatch& d = program.dispatches[segment.first_dispatch + i];
        if (!d.kernel) program.copy(d);
      }
    };
    std::vector<std::vector<msl::Bytes>> bound(segment.n_dispatches);
    std::vector<msl::Dispatch> kernels;
    std::vector<const char*> parts;
    for (uint32_t i = 0; i < segment.n_dispatches; ++i) {
      const Dispatch& d = program.dispatches[segment.first_dispatch + i];
      if (!d.kernel) continue;
      const auto& kernel = static_cast<const HostKernel&>(*d.kernel);
      for (uint32_t j = 0; j < d.n_slots; ++j) bound[i].push_back({program.slots[d.first_slot + j], 0});
      // Slots behind those of the kernel are memory that it reaches by address.
      if (const int slot = msl::bytes_slot_of(*kernel.compiled()); slot >= 0) {
        if (bound[i].size() <= static_cast<size_t>(slot)) bound[i].resize(static_cast<size_t>(slot) + 1);
        bound[i][static_cast<size_t>(slot)] = {program.params.data() + d.params, d.params_bytes};
      }
      kernels.push_back(
          {kernel.compiled(), {d.grid.x, d.grid.y, d.grid.z}, {kernel.threads(), 1, 1}, bound[i], {}});
      parts.push_back(d.part);
    }
    if (schedule_ == msl::Schedule::kForward) copies();
    seed_ = splitmix64(seed_);
    const msl::Failure failure = msl::run(kernels, schedule_, seed_, n_threads_);
    if (schedule_ != msl::Schedule::kForward) copies();
    if (failure.what.empty()) return true;
    const char* part = parts[failure.dispatch];
    fail((part ? std::string(part) + ": " : "") + failure.what);
    return false;
  }

  msl::Schedule schedule_;
  uint64_t seed_;
  int n_threads_;
  std::atomic<uint64_t> busy_ns_{0};
};

class HostDevice final : public Device {
 public:
  HostDevice(const std::vector<KernelEntry>& kernels, msl::Schedule schedule, const Options& options)
      : options_(options),
        schedule_(schedule),
        executor_(schedule, options.seed, options.threads > 0 ? options.threads : host::processors()) {
    for (const KernelEntry& e : kernels) {
      const msl::Kernel* compiled = msl::find_kernel(e.name, options.checked);
      if (!compiled) throw InvalidArgument("metal-host: no file of metal/ has a kernel " + e.name);
      kernels_.add(HostKernel(e, compiled));
    }
    limits_.working_set_bytes = limits_.max_buffer_bytes = host::memory_bytes();
    limits_.prompt_equals_window = true;  // one kernel for rows of both classes, so far
  }

  // The order of threads changes no bit, nor do checks.
  std::string identity() const override { return "metal-host, " + host::math_library(); }
  std::string name() const override {
    return "metal-host (" + options_.schedule + (options_.checked ? ")" : ", unchecked)");
  }
  const Limits& limits() const override { return limits_; }
  uint64_t busy_ns() const override { return executor_.busy_ns(); }
  BufferRef allocate(size_t size_bytes) override {
    if (size_bytes > SIZE_MAX / 2)
      throw OutOfMemory("no buffer can hold " + std::to_string(size_bytes) + " bytes");
    return std::make_shared<GuardedBuffer>(size_bytes, schedule_ == msl::Schedule::kReverse);
  }
  BufferRef wrap(std::shared_ptr<const MappedFile> file) override {
    return std::make_shared<WatchedFile>(std::move(file));
  }
  const Kernel& kernel(std::string_view name) const override { return kernels_.find(*this, name); }
  std::vector<std::string> kernel_names() const override { return kernels_.names(); }
  std::unique_ptr<CommandBuffer> command_buffer() override { return host::command_buffer(executor_); }
  EventRef event() override { return std::make_shared<host::HostEvent>(); }
  std::unique_ptr<ResidencySet> residency_set() override { return host::residency_set(); }

 private:
  Options options_;
  msl::Schedule schedule_;
  host::Kernels<HostKernel> kernels_;
  Limits limits_;
  HostExecutor executor_;
};

}  // namespace

DeviceRef open_device(const std::vector<KernelEntry>& kernels, const Options& options) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) {
    throw InvalidArgument("metal-host: its kernels are compiled for processors with fused multiply-add");
  }
#endif
  const std::map<std::string, msl::Schedule> schedules = {{"forward", msl::Schedule::kForward},
                                                          {"reverse", msl::Schedule::kReverse},
                                                          {"random", msl::Schedule::kRandom}};
  const auto schedule = schedules.find(options.schedule);
  if (schedule == schedules.end()) {
    throw InvalidArgument("metal-host: the schedule is '" + options.schedule +
                          "', expected forward, reverse or random");
  }
  return std::make_shared<HostDevice>(kernels, schedule->second, options);
}

}  // namespace flashnext::metal_host
