// For devices whose work runs on threads of the host: what command buffers record, the thread that runs it,
// and what else such devices share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"

namespace flashnext::host {

class HostEvent final : public Event {
 public:
  uint64_t value() const override { return value_.load(std::memory_order_acquire); }
  void signal(uint64_t value) override;
  // Signals a value whose wait throws.
  void fail(uint64_t value, const std::string& what);
  void wait(uint64_t value) override;

 private:
  std::atomic<uint64_t> value_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::string> failures_;
};

// A recorded dispatch; slots and params are offsets into the program's pools, which move while they grow.
struct Dispatch {
  const Kernel* kernel;  // null: a copy of params' size_bytes from slot 0 to slot 1
  Grid grid;
  uint32_t first_slot, n_slots;
  uint32_t params, params_bytes;
  const char* part;
};

// What a committed command buffer runs: segments of dispatches that may overlap, each with waits before it
// and signals after it.
struct Program {
  struct Segment {
    uint32_t first_dispatch = 0, n_dispatches = 0;
    std::vector<std::pair<std::shared_ptr<HostEvent>, uint64_t>> waits, signals;
  };
  std::vector<Dispatch> dispatches;
  std::vector<void*> slots;      // addresses of the device
  std::vector<uint64_t> params;  // 8-byte units, so that structs are aligned
  std::vector<Segment> segments;

  size_t copy_bytes(const Dispatch& d) const;  // of one without a kernel
  void copy(const Dispatch& d) const;          // by the host
};

// The thread that runs committed programs in order.
class Executor {
 public:
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual void submit(std::unique_ptr<Program> program);

 protected:
  Executor() = default;
  // A subclass starts the thread when it is made, and stops it, after all that was submitted, before it goes.
  void start();
  void stop();
  // Runs segments first .. last - 1 in order: only the first has waits, which are over, only the last has
  // signals, which finish() makes. Failures go to fail().
  virtual void run_segments(const Program& program, size_t first, size_t last) = 0;
  // Makes the signals of a segment that run_segments ran, or that it left out because of a failure. Devices
  // that run on by themselves make them later.
  using Signals = std::vector<std::pair<std::shared_ptr<HostEvent>, uint64_t>>;
  virtual void finish(const Signals& signals, const std::optional<std::string>& failure);
  // Waits of a segment, before it runs.
  virtual void await(const Signals& waits);
  // Takes a program that has been run.
  virtual void retire(std::unique_ptr<Program>) {}
  // The first failure of a program stands for all of it. From any thread.
  void fail(const std::string& what);
  static std::string named(const Dispatch& d, const std::string& what);  // "part: what"

 private:
  void serve();
  void run(const Program& program);

  std::mutex failure_mutex_;
  std::optional<std::string> failure_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::unique_ptr<Program>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

// A mapped file, which is not to be written.
class FileBuffer : public Buffer {
 public:
  explicit FileBuffer(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  size_t size_bytes() const override { return file_->size_bytes(); }
  std::byte* host() const override { return const_cast<std::byte*>(file_->data()); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(file_->data()); }

 private:
  std::shared_ptr<const MappedFile> file_;
};

// A device's kernels by name; K is made of one entry of its table.
template <class K>
class Kernels {
 public:
  void add(K kernel) {
    std::string name(kernel.name());
    kernels_.emplace(std::move(name), std::move(kernel));
  }
  // Throws InvalidArgument for a name that the device lacks.
  const Kernel& find(const Device& device, std::string_view name) const {
    const auto it = kernels_.find(name);
    if (it == kernels_.end())
      throw InvalidArgument("device " + device.name() + " has no kernel " + std::string(name));
    return it->second;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, kernel] : kernels_) all.push_back(name);
    return all;
  }

 private:
  std::map<std::string, K, std::less<>> kernels_;
};

std::unique_ptr<CommandBuffer> command_buffer(Executor& executor);
// Every buffer of such a device is always reachable: only the count matters.
std::unique_ptr<ResidencySet> residency_set();
size_t memory_bytes();  // of this machine
int processors();       // that this process may run on
// What kernels call for exp and the like: it may give other bits in another version, and on processors for
// which it has other code.
std::string math_library();

}  // namespace flashnext::host
