#include "device/metal/buffers.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace flashnext::mtl {
namespace {

// Kernels reach memory by addresses in tables, which Metal does not follow; so order between dispatches is
// said by barriers, and all memory is in residency sets.
constexpr MTLResourceOptions kShared = MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

class MetalBuffer final : public Buffer {
 public:
  MetalBuffer(Owned<id<MTLBuffer>> buffer, std::shared_ptr<Residency> residency, size_t size_bytes,
              std::shared_ptr<const MappedFile> file)
      : buffer_(std::move(buffer)),
        residency_(std::move(residency)),
        file_(std::move(file)),
        size_bytes_(size_bytes),
        host_(static_cast<std::byte*>([buffer_.get() contents])),
        address_([buffer_.get() gpuAddress]) {
    residency_->add(buffer_.get(), nullptr);
  }
  ~MetalBuffer() override { residency_->remove(buffer_.get()); }
  size_t size_bytes() const override { return size_bytes_; }
  std::byte* host() const override { return host_; }
  uint64_t address() const override { return address_; }
  id<MTLBuffer> object() const { return buffer_.get(); }

 private:
  Owned<id<MTLBuffer>> buffer_;
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<const MappedFile> file_;  // unmapped behind the buffer
  size_t size_bytes_;
  std::byte* host_;
  uint64_t address_;
};

void require_allowed(id<MTLDevice> device, size_t size_bytes, const std::string& what) {
  const size_t most = [device maxBufferLength];
  if (size_bytes <= most) return;
  throw OutOfMemory("metal: " + what + " has " + std::to_string(size_bytes) +
                    " bytes, and a buffer at most " + std::to_string(most));
}

}  // namespace

BufferRef allocate(id<MTLDevice> device, const std::shared_ptr<Residency>& residency, size_t size_bytes) {
  require_allowed(device, size_bytes, "what is asked for");
  const Pool pool;
  auto buffer = Owned<id<MTLBuffer>>::adopt([device newBufferWithLength:std::max<size_t>(size_bytes, 1)
                                                                options:kShared]);
  if (!buffer) {
    throw OutOfMemory("metal: the system does not give " + std::to_string(size_bytes) + " bytes of memory");
  }
  return std::make_shared<MetalBuffer>(std::move(buffer), residency, size_bytes, nullptr);
}

BufferRef wrap(id<MTLDevice> device, const std::shared_ptr<Residency>& residency,
               std::shared_ptr<const MappedFile> file) {
  // Metal takes whole pages; a mapping's last one is there to its end.
  const auto page = static_cast<size_t>(getpagesize());
  const size_t size_bytes = file->size_bytes(), pages_bytes = (size_bytes + page - 1) / page * page;
  require_allowed(device, pages_bytes, file->path());
  const Pool pool;
  auto buffer =
      Owned<id<MTLBuffer>>::adopt([device newBufferWithBytesNoCopy:const_cast<std::byte*>(file->data())
                                                            length:pages_bytes
                                                           options:kShared
                                                       deallocator:nil]);
  if (!buffer) throw OutOfMemory("metal: the system does not let the GPU use the pages of " + file->path());
  return std::make_shared<MetalBuffer>(std::move(buffer), residency, size_bytes, std::move(file));
}

id<MTLBuffer> object_of(const Buffer& buffer) { return static_cast<const MetalBuffer&>(buffer).object(); }

}  // namespace flashnext::mtl
