// Opens the Metal device with the kernels of metal/.
#pragma once

#include "device/metal/metal_device.h"

namespace flashnext::mtl {

// With the texts, or the library, in the folder metal/ beside the program's file, and pipelines kept in
// $FLASHNEXT_METAL_CACHE, or in ~/Library/Caches/flashnext. Throws as open_device does.
DeviceRef open();

}  // namespace flashnext::mtl
