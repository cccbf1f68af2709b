// Compiled pipelines in a file, so that only the first start compiles them.
#pragma once

#import <Metal/Metal.h>

#include <filesystem>
#include <string>

#include "device/metal/handle.h"

namespace flashnext::mtl {

// A cache: what goes wrong with it costs time and is no error. A damaged file is removed and made again.
class Archive {
 public:
  // `name` changes with everything that pipelines depend on. Without a folder nothing is kept.
  Archive(id<MTLDevice> device, const std::filesystem::path& folder, const std::string& name);
  // Lets a pipeline be found here, and kept here where this is new.
  void use_for(MTLComputePipelineDescriptor* descriptor);
  // Writes what is new, under another name first; older ones of the folder go.
  void save();

 private:
  Owned<id<MTLBinaryArchive>> open(NSURL* url);

  id<MTLDevice> device_;
  std::filesystem::path path_;
  Owned<id<MTLBinaryArchive>> archive_;
  bool is_new_ = false;
};

}  // namespace flashnext::mtl
