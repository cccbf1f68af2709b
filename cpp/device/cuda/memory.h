// Buffers of the cuda device: the host's memory that the GPU addresses, the GPU's memory with copies for the
// host, and files.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/host/program.h"

namespace flashnext::cuda {

// Pinned memory that both sides address, at one address. Blocks that were given back are kept: making one
// takes the system as long as a small pass.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  ~PinnedMemory();
  // Throws OutOfMemory.
  BufferRef allocate(size_t size_bytes);
  void give_back(void* data, size_t room);

 private:
  std::mutex mutex_;
  std::multimap<size_t, void*> free_;  // by room
  size_t free_bytes_ = 0;
};

// Memory of the GPU. What the host writes through host() is copied before the next work runs, what work has
// written is copied when host() is called.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  // idle: waits until all committed work has run.
  explicit DeviceMemory(std::function<void()> idle) : idle_(std::move(idle)) {}
  // Throws OutOfMemory.
  BufferRef allocate(size_t size_bytes);
  // Before work runs: copies what the host has written. Throws DeviceError.
  void upload();

 private:
  class Mirrored;
  std::function<void()> idle_;
  std::mutex mutex_;
  std::set<Mirrored*> written_;  // by the host, since the last upload
  uint64_t n_uploads_ = 0;       // the work behind each may have written every buffer
};

// A file in the GPU's memory; the host reads its mapping. Throws OutOfMemory.
BufferRef file_on_gpu(std::shared_ptr<const MappedFile> file);

}  // namespace flashnext::cuda
