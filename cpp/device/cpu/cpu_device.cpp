#include "device/cpu/cpu_device.h"

#include <sched.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/worker_pool.h"

namespace flashnext::cpu {
namespace {

// Kernels call it for exp and the like: it may give other bits in another version, and on processors for
// which it has other code.
std::string math_library() {
#if defined(__GLIBC__)
  std::string found = std::string("glibc ") + gnu_get_libc_version();
#elif defined(__APPLE__)
  std::string found = "the system's math library";
  char version[64];
  size_t size = sizeof version;
  if (sysctlbyname("kern.osversion", version, &size, nullptr, 0) == 0) found += std::string(" ") + version;
#else
  std::string found = "the system's math library";
#endif
#if defined(__x86_64__)
  for (const bool has : {__builtin_cpu_supports("fma") != 0, __builtin_cpu_supports("avx2") != 0,
                         __builtin_cpu_supports("fma4") != 0, __builtin_cpu_supports("avx512f") != 0}) {
    found += has ? "+" : "-";
  }
#endif
  return found;
}

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

class FileBuffer final : public Buffer {
 public:
  explicit FileBuffer(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  size_t size_bytes() const override { return file_->size_bytes(); }
  std::byte* host() const override { return const_cast<std::byte*>(file_->data()); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(file_->data()); }

 private:
  std::shared_ptr<const MappedFile> file_;
};

class HostEvent final : public Event {
 public:
  uint64_t value() const override { return value_.load(std::memory_order_acquire); }

  void signal(uint64_t value) override {
    {
      std::lock_guard lock(mutex_);
      if (value > value_.load(std::memory_order_relaxed)) value_.store(value, std::memory_order_release);
    }
    changed_.notify_all();
  }

  void fail(uint64_t value, const std::string& what) {
    {
      std::lock_guard lock(mutex_);
      failures_[value] = what;
    }
    signal(value);
  }

  void wait(uint64_t value) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return value_.load(std::memory_order_relaxed) >= value; });
    if (const auto it = failures_.find(value); it != failures_.end()) throw DeviceError(it->second);
  }

 private:
  std::atomic<uint64_t> value_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::string> failures_;
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

// A recorded dispatch; slots and params are offsets into the program's pools, which move while they grow.
struct Dispatch {
  const CpuKernel* kernel;  // null: a copy of params' size_bytes from slot 0 to slot 1
  Grid grid;
  uint32_t first_slot;
  uint32_t params;
  const char* part;
};

// What a committed command buffer runs: segments of dispatches, each with waits before it and signals after
// it.
struct Program {
  struct Segment {
    uint32_t first_dispatch = 0, n_dispatches = 0;
    std::vector<std::pair<std::shared_ptr<HostEvent>, uint64_t>> waits, signals;
  };
  std::vector<Dispatch> dispatches;
  std::vector<void*> slots;
  std::vector<uint64_t> params;  // 8-byte units, so that structs are aligned
  std::vector<Segment> segments;
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

// The thread that runs committed programs in order, as worker 0 of the pool.
class Executor {
 public:
  Executor(int workers, uint64_t shuffle_seed, FaultPlan& faults)
      : faults_(faults), pool_(workers), seed_(shuffle_seed), memory_(workers * kWorkerBytes) {
    thread_ = std::thread([this] { serve(); });
  }

  ~Executor() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    ready_.notify_all();
    thread_.join();
  }

  int workers() const { return pool_.size(); }
  uint64_t busy_ns() const { return busy_ns_; }

