#include "bench.h"

#include <future>

namespace flashnext::test {

Bench::Bench() {
  device = Owned<id<MTLDevice>>::adopt(MTLCreateSystemDefaultDevice());
  queue = Owned<id<MTLCommandQueue>>::adopt([device.get() newCommandQueue]);
  fence = Owned<id<MTLFence>>::adopt([device.get() newFence]);
  auto options = Owned<MTLCompileOptions*>::adopt([[MTLCompileOptions alloc] init]);
  [options.get() setLanguageVersion:MTLLanguageVersion3_2];
  [options.get() setMathMode:MTLMathModeSafe];
  [options.get() setMathFloatingPointFunctions:MTLMathFloatingPointFunctionsPrecise];
  const auto pipeline = [&](NSString* source, NSString* name) {
    auto library = Owned<id<MTLLibrary>>::adopt([device.get() newLibraryWithSource:source
                                                                           options:options.get()
                                                                             error:nil]);
    auto function = Owned<id<MTLFunction>>::adopt([library.get() newFunctionWithName:name]);
    auto descriptor =
        Owned<MTLComputePipelineDescriptor*>::adopt([[MTLComputePipelineDescriptor alloc] init]);
    [descriptor.get() setComputeFunction:function.get()];
    return Owned<id<MTLComputePipelineState>>::adopt([device.get()
        newComputePipelineStateWithDescriptor:descriptor.get()
                                      options:MTLPipelineOptionNone
                                   reflection:nil
                                        error:nil]);
  };
  copy_rows = pipeline(@"template [[host_name(\"copy_rows_f32\")]] [[kernel]] ...", @"copy_rows_f32");
  copy_drafts = pipeline(@"[[kernel]] void copy_drafts(...)", @"copy_drafts");
  CHECK(copy_rows && copy_drafts);
  counts = buffer(sizeof(Counts));
  *static_cast<Counts*>([counts.get() contents]) = {{kRows, 1, 0, 0}};
  map = buffer(kRows * sizeof(int32_t));
  for (uint32_t i = 0; i < kRows; ++i) {
    static_cast<int32_t*>([map.get() contents])[i] = static_cast<int32_t>(kRows - 1 - i);
  }
  for (auto* b : {&this->a, &this->b, &c}) *b = buffer(kRows * kWidth * sizeof(float));
  for (uint32_t i = 0; i < kRows * kWidth; ++i)
    static_cast<float*>([a.get() contents])[i] = static_cast<float>(i);
}

Owned<id<MTLBuffer>> Bench::buffer(size_t size_bytes) {
  return Owned<id<MTLBuffer>>::adopt([device.get() newBufferWithLength:size_bytes options:kUntracked]);
}

Owned<id<MTLCommandBuffer>> Bench::command_buffer() {
  auto descriptor = Owned<MTLCommandBufferDescriptor*>::adopt([[MTLCommandBufferDescriptor alloc] init]);
  [descriptor.get() setRetainedReferences:NO];
  return Owned<id<MTLCommandBuffer>>::retain([queue.get() commandBufferWithDescriptor:descriptor.get()]);
}

Owned<id<MTLComputeCommandEncoder>> Bench::encoder(id<MTLCommandBuffer> buffer) {
  auto made = Owned<id<MTLComputeCommandEncoder>>::retain(
      [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent]);
  [made.get() waitForFence:fence.get()];
  return made;
}

void Bench::encode_copy(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> from, id<MTLBuffer> to) {
  const CopyRowsParams params = {kWidth, kCountRows};
  [encoder setComputePipelineState:copy_rows.get()];
  NSUInteger slot = 0;
  for (id<MTLBuffer> buffer : {counts.get(), map.get(), from, to}) {
    [encoder setBuffer:buffer offset:0 atIndex:slot++];
  }
  [encoder setBytes:&params length:sizeof params atIndex:slot];
  [encoder dispatchThreadgroups:MTLSizeMake(kRows, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
}

void Bench::encode_drafts(id<MTLComputeCommandEncoder> encoder, id<MTLBuffer> table, uint64_t reply) {
  auto* words = static_cast<uint64_t*>([table contents]);
  words[0] = reply;  // replies; then limits and n_copied
  reinterpret_cast<int32_t*>(words + 1)[0] = 4;
  const CopyDraftsParams params = {kLeastCopy, kMostMatch};
  [encoder setComputePipelineState:copy_drafts.get()];
  [encoder setBuffer:counts.get() offset:0 atIndex:0];
  [encoder setBuffer:table offset:0 atIndex:1];
  [encoder setBuffer:table offset:8 atIndex:2];
  [encoder setBuffer:table offset:16 atIndex:3];
  [encoder setBytes:&params length:sizeof params atIndex:4];
  [encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(256, 1, 1)];
}

void Bench::end(id<MTLComputeCommandEncoder> encoder) {
  [encoder updateFence:fence.get()];
  [encoder endEncoding];
}

MTLCommandBufferStatus Bench::run(id<MTLCommandBuffer> buffer) {
  const auto ended = std::make_shared<std::promise<MTLCommandBufferStatus>>();
  [buffer addCompletedHandler:^(id<MTLCommandBuffer> done) {
    ended->set_value([done status]);
  }];
  [buffer commit];
  return ended->get_future().get();
}

std::pair<Owned<id<MTLCommandBuffer>>, Owned<id<MTLComputeCommandEncoder>>> Bench::begun() {
  auto buffer = command_buffer();
  auto made = encoder(buffer.get());
  encode_copy(made.get(), a.get(), b.get());
  return {std::move(buffer), std::move(made)};
}

}  // namespace flashnext::test
