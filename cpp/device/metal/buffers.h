// Memory that CPU and GPU share: allocated, or the pages of a mapped file.
#pragma once

#import <Metal/Metal.h>

#include <memory>

#include "device/device.h"
#include "device/metal/residency.h"

namespace flashnext::mtl {

// Zeroed and resident. Throws OutOfMemory with the size and what is allowed.
BufferRef allocate(id<MTLDevice> device, const std::shared_ptr<Residency>& residency, size_t size_bytes);
// The file's own pages, resident.
BufferRef wrap(id<MTLDevice> device, const std::shared_ptr<Residency>& residency,
               std::shared_ptr<const MappedFile> file);
// Of a buffer that one of these made.
id<MTLBuffer> object_of(const Buffer& buffer);

}  // namespace flashnext::mtl
