// The kernels of metal/ as a Metal device launches them.
#pragma once

#include <vector>

#include "device/metal/metal_device.h"

namespace flashnext::mtl {

std::vector<KernelEntry> kernels();

}  // namespace flashnext::mtl
