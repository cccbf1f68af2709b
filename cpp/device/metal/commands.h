// Records dispatches into command buffers of Metal.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/metal/queue.h"

namespace flashnext::mtl {

std::unique_ptr<CommandBuffer> command_buffer(std::shared_ptr<Queue> queue);

}  // namespace flashnext::mtl