  void submit(std::unique_ptr<Program> program) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(program));
    }
    ready_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_ptr<Program> program;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        program = std::move(queue_.front());
        queue_.pop_front();
      }
      run(*program);
    }
  }

  // Runs of segments without waits and signals go to the pool together, so that workers go from one to the
  // next without coming back here.
  void run(const Program& program) {
    failure_.reset();
    const auto& segments = program.segments;
    for (size_t first = 0; first < segments.size();) {
      for (const auto& [event, value] : segments[first].waits) {
        try {
          event->wait(value);
        } catch (const Error& e) {
          fail(e.what());
        }
      }
      size_t last = first + 1;
      while (last < segments.size() && segments[last - 1].signals.empty() && segments[last].waits.empty()) {
        ++last;
      }
      if (!failure_) run_until_fault(program, first, last);
      for (const auto& [event, value] : segments[last - 1].signals) {
        failure_ ? event->fail(value, *failure_) : event->signal(value);
      }
      first = last;
    }
  }

  // A planted fault takes the place of its dispatch; what comes before the barrier in front of it runs.
  void run_until_fault(const Program& program, size_t first, size_t last) {
    for (size_t s = first; faults_.any_dispatch() && s < last; ++s) {
      const Program::Segment& segment = program.segments[s];
      for (uint32_t i = 0; i < segment.n_dispatches; ++i) {
        const Dispatch& d = program.dispatches[segment.first_dispatch + i];
        if (!d.kernel) continue;
        if (const auto fault = faults_.at_dispatch(d.kernel->name())) {
          run_segments(program, first, s);
          fail(d, *fault);
          return;
        }
      }
    }
    run_segments(program, first, last);
  }

  void run_segments(const Program& program, size_t first, size_t last) {
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
          static_cast<Executor*>(self)->run_task(segment, task, worker);
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
      std::memcpy(slots[1], slots[0], *static_cast<const uint64_t*>(params));
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
      d->kernel->run(t);
    } catch (const std::exception& e) {
      fail(*d, e.what());
    }
  }

  void fail(const Dispatch& d, const std::string& what) {
    const std::string name(d.kernel->name());
    fail((d.part ? std::string(d.part) + ": " : "") + name + ": " + what);
  }

  void fail(const std::string& what) {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = what;
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
  std::mutex failure_mutex_;
  std::optional<std::string> failure_;

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::unique_ptr<Program>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

class Commands final : public CommandBuffer {
 public:
  explicit Commands(Executor& executor) : executor_(executor), program_(std::make_unique<Program>()) {
    program_->segments.emplace_back();
  }

  using CommandBuffer::dispatch;
  void dispatch(const Kernel& kernel, Grid grid, std::span<const Slice> slots,
                std::span<const std::byte> params) override {
    record(&static_cast<const CpuKernel&>(kernel), grid, slots, params);
  }

  void copy(const Slice& from, const Slice& to, size_t size_bytes) override {
    const uint64_t n = size_bytes;
    const Slice slots[] = {from, to};
    record(nullptr, {}, slots, std::as_bytes(std::span(&n, 1)));
  }

  void part(const char* name) override { part_ = name; }

  void barrier() override {
    Program::Segment& s = program().segments.back();
    if (s.n_dispatches == 0 && s.signals.empty()) return;
    program().segments.emplace_back().first_dispatch = static_cast<uint32_t>(program().dispatches.size());
  }

  void wait(const EventRef& event, uint64_t value) override {
    barrier();
    program().segments.back().waits.emplace_back(std::static_pointer_cast<HostEvent>(event), value);
  }

  void signal(const EventRef& event, uint64_t value) override {
    program().segments.back().signals.emplace_back(std::static_pointer_cast<HostEvent>(event), value);
    barrier();
  }

  void commit() override {
    if (!program_) throw Error("command buffer: committed twice");
    executor_.submit(std::move(program_));
  }

 private:
  Program& program() {
    if (!program_) throw Error("command buffer: used after its commit");
    return *program_;
  }

  void record(const CpuKernel* kernel, Grid grid, std::span<const Slice> slots,
              std::span<const std::byte> params) {
    Program& p = program();
    if (uint64_t{grid.x} * grid.y * grid.z == 0) return;
    p.dispatches.push_back(
        {kernel, grid, static_cast<uint32_t>(p.slots.size()), static_cast<uint32_t>(p.params.size()), part_});
    for (const Slice& s : slots) p.slots.push_back(s ? s.host() : nullptr);
    p.params.resize(p.params.size() + (params.size() + 7) / 8);
    if (!params.empty()) std::memcpy(&p.params[p.dispatches.back().params], params.data(), params.size());
    ++p.segments.back().n_dispatches;
  }

  Executor& executor_;
  std::unique_ptr<Program> program_;
  const char* part_ = nullptr;
};

class Residency final
    : public ResidencySet {  // every buffer of this device is always reachable: only the count matters
 public:
  void add(const BufferRef& buffer) override { buffers_.push_back(buffer); }
  void remove(const BufferRef& buffer) override { std::erase(buffers_, buffer); }
  size_t size_bytes() const override {
    size_t n = 0;
    for (const BufferRef& b : buffers_) n += b->size_bytes();
    return n;
  }

 private:
  std::vector<BufferRef> buffers_;
};

int available_processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

class CpuDevice final : public Device {
 public:
  CpuDevice(std::string path, std::vector<KernelEntry> kernels, const Options& options)
      : path_(std::move(path)),
        executor_(options.workers > 0 ? options.workers : available_processors(), options.shuffle_seed,
                  faults_) {
    for (const KernelEntry& e : kernels) kernels_.emplace(e.name, CpuKernel(e));
    const auto memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    limits_.working_set_bytes = memory;
    limits_.max_buffer_bytes = memory;
    limits_.tensor_alignment = sizeof(float);
    limits_.workers = executor_.workers();
    limits_.prompt_equals_window = !options.reversed_prompts;
  }

  std::string identity() const override {
    return "cpu " + path_ + ", prompt order " + (limits_.prompt_equals_window ? "as windows" : "reversed") +
           ", " + math_library();
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
    return std::make_shared<FileBuffer>(std::move(file));
  }
  const Kernel& kernel(std::string_view name) const override {
    const auto it = kernels_.find(std::string(name));
    if (it == kernels_.end())
      throw InvalidArgument("device " + this->name() + " has no kernel " + std::string(name));
    return it->second;
  }
  std::vector<std::string> kernel_names() const override {
    std::vector<std::string> names;
    for (const auto& [name, kernel] : kernels_) names.push_back(name);
    return names;
  }
  std::unique_ptr<CommandBuffer> command_buffer() override { return std::make_unique<Commands>(executor_); }
  EventRef event() override { return std::make_shared<HostEvent>(); }
  std::unique_ptr<ResidencySet> residency_set() override { return std::make_unique<Residency>(); }

 private:
  std::string path_;
  std::map<std::string, CpuKernel> kernels_;
  Limits limits_;
  FaultPlan faults_;
  Executor executor_;
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
