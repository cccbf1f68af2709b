// What real Metal would refuse, or fail at: each is planted, and told.
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

@protocol Unheard
- (void)frobnicate;
@end

namespace flashnext::test {
namespace {

float first(const Owned<id<MTLBuffer>>& buffer) { return *static_cast<float*>([buffer.get() contents]); }

CLAIM(sound_use_gives_its_numbers) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  [encoder.get() memoryBarrierWithScope:MTLBarrierScopeBuffers];
  bench.encode_copy(encoder.get(), bench.b.get(), bench.c.get());
  bench.end(encoder.get());
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusCompleted);
  CHECK(first(bench.b) == 24 && first(bench.c) == 0);
}

CLAIM(a_message_that_nobody_knows_is_refused) {
  Bench bench;
  CHECK_REFUSED([(id<Unheard>)bench.a.get() frobnicate], "SimBuffer does not know frobnicate");
}

CLAIM(a_message_to_nobody_gives_zero) {
  const id<MTLBuffer> nobody = nil;
  CHECK_EQ([nobody length], 0u);
}

CLAIM(an_object_that_is_released_too_often_is_told) {
  Bench bench;
  id<MTLBuffer> buffer = [bench.device.get() newBufferWithLength:16 options:Bench::kUntracked];
  [buffer release];
  CHECK_REFUSED([buffer release], "a freed SimBuffer is told to release");
}

CLAIM(an_object_that_is_never_released_is_seen) {
  Bench bench;
  id<MTLBuffer> buffer = [bench.device.get() newBufferWithLength:16 options:Bench::kUntracked];
  CHECK_EQ(sim::live_objects()["SimBuffer"], 6);
  [buffer release];
  CHECK_EQ(sim::live_objects()["SimBuffer"], 5);
}

CLAIM(what_is_autoreleased_without_a_pool_is_told) {
  NSObject* object = [[NSObject alloc] init];
  CHECK_REFUSED([object autorelease], "has no pool");
  [object release];
}

CLAIM(an_argument_of_the_wrong_size_is_told) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  const uint32_t less = 8;
  [encoder.get() setBytes:&less length:sizeof less atIndex:4];
  [encoder.get() dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
  bench.end(encoder.get());
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusError);
  CHECK_NOTED("copy_rows_f32: buffer(4) takes a struct of 8 bytes, not 4");
}

CLAIM(setting_more_than_4_kb_of_bytes_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  const std::vector<char> bytes(4097);
  CHECK_REFUSED([encoder.get() setBytes:bytes.data() length:bytes.size() atIndex:4], "of 4097 bytes");
  CHECK_REFUSED([encoder.get() setBytes:bytes.data() length:0 atIndex:4], "of 0 bytes");
  [encoder.get() endEncoding];
}

CLAIM(more_threads_than_the_pipeline_runs_are_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  CHECK_REFUSED([encoder.get() dispatchThreadgroups:MTLSizeMake(1, 1, 1)
                              threadsPerThreadgroup:MTLSizeMake(288, 1, 1)],
                "of 288 threads, where the pipeline runs 1 to 256");
  [encoder.get() endEncoding];
}

CLAIM(an_empty_grid_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  CHECK_REFUSED([encoder.get() dispatchThreadgroups:MTLSizeMake(1, 0, 1)
                              threadsPerThreadgroup:MTLSizeMake(32, 1, 1)],
                "over an empty grid");
  [encoder.get() endEncoding];
}

CLAIM(an_offset_behind_a_buffer_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  CHECK_REFUSED([encoder.get() setBuffer:bench.a.get() offset:129 atIndex:0], "behind its end");
  [encoder.get() endEncoding];
}

CLAIM(a_commit_with_an_open_encoder_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  CHECK_REFUSED([buffer.get() commit], "commit while an encoder is open");
  CHECK_REFUSED(bench.encoder(buffer.get()), "an encoder while an encoder is open");
  [encoder.get() endEncoding];
}

CLAIM(an_encoder_that_is_freed_open_is_told) {
  Bench bench;
  {
    const mtl::Pool inner;
    const auto begun = bench.begun();
  }
  CHECK_NOTED("an encoder is freed without endEncoding");
}

CLAIM(encoding_behind_endEncoding_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  [encoder.get() endEncoding];
  CHECK_REFUSED(bench.encode_copy(encoder.get(), bench.a.get(), bench.b.get()), "behind endEncoding");
  CHECK_REFUSED([encoder.get() endEncoding], "behind endEncoding");
}

CLAIM(a_second_commit_is_refused) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  bench.end(encoder.get());
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusCompleted);
  CHECK_REFUSED([buffer.get() commit], "commit behind commit");
  CHECK_REFUSED(bench.encoder(buffer.get()), "an encoder behind commit");
}

CLAIM(dependent_dispatches_without_a_barrier_are_told) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  bench.encode_copy(encoder.get(), bench.b.get(), bench.c.get());
  bench.end(encoder.get());
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusError);
  CHECK_NOTED("which another threadgroup has written since the last barrier between dispatches");
}

CLAIM(encoders_without_a_fence_between_are_told) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  bench.end(encoder.get());
  const auto second = Owned<id<MTLComputeCommandEncoder>>::retain(
      [buffer.get() computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent]);
  bench.encode_copy(second.get(), bench.b.get(), bench.c.get());
  bench.end(second.get());
  CHECK_REFUSED([buffer.get() commit], "does not wait for the fence");
}

