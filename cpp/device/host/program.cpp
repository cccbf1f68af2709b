#include "device/host/program.h"

#include <sched.h>
#include <unistd.h>
#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace flashnext::host {

void HostEvent::signal(uint64_t value) {
  {
    std::lock_guard lock(mutex_);
    if (value > value_.load(std::memory_order_relaxed)) value_.store(value, std::memory_order_release);
  }
  changed_.notify_all();
}

void HostEvent::fail(uint64_t value, const std::string& what) {
  {
    std::lock_guard lock(mutex_);
    failures_[value] = what;
  }
  signal(value);
}

void HostEvent::wait(uint64_t value) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return value_.load(std::memory_order_relaxed) >= value; });
  if (const auto it = failures_.find(value); it != failures_.end()) throw DeviceError(it->second);
}

size_t Program::copy_bytes(const Dispatch& d) const {
  uint64_t size_bytes;
  std::memcpy(&size_bytes, &params[d.params], sizeof size_bytes);
  return size_bytes;
}

void Program::copy(const Dispatch& d) const {
  std::memcpy(slots[d.first_slot + 1], slots[d.first_slot], copy_bytes(d));
}

void Executor::start() {
  thread_ = std::thread([this] { serve(); });
}

void Executor::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  thread_.join();
}

void Executor::submit(std::unique_ptr<Program> program) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(program));
  }
  ready_.notify_one();
}

void Executor::serve() {
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
    retire(std::move(program));
  }
}

// Runs of segments without waits and signals go together, so that workers go from one to the next without
// coming back here.
void Executor::run(const Program& program) {
  failure_.reset();
  const auto& segments = program.segments;
  for (size_t first = 0; first < segments.size();) {
    if (!segments[first].waits.empty()) await(segments[first].waits);
    size_t last = first + 1;
    while (last < segments.size() && segments[last - 1].signals.empty() && segments[last].waits.empty())
      ++last;
    if (!failure_) run_segments(program, first, last);
    finish(segments[last - 1].signals, failure_);
    first = last;
  }
}

void Executor::await(const Signals& waits) {
  for (const auto& [event, value] : waits) {
    try {
      event->wait(value);
    } catch (const Error& e) {
      fail(e.what());
    }
  }
}

void Executor::finish(const Signals& signals, const std::optional<std::string>& failure) {
  for (const auto& [event, value] : signals) failure ? event->fail(value, *failure) : event->signal(value);
}

void Executor::fail(const std::string& what) {
  std::lock_guard lock(failure_mutex_);
  if (!failure_) failure_ = what;
}

std::string Executor::named(const Dispatch& d, const std::string& what) {
  return d.part ? std::string(d.part) + ": " + what : what;
}

namespace {

class Commands final : public CommandBuffer {
 public:
  explicit Commands(Executor& executor) : executor_(executor), program_(std::make_unique<Program>()) {
    program_->segments.emplace_back();
  }

  using CommandBuffer::dispatch;
  void dispatch(const Kernel& kernel, Grid grid, std::span<const Slice> slots,
                std::span<const std::byte> params) override {
    record(&kernel, grid, slots, params);
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

  void record(const Kernel* kernel, Grid grid, std::span<const Slice> slots,
              std::span<const std::byte> params) {
    Program& p = program();
    if (uint64_t{grid.x} * grid.y * grid.z == 0) return;
    p.dispatches.push_back({kernel, grid, static_cast<uint32_t>(p.slots.size()),
                            static_cast<uint32_t>(slots.size()), static_cast<uint32_t>(p.params.size()),
                            static_cast<uint32_t>(params.size()), part_});
    for (const Slice& s : slots) p.slots.push_back(s ? reinterpret_cast<void*>(s.address()) : nullptr);
    p.params.resize(p.params.size() + (params.size() + 7) / 8);
    if (!params.empty()) std::memcpy(&p.params[p.dispatches.back().params], params.data(), params.size());
    ++p.segments.back().n_dispatches;
  }

  Executor& executor_;
  std::unique_ptr<Program> program_;
  const char* part_ = nullptr;
};

class Residency final : public ResidencySet {
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

}  // namespace

std::unique_ptr<CommandBuffer> command_buffer(Executor& executor) {
  return std::make_unique<Commands>(executor);
}
std::unique_ptr<ResidencySet> residency_set() { return std::make_unique<Residency>(); }

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

int processors() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

size_t memory_bytes() { return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE); }

}  // namespace flashnext::host
