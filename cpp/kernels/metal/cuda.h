// Opens the cuda device with the kernels of metal/.
#pragma once

#include "device/cuda/cuda_device.h"

namespace flashnext::cuda {

// Throws InvalidArgument and DeviceError as open_device does.
DeviceRef open(const Options& options);

}  // namespace flashnext::cuda
