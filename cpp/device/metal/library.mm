#include "device/metal/library.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "device/metal/archive.h"

namespace flashnext::mtl {
namespace {

namespace fs = std::filesystem;

struct Text {
  fs::path path;
  std::string content;
};

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  if (!in) throw DeviceError("metal: cannot read " + path.string());
  return out.str();
}

// The library that Xcode's compiler made, or else the texts.
std::vector<Text> texts_in(const fs::path& folder) {
  const fs::path compiled = folder / "flashnext.metallib";
  std::error_code none;
  if (fs::exists(compiled, none)) return {{compiled, read(compiled)}};
  std::vector<Text> texts;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() == ".metal") texts.push_back({entry.path(), read(entry.path())});
  }
  if (texts.empty()) {
    throw DeviceError("metal: there are no kernels in " + folder.string() +
                      ": neither flashnext.metallib nor *.metal; install the package again");
  }
  std::sort(texts.begin(), texts.end(), [](const Text& a, const Text& b) { return a.path < b.path; });
  return texts;
}

Owned<id<MTLLibrary>> compile(id<MTLDevice> device, const Text& from) {
  NSError* error = nil;
  id<MTLLibrary> library = nil;
  if (from.path.extension() == ".metallib") {
    library = [device newLibraryWithURL:[NSURL fileURLWithPath:ns(from.path.string())] error:&error];
  } else {
    // Neither contraction nor reassociation, and the precise functions: bits are those of metal-host wherever
    // the GPU rounds correctly.
    auto options = Owned<MTLCompileOptions*>::adopt([[MTLCompileOptions alloc] init]);
    [options.get() setLanguageVersion:MTLLanguageVersion3_2];
    [options.get() setMathMode:MTLMathModeSafe];
    [options.get() setMathFloatingPointFunctions:MTLMathFloatingPointFunctionsPrecise];
    library = [device newLibraryWithSource:ns(from.content) options:options.get() error:&error];
  }
  if (!library) throw DeviceError("metal: " + from.path.filename().string() + ": " + text(error));
  return Owned<id<MTLLibrary>>::adopt(library);
}

Owned<id<MTLComputePipelineState>> make_pipeline(id<MTLDevice> device, id<MTLLibrary> library,
                                                 const KernelEntry& entry, Archive& archive) {
  auto function = Owned<id<MTLFunction>>::adopt([library newFunctionWithName:ns(entry.name)]);
  if (!function) throw DeviceError("metal: the library does not give the kernel " + entry.name);
  auto descriptor = Owned<MTLComputePipelineDescriptor*>::adopt([[MTLComputePipelineDescriptor alloc] init]);
  [descriptor.get() setLabel:ns(entry.name)];
  [descriptor.get() setComputeFunction:function.get()];
  // All have a whole number of simdgroups, and no more threads than their text says.
  [descriptor.get() setThreadGroupSizeIsMultipleOfThreadExecutionWidth:YES];
  archive.use_for(descriptor.get());
  NSError* error = nil;
  auto pipeline = Owned<id<MTLComputePipelineState>>::adopt([device
      newComputePipelineStateWithDescriptor:descriptor.get()
                                    options:MTLPipelineOptionNone
                                 reflection:nil
                                      error:&error]);
  if (!pipeline) throw DeviceError("metal: " + entry.name + ": " + text(error));
  if ([pipeline.get() threadExecutionWidth] != 32) {
    throw DeviceError("metal: " + entry.name + ": a simdgroup has " +
                      std::to_string([pipeline.get() threadExecutionWidth]) + " threads, expected 32");
  }
  if ([pipeline.get() maxTotalThreadsPerThreadgroup] < entry.threads) {
    throw DeviceError("metal: " + entry.name + ": the GPU runs at most " +
                      std::to_string([pipeline.get() maxTotalThreadsPerThreadgroup]) +
                      " threads of a threadgroup, and " + std::to_string(entry.threads) + " are needed");
  }
  return pipeline;
}

// FNV-1a: names a file, keeps nobody out.
uint64_t hash(uint64_t h, std::string_view bytes) {
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace

std::vector<MetalKernel> load_kernels(id<MTLDevice> device, const std::vector<KernelEntry>& entries,
                                      const Options& options, const std::string& system) {
  const Pool pool;
  uint64_t key = hash(0xcbf29ce484222325u, system);
  std::vector<Owned<id<MTLLibrary>>> libraries;
  std::map<std::string, id<MTLLibrary>> home;
  for (const Text& from : texts_in(options.kernels_folder)) {
    key = hash(key, from.content);
    libraries.push_back(compile(device, from));
    for (NSString* name in [libraries.back().get() functionNames]) home[text(name)] = libraries.back().get();
  }
  char name[40];
  std::snprintf(name, sizeof name, "pipelines-%016llx", static_cast<unsigned long long>(key));
  Archive archive(device, options.cache_folder, name);
  std::vector<MetalKernel> kernels;
  for (const KernelEntry& entry : entries) {
    const auto found = home.find(entry.name);
    if (found == home.end()) {
      throw DeviceError("metal: no text in " + options.kernels_folder + " has the kernel " + entry.name);
    }
    kernels.emplace_back(entry, make_pipeline(device, found->second, entry, archive));
  }
  archive.save();
  return kernels;
}

}  // namespace flashnext::mtl
