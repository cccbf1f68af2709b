// Libraries of Metal texts, whose kernels are those that the shim compiled, pipelines and their archive.
#import <Metal/Metal.h>

#include <fstream>
#include <set>
#include <sstream>

#include "library.h"

namespace sim {
namespace {

constexpr char kHead[] = "simulated pipelines\n";

NSErrorDomain const kLibraryDomain = @"MTLLibraryErrorDomain";

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Kernels of a text: instantiations by their host_name, and functions that are no templates.
std::set<std::string> kernels_of(const std::string& text) {
  std::set<std::string> names;
  constexpr std::string_view kHost = "host_name(\"", kKernel = "[[kernel", kVoid = "void ";
  for (size_t at = 0; (at = text.find(kHost, at)) != std::string::npos;) {
    at += kHost.size();
    names.insert(text.substr(at, text.find('"', at) - at));
  }
  for (size_t at = 0; (at = text.find(kKernel, at)) != std::string::npos; at += kKernel.size()) {
    const size_t before = at ? text.find_last_not_of(" \n", at - 1) : std::string::npos;
    const bool is_template = before != std::string::npos && (text[before] == '>' || text[before] == ']');
    const size_t closed = text.find("]]", at);
    if (is_template || closed == std::string::npos) continue;
    size_t name = text.find_first_not_of(" \n", closed + 2);
    if (name == std::string::npos || text.compare(name, kVoid.size(), kVoid) != 0) continue;
    name += kVoid.size();
    size_t end = name;
    while (end < text.size() && is_name(text[end])) ++end;
    names.insert(text.substr(name, end - name));
  }
  return names;
}

}  // namespace

void fail(NSError** error, const std::string& words) {
  if (error) *error = sim::error(kLibraryDomain, 3, words);
}

}  // namespace sim

@implementation MTLCompileOptions
- (id)init {
  state_ = new sim::CompileOptions;
  return self;
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
  sim::of(self).version = version;
}
- (void)setMathMode:(MTLMathMode)mode {
  sim::of(self).mode = mode;
}
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)functions {
  sim::of(self).functions = functions;
}
- (void)dealloc {
  delete &sim::of(self);
  [super dealloc];
}
@end

@implementation SimFunction
- (void)dealloc {
  delete name_;
  [super dealloc];
}
@end

@implementation SimLibrary
+ (id)fromText:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  // What the kernels' bits hang on.
  const sim::CompileOptions given = options ? sim::of(options) : sim::CompileOptions();
  if (given.version != MTLLanguageVersion3_2 || given.mode != MTLMathModeSafe ||
      given.functions != MTLMathFloatingPointFunctionsPrecise) {
    sim::misuse("a text is not compiled as Metal 3.2 in the safe math mode with precise functions");
  }
  const std::string text = [source UTF8String];
  if (text.find("#include \"") != std::string::npos) {
    sim::fail(error, "error: a file of #include \"...\" is not found");
    return nil;
  }
  if (text.find("#error") != std::string::npos) {
    sim::fail(error, "error: " + text.substr(text.find("#error"), 60));
    return nil;
  }
  SimLibrary* library = [[SimLibrary alloc] init];
  library->names_ = new std::set<std::string>(sim::kernels_of(text));
  sim::add("library");
  return library;
}
- (NSArray*)functionNames {
  std::vector<id> names;
  for (const std::string& name : *names_) names.push_back([NSString stringWithUTF8String:name.c_str()]);
  return [NSArray arrayWithObjects:names.data() count:names.size()];
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  if (!names_->contains([name UTF8String])) return nil;
  SimFunction* function = [[SimFunction alloc] init];
  function->name_ = new std::string([name UTF8String]);
  return function;
}
- (void)dealloc {
  delete names_;
  [super dealloc];
}
@end

@implementation MTLComputePipelineDescriptor
- (id)init {
  state_ = new sim::PipelineDescriptor;
  return self;
}
- (void)setLabel:(NSString*)label {
  (void)label;
}
- (void)setComputeFunction:(id<MTLFunction>)function {
  [function retain];
  [sim::of(self).function release];
  sim::of(self).function = static_cast<SimFunction*>(function);
}
- (void)setThreadGroupSizeIsMultipleOfThreadExecutionWidth:(BOOL)multiple {
  sim::of(self).whole_simdgroups = multiple;
}
- (void)setBinaryArchives:(NSArray*)archives {
  [archives retain];
  [sim::of(self).archives release];
  sim::of(self).archives = archives;
}
- (void)dealloc {
  [sim::of(self).function release];
  [sim::of(self).archives release];
  delete &sim::of(self);
  [super dealloc];
}
@end

@implementation SimPipeline
+ (id)of:(MTLComputePipelineDescriptor*)descriptor error:(NSError**)error {
  const sim::PipelineDescriptor& given = sim::of(descriptor);
  if (!given.function) sim::misuse("a pipeline has no function");
  const std::string& name = *given.function->name_;
  const msl::Kernel* kernel = msl::find_kernel(name, sim::is_checked(sim::settings().order));
  if (!kernel) {
    sim::fail(error, "the shim has no kernel " + name);
    return nil;
  }
  bool found = false;
  for (SimArchive* archive in given.archives) found |= archive->was_read_ && archive->names_->contains(name);
  sim::add(found ? "found pipeline" : "pipeline");
  SimPipeline* pipeline = [[SimPipeline alloc] init];
  pipeline->kernel_ = kernel;
  pipeline->whole_simdgroups_ = given.whole_simdgroups;
  return pipeline;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return static_cast<NSUInteger>(msl::max_threads_of(*kernel_));
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
@end

@implementation MTLBinaryArchiveDescriptor
- (void)setUrl:(NSURL*)url {
  [url retain];
  [static_cast<NSURL*>(state_) release];
  state_ = url;
}
- (void)dealloc {
  [static_cast<NSURL*>(state_) release];
  [super dealloc];
}
@end

@implementation SimArchive
+ (id)of:(MTLBinaryArchiveDescriptor*)descriptor error:(NSError**)error {
  SimArchive* archive = [[SimArchive alloc] init];
  archive->names_ = new std::set<std::string>;
  if (!descriptor->state_) return archive;
  std::ifstream in(*static_cast<SimUrl*>(descriptor->state_)->path_);
  std::stringstream content;
  content << in.rdbuf();
  std::string text = content.str(), name;
  if (!in || !text.starts_with(sim::kHead)) {
    sim::fail(error, "the archive is damaged");
    [archive release];
    return nil;
  }
  std::istringstream names(text.substr(sizeof sim::kHead - 1));
  while (names >> name) archive->names_->insert(name);
  archive->was_read_ = true;
  return archive;
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                            error:(NSError**)error {
  if (!sim::of(descriptor).function) {
    sim::fail(error, "no function");
    return NO;
  }
  names_->insert(*sim::of(descriptor).function->name_);
  return YES;
}
- (BOOL)serializeToURL:(NSURL*)url error:(NSError**)error {
  std::ofstream out(*static_cast<SimUrl*>(url)->path_);
  out << sim::kHead;
  for (const std::string& name : *names_) out << name << "\n";
  out.close();
  if (out) return YES;
  sim::fail(error, "cannot write");
  return NO;
}
- (void)dealloc {
  delete names_;
  [super dealloc];
}
@end
