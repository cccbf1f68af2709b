#include "device/cuda/memory.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace flashnext::cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kKept = size_t{256} << 20;  // bytes of free blocks that are kept

[[noreturn]] void throw_out_of_memory(const char* whose, size_t size_bytes) {
  cudaGetLastError();  // the next call is not to find it
  throw OutOfMemory("cuda: " + std::string(whose) + " does not give " + std::to_string(size_bytes) +
                    " bytes of memory");
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw DeviceError("cuda: " + std::string(what) + ": " + cudaGetErrorString(error));
}

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<PinnedMemory> owner, void* data, size_t size_bytes, size_t room)
      : owner_(std::move(owner)), data_(data), size_bytes_(size_bytes), room_(room) {}
  ~PinnedBuffer() override { owner_->give_back(data_, room_); }
  size_t size_bytes() const override { return size_bytes_; }
  std::byte* host() const override { return static_cast<std::byte*>(data_); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }

 private:
  std::shared_ptr<PinnedMemory> owner_;
  void* data_;
  size_t size_bytes_, room_;
};

class FileOnGpu final : public host::FileBuffer {
 public:
  explicit FileOnGpu(std::shared_ptr<const MappedFile> file) : FileBuffer(std::move(file)) {
    if (cudaMalloc(&data_, size_bytes()) != cudaSuccess) throw_out_of_memory("the GPU", size_bytes());
    cudaError_t error = cudaMemcpy(data_, host(), size_bytes(), cudaMemcpyHostToDevice);
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);  // the copy itself may go on till then
    if (error != cudaSuccess) cudaFree(data_);
    check(error, "copying a file to the GPU");
  }
  ~FileOnGpu() override { cudaFree(data_); }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace

PinnedMemory::~PinnedMemory() {
  for (const auto& [room, data] : free_) cudaFreeHost(data);
}

BufferRef PinnedMemory::allocate(size_t size_bytes) {
  const size_t n = std::max(size_bytes, kPage);
  const size_t room = n <= (kKept >> 4) ? std::bit_ceil(n) : (n + kPage - 1) / kPage * kPage;
  void* data = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = free_.find(room); it != free_.end()) {
      data = it->second;
      free_.erase(it);
      free_bytes_ -= room;
    }
  }
  if (!data && cudaHostAlloc(&data, room, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
    throw_out_of_memory("the system", size_bytes);
  std::memset(data, 0, size_bytes);
  return std::make_shared<PinnedBuffer>(shared_from_this(), data, size_bytes, room);
}

void PinnedMemory::give_back(void* data, size_t room) {
  {
    const std::lock_guard lock(mutex_);
    if (free_bytes_ + room <= kKept) {
      free_.emplace(room, data);
      free_bytes_ += room;
      return;
    }
  }
  cudaFreeHost(data);
}

class DeviceMemory::Mirrored final : public Buffer {
 public:
  Mirrored(std::shared_ptr<DeviceMemory> owner, size_t size_bytes)
      : owner_(std::move(owner)), size_bytes_(size_bytes) {
    {
      const std::lock_guard lock(owner_->mutex_);
      n_uploads_ = owner_->n_uploads_;
    }
    const size_t room = std::max<size_t>(size_bytes, 1);
    if (cudaMalloc(&data_, room) != cudaSuccess) throw_out_of_memory("the GPU", size_bytes);
    const cudaError_t error = cudaMemset(data_, 0, room);
    if (error != cudaSuccess) cudaFree(data_);
    check(error, "clearing memory of the GPU");
  }
  ~Mirrored() override {
    {
      const std::lock_guard lock(owner_->mutex_);
      owner_->written_.erase(this);
    }
    cudaFree(data_);
  }
  size_t size_bytes() const override { return size_bytes_; }
  uint64_t address() const override { return reinterpret_cast<uint64_t>(data_); }
  std::byte* host() const override {
    owner_->idle_();
    const std::lock_guard lock(owner_->mutex_);
    if (!mirror_) mirror_.reset(new std::byte[size_bytes_]());
    if (n_uploads_ != owner_->n_uploads_) {
      check(cudaMemcpy(mirror_.get(), data_, size_bytes_, cudaMemcpyDeviceToHost), "reading a buffer");
      n_uploads_ = owner_->n_uploads_;
    }
    owner_->written_.insert(const_cast<Mirrored*>(this));
    return mirror_.get();
  }
  void upload() const {
    check(cudaMemcpy(data_, mirror_.get(), size_bytes_, cudaMemcpyHostToDevice), "writing a buffer");
  }

 private:
  std::shared_ptr<DeviceMemory> owner_;
  size_t size_bytes_;
  void* data_ = nullptr;
  mutable std::unique_ptr<std::byte[]> mirror_;
  mutable uint64_t n_uploads_ = 0;  // of the owner, when the mirror was as the memory is
};

BufferRef DeviceMemory::allocate(size_t size_bytes) {
  return std::make_shared<Mirrored>(shared_from_this(), size_bytes);
}

void DeviceMemory::upload() {
  const std::lock_guard lock(mutex_);
  for (const Mirrored* buffer : written_) buffer->upload();
  written_.clear();
  ++n_uploads_;
  // The copies, and the clearing of new buffers, may go on till then, and no other stream waits for them.
  check(cudaStreamSynchronize(nullptr), "writing buffers");
}

BufferRef file_on_gpu(std::shared_ptr<const MappedFile> file) {
  return std::make_shared<FileOnGpu>(std::move(file));
}

}  // namespace flashnext::cuda
