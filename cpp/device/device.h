// The only door to a device: buffers, kernels, command buffers, events, residency and limits.
//
// Threads: a Device and its Buffers may be used from any thread; a CommandBuffer is recorded and committed by
// one. Work runs in the order of commits. A Device outlives what it made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/mapped_file.h"
#include "device/grid.h"

namespace flashnext {

// What a device can hold and how its arithmetic behaves. Bandwidths are estimates in bytes a second, 0 where
// unknown.
struct Limits {
  size_t working_set_bytes = 0;  // memory it can work with at once; how much of it is used, the plan says
  size_t max_buffer_bytes = 0;
  double read_bandwidth = 0;
  size_t tensor_alignment = 16;  // bytes; a tensor of a mapped file that lies otherwise is copied
  int workers = 1;
  bool prompt_equals_window = true;  // the class law: both classes give the same bits
};

// Bytes that host and device both address (unified memory). Freed, or unmapped, when the last reference goes.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual size_t size_bytes() const = 0;
  virtual std::byte* host() const = 0;   // a wrapped file's bytes are read-only
  virtual uint64_t address() const = 0;  // what tables on the device hold
};
using BufferRef = std::shared_ptr<Buffer>;

// A place inside a buffer, borrowed: the buffer's owner keeps it until the work that uses the slice has run.
// An empty slice is an unused slot.
struct Slice {
  Buffer* buffer = nullptr;
  size_t offset = 0;

  Slice() = default;
  Slice(Buffer* b, size_t at = 0) : buffer(b), offset(at) {}
  Slice(const BufferRef& b, size_t at = 0) : buffer(b.get()), offset(at) {}

  explicit operator bool() const { return buffer != nullptr; }
  Slice operator+(size_t bytes) const { return {buffer, offset + bytes}; }
  template <class T = std::byte>
  T* host() const {
    return reinterpret_cast<T*>(buffer->host() + offset);
  }
  uint64_t address() const { return buffer->address() + offset; }
};

// One compiled kernel of the device. `tile` is how many columns one grid step of its tiled axis covers, 1
// where it has none; `rows` how many rows one step of the axis behind that covers, 0 where there is no such
// axis and each step takes all rows.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual std::string_view name() const = 0;
  virtual uint32_t tile() const = 0;
  virtual uint32_t rows() const { return 0; }
};

// A counter that only grows; completion of work is a value of it.
class Event {
 public:
  virtual ~Event() = default;
  virtual uint64_t value() const = 0;
  virtual void signal(uint64_t value) = 0;
  // Blocks until the value is reached. Throws the DeviceError of the work that should have signalled it.
  virtual void wait(uint64_t value) = 0;
};
using EventRef = std::shared_ptr<Event>;

// Dispatches between two barriers may overlap and run in any order; barrier() orders everything before it
// before everything after it. Event waits and signals are barriers too.
class CommandBuffer {
 public:
  virtual ~CommandBuffer() = default;

  // `slots` in the kernel's order; `params` is copied. The grid is an upper bound, true counts are read by
  // the kernel.
  virtual void dispatch(const Kernel& kernel, Grid grid, std::span<const Slice> slots,
                        std::span<const std::byte> params) = 0;
  virtual void copy(const Slice& from, const Slice& to, size_t size_bytes) = 0;
  virtual void barrier() = 0;
  virtual void wait(const EventRef& event, uint64_t value) = 0;
  virtual void signal(const EventRef& event, uint64_t value) = 0;
  // Returns at once; may be called once.
  virtual void commit() = 0;
  // What the dispatches from here on are for, in the text of their errors; static text, or null.
  virtual void part(const char* name) = 0;

  template <class Params>
  void dispatch(const Kernel& kernel, Grid grid, std::initializer_list<Slice> slots, const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    dispatch(kernel, grid, std::span(slots.begin(), slots.size()), std::as_bytes(std::span(&params, 1)));
  }
};

// Buffers that work reaches by address, kept resident while they are in the set.
class ResidencySet {
 public:
  virtual ~ResidencySet() = default;
  virtual void add(const BufferRef& buffer) = 0;
  virtual void remove(const BufferRef& buffer) = 0;
  virtual size_t size_bytes() const = 0;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cpu (avx2, 2 workers)"
  // What the bits of its results depend on beside the kernels' sources: devices of one text give the same.
  virtual std::string identity() const = 0;
  virtual const Limits& limits() const = 0;
  // Nanoseconds in which work ran since the device was opened; waits for events are not in them.
  virtual uint64_t busy_ns() const = 0;

  // Zeroed memory. Throws OutOfMemory with the size asked for.
  virtual BufferRef allocate(size_t size_bytes) = 0;
  // A whole file, without a copy where the device can.
  virtual BufferRef wrap(std::shared_ptr<const MappedFile> file) = 0;
  // Throws InvalidArgument for a name the device's kernel table lacks. The reference lives as long as the
  // device.
  virtual const Kernel& kernel(std::string_view name) const = 0;
  virtual std::vector<std::string> kernel_names() const = 0;
  virtual std::unique_ptr<CommandBuffer> command_buffer() = 0;
  virtual EventRef event() = 0;
  virtual std::unique_ptr<ResidencySet> residency_set() = 0;
};
using DeviceRef = std::shared_ptr<Device>;

}  // namespace flashnext
