#include "kernels/metal/open.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/metal/table.h"

namespace flashnext::mtl {
namespace {

const char anchor = 0;  // lies in the file that this is part of

std::string kernels_folder() {
  Dl_info info;
  if (!dladdr(&anchor, &info) || !info.dli_fname) return "metal";
  return (std::filesystem::path(info.dli_fname).parent_path() / "metal").string();
}

std::string cache_folder() {
  if (const char* given = std::getenv("FLASHNEXT_METAL_CACHE")) return given;
  const char* home = std::getenv("HOME");
  return home ? std::string(home) + "/Library/Caches/flashnext" : "";
}

}  // namespace

DeviceRef open() { return open_device(kernels(), {kernels_folder(), cache_folder(), {}}); }

}  // namespace flashnext::mtl
