#include "device/metal/archive.h"

#include <unistd.h>

#include <system_error>

namespace flashnext::mtl {

namespace fs = std::filesystem;

Archive::Archive(id<MTLDevice> device, const fs::path& folder, const std::string& name) : device_(device) {
  if (folder.empty()) return;
  std::error_code problem;
  fs::create_directories(folder, problem);
  path_ = folder / (name + ".metalarchive");
  if (fs::exists(path_, problem)) {
    archive_ = open([NSURL fileURLWithPath:ns(path_.string())]);
    if (!archive_) fs::remove(path_, problem);
  }
  if (archive_) return;
  archive_ = open(nil);
  is_new_ = true;
}

Owned<id<MTLBinaryArchive>> Archive::open(NSURL* url) {
  auto descriptor = Owned<MTLBinaryArchiveDescriptor*>::adopt([[MTLBinaryArchiveDescriptor alloc] init]);
  [descriptor.get() setUrl:url];
  return Owned<id<MTLBinaryArchive>>::adopt([device_ newBinaryArchiveWithDescriptor:descriptor.get()
                                                                              error:nil]);
}

void Archive::use_for(MTLComputePipelineDescriptor* descriptor) {
  if (!archive_) return;
  if (is_new_) [archive_.get() addComputePipelineFunctionsWithDescriptor:descriptor error:nil];
  [descriptor setBinaryArchives:@[ archive_.get() ]];
}

void Archive::save() {
  if (!archive_ || !is_new_) return;
  std::error_code problem;
  const fs::path partial = path_.string() + "." + std::to_string(getpid());
  if (![archive_.get() serializeToURL:[NSURL fileURLWithPath:ns(partial.string())] error:nil]) return;
  for (const auto& entry : fs::directory_iterator(path_.parent_path(), problem)) {
    if (entry.path().extension() == ".metalarchive") fs::remove(entry.path(), problem);
  }
  fs::rename(partial, path_, problem);
  if (problem) fs::remove(partial, problem);
}

}  // namespace flashnext::mtl
