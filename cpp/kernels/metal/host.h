// Opens the metal-host device with the kernels of metal/.
#pragma once

#include "device/metal_host/metal_host_device.h"

namespace flashnext::metal_host {

// Throws InvalidArgument as open_device does.
DeviceRef open(const Options& options);

}  // namespace flashnext::metal_host