CLAIM(a_bound_buffer_that_is_freed_before_it_is_used_is_told) {
  Bench bench;
  const auto [buffer, encoder] = bench.begun();
  bench.end(encoder.get());
  bench.b.reset();
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusError);
  CHECK_NOTED("a buffer is freed before the command buffer that uses it has run");
}

// A reply that has ended, reached by its address alone.
struct Addressed {
  Bench bench;
  Owned<id<MTLBuffer>> table = bench.buffer(24), reply = bench.buffer(sizeof(ReplyState));
  Owned<id<MTLResidencySet>> set;

  Addressed() {
    static_cast<ReplyState*>([reply.get() contents])->ended = 1;
    auto descriptor = Owned<MTLResidencySetDescriptor*>::adopt([[MTLResidencySetDescriptor alloc] init]);
    set = Owned<id<MTLResidencySet>>::adopt([bench.device.get() newResidencySetWithDescriptor:descriptor.get()
                                                                                        error:nil]);
    [bench.queue.get() addResidencySet:set.get()];
    [set.get() addAllocation:reply.get()];
  }
  ~Addressed() { [bench.queue.get() removeResidencySet:set.get()]; }
  MTLCommandBufferStatus run(uint64_t address) {
    const auto buffer = bench.command_buffer();
    const auto encoder = bench.encoder(buffer.get());
    bench.encode_drafts(encoder.get(), table.get(), address);
    bench.end(encoder.get());
    return bench.run(buffer.get());
  }
};

CLAIM(a_resident_buffer_is_reached_by_its_address) {
  Addressed given;
  [given.set.get() commit];
  CHECK_EQ(given.run([given.reply.get() gpuAddress]), MTLCommandBufferStatusCompleted);
}

CLAIM(a_buffer_that_is_not_resident_is_told) {
  for (const char* order : {"forward", "forward, unchecked"}) {
    sim::Settings settings;
    settings.order = order;
    sim::set(settings);
    Addressed given;  // the set is not committed
    CHECK_EQ(given.run([given.reply.get() gpuAddress]), MTLCommandBufferStatusError);
    CHECK_NOTED(", which is not resident");
  }
}

CLAIM(a_freed_buffer_reached_by_its_address_is_told) {
  Addressed given;
  const uint64_t address = [given.reply.get() gpuAddress];
  [given.set.get() removeAllocation:given.reply.get()];
  [given.set.get() commit];
  given.reply.reset();
  CHECK_EQ(given.run(address), MTLCommandBufferStatusError);
  CHECK_NOTED("touches memory that belongs to no buffer");
}

CLAIM(the_hosts_pointer_is_no_address_of_the_gpu) {
  Addressed given;
  [given.set.get() commit];
  CHECK_EQ(given.run(reinterpret_cast<uint64_t>([given.reply.get() contents])), MTLCommandBufferStatusError);
  CHECK_NOTED("by the host's pointer");
}

CLAIM(a_buffer_is_in_a_set_once) {
  Addressed given;
  CHECK_REFUSED([given.set.get() addAllocation:given.reply.get()], "twice");
  CHECK_REFUSED([given.set.get() removeAllocation:given.table.get()], "that it is not in");
}

CLAIM(memory_without_a_copy_is_whole_pages) {
  Bench bench;
  const auto page = static_cast<size_t>(getpagesize());
  char* pages = static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto wrap = [&](char* at, size_t size_bytes) {
    return Owned<id<MTLBuffer>>::adopt([bench.device.get() newBufferWithBytesNoCopy:at
                                                                             length:size_bytes
                                                                            options:Bench::kUntracked
                                                                        deallocator:nil]);
  };
  CHECK_REFUSED(wrap(pages + 64, page), "no whole pages");
  CHECK_REFUSED(wrap(pages, page - 64), "no whole pages");
  {
    const auto wrapped = wrap(pages, page);
    const auto buffer = bench.command_buffer();
    const auto encoder = bench.encoder(buffer.get());
    bench.encode_copy(encoder.get(), bench.a.get(), wrapped.get());
    bench.end(encoder.get());
    CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusError);
    CHECK_NOTED("which can only be read");
  }
  munmap(pages, 2 * page);
}

CLAIM(an_event_that_nobody_signals_ends_the_wait_for_it) {
  sim::Settings settings;
  settings.wait_ms = 20;
  sim::set(settings);
  Bench bench;
  const auto event = Owned<id<MTLSharedEvent>>::adopt([bench.device.get() newSharedEvent]);
  const auto buffer = bench.command_buffer();
  [buffer.get() encodeWaitForEvent:event.get() value:1];
  CHECK_EQ(bench.run(buffer.get()), MTLCommandBufferStatusError);
  CHECK_EQ([[buffer.get() error] code], MTLCommandBufferErrorTimeout);
  CHECK_NOTED("waits for the value 1, which nobody signals");
}

CLAIM(an_event_that_goes_back_is_told) {
  Bench bench;
  const auto event = Owned<id<MTLSharedEvent>>::adopt([bench.device.get() newSharedEvent]);
  [event.get() setSignaledValue:3];
  [event.get() setSignaledValue:2];
  CHECK_NOTED("an event goes back from 3 to 2");
}

CLAIM(a_text_is_compiled_in_the_safe_math_mode) {
  Bench bench;
  CHECK_REFUSED([bench.device.get() newLibraryWithSource:@"" options:nil error:nil], "safe math mode");
}

}  // namespace
}  // namespace flashnext::test
