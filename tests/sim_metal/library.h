// Libraries, functions, pipelines, archives and their descriptors.
#pragma once

#include <set>
#include <string>

#include "classes.h"

@interface SimFunction : NSObject <MTLFunction> {
 @public
  std::string* name_;
}
@end

@interface SimLibrary : NSObject <MTLLibrary> {
 @public
  std::set<std::string>* names_;
}
// A new one, or nil and the error.
+ (id)fromText:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error;
@end

@interface SimArchive : NSObject <MTLBinaryArchive> {
 @public
  std::set<std::string>* names_;
  BOOL was_read_;
}
+ (id)of:(MTLBinaryArchiveDescriptor*)descriptor error:(NSError**)error;
@end

@interface SimPipeline (Making)
+ (id)of:(MTLComputePipelineDescriptor*)descriptor error:(NSError**)error;
@end

namespace sim {

struct CompileOptions {
  MTLLanguageVersion version = {};
  MTLMathMode mode = MTLMathModeFast;  // as Metal has it
  MTLMathFloatingPointFunctions functions = MTLMathFloatingPointFunctionsFast;
};
struct PipelineDescriptor {
  SimFunction* function = nullptr;
  NSArray* archives = nullptr;
  bool whole_simdgroups = false;
};
inline CompileOptions& of(MTLCompileOptions* o) { return *static_cast<CompileOptions*>(o->state_); }
inline PipelineDescriptor& of(MTLComputePipelineDescriptor* d) {
  return *static_cast<PipelineDescriptor*>(d->state_);
}

void fail(NSError** error, const std::string& words);  // of MTLLibraryErrorDomain

}  // namespace sim
