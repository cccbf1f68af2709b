// The Metal device over the simulated Metal.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "claims.h"
#include "metal/params.h"

namespace flashnext::test {
namespace {

using mtl::MemoryPressure;

constexpr uint32_t kWidth = 8, kRows = 4;

// Buffers, and copies of rows in the reverse order.
struct Rows {
  DeviceRef device;
  BufferRef counts, map, a, b, c;

  explicit Rows(DeviceRef d) : device(std::move(d)) {
    counts = device->allocate(sizeof(Counts));
    *reinterpret_cast<Counts*>(counts->host()) = {{kRows, 1, 0, 0}};
    map = device->allocate(kRows * sizeof(int32_t));
    for (uint32_t i = 0; i < kRows; ++i) row(i) = static_cast<int32_t>(kRows - 1 - i);
    for (BufferRef* buffer : {&a, &b, &c}) *buffer = device->allocate(kRows * kWidth * sizeof(float));
    for (uint32_t i = 0; i < kRows * kWidth; ++i) value(a, i) = static_cast<float>(i);
  }
  int32_t& row(uint32_t i) { return reinterpret_cast<int32_t*>(map->host())[i]; }
  static float& value(const BufferRef& buffer, uint32_t i) {
    return reinterpret_cast<float*>(buffer->host())[i];
  }
  void record(CommandBuffer& cb, const BufferRef& from, const BufferRef& to) {
    cb.dispatch(device->kernel("copy_rows_f32"), Grid{kRows}, {counts, map, from, to},
                CopyRowsParams{kWidth, kCountRows});
  }
  // One copy from a to b, with signals behind it.
  void commit(const EventRef& event, uint64_t signal) {
    const auto cb = device->command_buffer();
    record(*cb, a, b);
    cb->signal(event, signal);
    cb->commit();
  }
};

CLAIM(dispatches_copies_and_barriers_give_their_numbers) {
  Rows rows(open_metal());
  const EventRef done = rows.device->event();
  const BufferRef d = rows.device->allocate(rows.c->size_bytes());
  const auto cb = rows.device->command_buffer();
  rows.record(*cb, rows.a, rows.b);
  cb->barrier();
  rows.record(*cb, rows.b, rows.c);
  cb->copy({rows.b, 0}, {d, 0}, rows.b->size_bytes());
  cb->barrier();
  cb->copy({rows.c, 4}, {d, 0}, 4);
  cb->signal(done, 1);
  cb->commit();
  done->wait(1);
  for (uint32_t i = 1; i < kRows * kWidth; ++i) {
    CHECK(Rows::value(rows.b, i) == static_cast<float>((kRows - 1 - i / kWidth) * kWidth + i % kWidth));
    CHECK(Rows::value(rows.c, i) == static_cast<float>(i));
    CHECK(Rows::value(d, i) == Rows::value(rows.b, i));
  }
  CHECK(Rows::value(d, 0) == 1);
  CHECK(rows.device->busy_ns() > 0);
}

CLAIM(a_barrier_that_is_left_out_is_an_error_of_the_wait) {
  Rows rows(open_metal());
  const EventRef done = rows.device->event();
  const auto cb = rows.device->command_buffer();
  rows.record(*cb, rows.a, rows.b);
  rows.record(*cb, rows.b, rows.c);
  cb->signal(done, 1);
  cb->commit();
  CHECK_THROWS(done->wait(1), DeviceError, "copy_rows_f32");
  CHECK_NOTED("since the last barrier between dispatches");
}

CLAIM(an_error_names_the_part_and_the_kernel) {
  Rows rows(open_metal());
  rows.row(0) = kRows;  // the first behind the end
  const EventRef done = rows.device->event();
  const auto cb = rows.device->command_buffer();
  cb->part("draft head");
  rows.record(*cb, rows.a, rows.b);
  cb->part(nullptr);
  cb->signal(done, 1);
  cb->commit();
  CHECK_THROWS(done->wait(1), DeviceError, "draft head: metal: copy_rows_f32: metal/rows.metal");
  CHECK_NOTED("copy_rows_f32");
}

CLAIM(work_behind_failed_work_fails_too_and_the_device_goes_on) {
  Rows rows(open_metal());
  const EventRef first = rows.device->event(), second = rows.device->event(), third = rows.device->event();
  sim::fail_command_buffer(1, 3, "Caused GPU Address Fault Error");
  rows.commit(first, 1);
  const auto cb = rows.device->command_buffer();
  cb->wait(first, 1);
  rows.record(*cb, rows.a, rows.b);
  cb->signal(second, 1);
  cb->commit();
  CHECK_THROWS(second->wait(1), DeviceError, "metal: Caused GPU Address Fault Error");
  CHECK_THROWS(first->wait(1), DeviceError, "metal: Caused GPU Address Fault Error");
  rows.commit(third, 1);
  third->wait(1);
  rows.commit(first, 2);
  first->wait(2);  // a later value of the same event
}

CLAIM(a_lost_gpu_takes_no_more_work_and_every_wait_says_so) {
  for (const int code : {4, 11}) {
    Rows rows(open_metal());
    const EventRef done = rows.device->event();
    sim::fail_command_buffer(1, code, "Ignored (for causing prior/excessive GPU errors)");
    rows.commit(done, 1);
    CHECK_THROWS(done->wait(1), DeviceError, "takes no more work of this process");
    const int before = sim::count("command buffer");
    rows.commit(done, 2);
    CHECK_THROWS(done->wait(2), DeviceError, "takes no more work of this process");
    CHECK_EQ(sim::count("command buffer"), before);
  }
}

// The device publishes and waits in the middle of a command buffer for what a thread of the host fills in.
CLAIM(host_and_device_hand_work_to_each_other) {
  Rows rows(open_metal());
  const EventRef published = rows.device->event(), gathered = rows.device->event(),
                 done = rows.device->event();
  std::thread host([&] {
    for (uint64_t step = 1; step <= 20; ++step) {
      published->wait(step);
      Rows::value(rows.b, 0) += 1;
      gathered->signal(step);
    }
  });
  for (uint64_t step = 1; step <= 20; ++step) {
    const auto cb = rows.device->command_buffer();
    rows.record(*cb, rows.a, rows.b);
    cb->signal(published, step);
    cb->wait(gathered, step);
    rows.record(*cb, rows.b, rows.c);
    cb->signal(done, step);
    cb->commit();
    if (step > 2) done->wait(step - 2);  // two in flight
  }
  done->wait(20);
  host.join();
  CHECK(Rows::value(rows.b, 0) == 25);
  CHECK(Rows::value(rows.c, (kRows - 1) * kWidth) == 25);
}

CLAIM(a_value_that_was_signalled_before_the_failure_stands) {
  Rows rows(open_metal());
  const EventRef early = rows.device->event(), late = rows.device->event();
  const auto cb = rows.device->command_buffer();
  rows.record(*cb, rows.a, rows.b);
  cb->signal(early, 1);
  cb->wait(late, 1);
  rows.record(*cb, rows.a, rows.c);
  cb->signal(late, 2);
  cb->commit();
  early->wait(1);
  rows.row(0) = kRows;  // the first behind the end
  late->signal(1);
  CHECK_THROWS(late->wait(2), DeviceError, "copy_rows_f32");
  early->wait(1);
  CHECK_NOTED("copy_rows_f32");
}

CLAIM(an_event_only_grows) {
  const DeviceRef device = open_metal();
  const EventRef event = device->event();
  event->wait(0);
  event->signal(5);
  event->signal(3);
  CHECK_EQ(event->value(), 5u);
  event->wait(4);
}

CLAIM(a_command_buffer_is_committed_once_or_not_at_all) {
  Rows rows(open_metal());
  const EventRef done = rows.device->event();
  {
    const auto left = rows.device->command_buffer();
    rows.record(*left, rows.a, rows.b);
    left->copy({rows.a, 0}, {rows.b, 0}, 4);
  }
  const auto cb = rows.device->command_buffer();
  rows.record(*cb, rows.a, rows.b);
  cb->signal(done, 1);
  cb->commit();
  CHECK_THROWS(cb->commit(), Error, "committed twice");
  CHECK_THROWS(cb->barrier(), Error, "used after its commit");
  CHECK_THROWS(rows.record(*cb, rows.a, rows.b), Error, "used after its commit");
  done->wait(1);
}

CLAIM(closing_waits_for_what_is_in_flight) {
  Rows rows(open_metal());
  const EventRef gate = rows.device->event(), done = rows.device->event();
  const auto cb = rows.device->command_buffer();
  cb->wait(gate, 1);
  rows.record(*cb, rows.a, rows.b);
  cb->signal(done, 1);
  cb->commit();
  std::thread opener([&] { gate->signal(1); });
  rows.device.reset();
  CHECK_EQ(done->value(), 1u);
  opener.join();
}

// The reply of copy_drafts is reached by its address alone.
void run_drafts(Device& device, const BufferRef& reply) {
  const BufferRef counts = device.allocate(sizeof(Counts)), table = device.allocate(64);
  *reinterpret_cast<Counts*>(counts->host()) = {{1, 1, 0, 0}};
  const uint64_t address = reply->address();
  const int32_t limit = 4;
  std::memcpy(table->host(), &address, sizeof address);
  std::memcpy(table->host() + 8, &limit, sizeof limit);
  const EventRef done = device.event();
  const auto cb = device.command_buffer();
  cb->dispatch(device.kernel("copy_drafts"), Grid{1}, {counts, table, {table, 8}, {table, 16}, reply},
               CopyDraftsParams{kLeastCopy, kMostMatch});
  cb->signal(done, 1);
  cb->commit();
  done->wait(1);
}

CLAIM(slabs_are_resident_while_they_are_in_their_set) {
  const DeviceRef device = open_metal();
  const BufferRef reply = device->allocate(sizeof(ReplyState));
  reinterpret_cast<ReplyState*>(reply->host())->ended = 1;
  run_drafts(*device, reply);
  {
    const auto set = device->residency_set();
    set->add(reply);
    CHECK_EQ(set->size_bytes(), sizeof(ReplyState));
    run_drafts(*device, reply);
    set->remove(reply);
    CHECK_EQ(set->size_bytes(), 0u);
    CHECK_THROWS(run_drafts(*device, reply), DeviceError, "which is not resident");
    CHECK_NOTED("which is not resident");
    set->add(reply);
    run_drafts(*device, reply);
  }
  CHECK_THROWS(run_drafts(*device, reply), DeviceError, "which is not resident");
  CHECK_NOTED("which is not resident");
}

CLAIM(residency_sets_are_of_limited_size_and_go_when_they_are_empty) {
  const DeviceRef device = open_metal();
  constexpr size_t kLarge = size_t{600} << 20;  // a set takes 1 GiB here
  std::vector<BufferRef> buffers;
  for (int i = 1; i <= 3; ++i) {
    buffers.push_back(device->allocate(kLarge));
    CHECK_EQ(sim::count("residency set"), i);
  }
  buffers.push_back(device->allocate(1 << 20));
  CHECK_EQ(sim::count("residency set"), 3);
  buffers.clear();
  CHECK_EQ(sim::count("residency set"), 0);
  for (int i = 0; i < 40; ++i) buffers.push_back(device->allocate(kLarge));  // a queue takes 32
  CHECK_EQ(sim::count("residency set"), 30);
}

CLAIM(limits_are_those_of_the_gpu) {
  sim::Settings settings;
  settings.working_set_bytes = 3'000'000'000;
  settings.max_buffer_bytes = 1 << 20;
  sim::set(settings);
  const DeviceRef device = open_metal();
  CHECK_EQ(device->limits().working_set_bytes, 3'000'000'000u);
  CHECK_EQ(device->limits().max_buffer_bytes, 1u << 20);
  CHECK_THROWS(device->allocate((1 << 20) + 1), OutOfMemory,
               "has 1048577 bytes, and a buffer at most 1048576");
  CHECK_EQ(device->allocate(0)->size_bytes(), 0u);
  const std::string path = empty_folder() + "/large";
  std::ofstream(path) << std::string((1 << 20) + 1, 'x');
  CHECK_THROWS(device->wrap(MappedFile::open(path)), OutOfMemory, path);
}

CLAIM(a_mapped_file_is_used_as_it_is) {
  Rows rows(open_metal());
  const std::string path = empty_folder() + "/file";
  std::ofstream(path) << std::string(kRows * kWidth * 4, '\0') << "tail";
  const BufferRef file = rows.device->wrap(MappedFile::open(path));
  CHECK_EQ(file->size_bytes(), kRows * kWidth * 4 + 4);
  CHECK(std::memcmp(file->host() + kRows * kWidth * 4, "tail", 4) == 0);
  const EventRef done = rows.device->event();
  const auto cb = rows.device->command_buffer();
  rows.record(*cb, file, rows.b);
  cb->signal(done, 1);
  cb->commit();
  done->wait(1);
  CHECK(Rows::value(rows.b, 3) == 0);
}

CLAIM(a_machine_without_such_a_gpu_says_why) {
  sim::Settings settings;
  CHECK(mtl::unavailable().empty());
  settings.is_apple_silicon = false;
  sim::set(settings);
  CHECK(mtl::unavailable() == "the GPU Simulated is none of Apple Silicon");
  CHECK_THROWS(open_metal(), InvalidArgument, "none of Apple Silicon");
  settings.has_gpu = false;
  sim::set(settings);
  CHECK_THROWS(open_metal(), InvalidArgument, "no GPU that Metal drives");
}

CLAIM(memory_pressure_is_heard) {
  const DeviceRef device = open_metal();
  CHECK(mtl::memory_of(*device).footprint_bytes > 0);
  CHECK(mtl::memory_of(*device).pressure == MemoryPressure::kNormal);
  for (const auto& [level, pressure] : {std::pair{2, MemoryPressure::kWarning},
                                        {4, MemoryPressure::kCritical},
                                        {1, MemoryPressure::kNormal}}) {
    sim::press(static_cast<unsigned long>(level));
    CHECK(mtl::memory_of(*device).pressure == pressure);
  }
}

CLAIM(the_mac_stays_awake_from_the_first_work_on) {
  Rows rows(open_metal());
  CHECK_EQ(sim::count("activity"), 0);
  const EventRef done = rows.device->event();
  rows.commit(done, 1);
  CHECK_EQ(sim::count("activity"), 1);
  done->wait(1);
}

CLAIM(an_idle_device_beats_and_rests) {
  using std::chrono::milliseconds;
  Rows rows(open_metal({milliseconds(1), milliseconds(20), milliseconds(5)}));
  const EventRef done = rows.device->event();
  const int before = sim::count("command buffer"), asked = sim::count("residency request");
  rows.commit(done, 1);
  done->wait(1);
  // However slow the machine is: at last there was a beat, or the time for them is over.
  while (sim::count("activity") == 1) std::this_thread::sleep_for(milliseconds(1));
  CHECK(sim::count("command buffer") >= before + 1);
  CHECK(sim::count("residency request") >= asked + 1);
  rows.commit(done, 2);
  done->wait(2);
}

CLAIM(identity_has_the_gpu_and_the_systems_build) {
  CHECK(open_metal()->identity() == "metal, Simulated, macOS Version 15.0 (Build 24A335)");
  CHECK(open_metal()->name() == "metal (Simulated)");
}

CLAIM(pipelines_are_compiled_once_for_a_system) {
  const std::string cache = empty_folder() + "/deep/cache";
  const auto compiled = [&] {
    const int before = sim::count("pipeline");
    open_metal({}, cache);
    return sim::count("pipeline") - before;
  };
  CHECK_EQ(compiled(), 2);
  CHECK_EQ(compiled(), 0);
  sim::Settings settings;
  settings.system = "Version 15.1 (Build 24B83)";
  sim::set(settings);
  CHECK_EQ(compiled(), 2);
  CHECK_EQ(compiled(), 0);
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cache)) {
    ++n;
    std::ofstream(entry.path()) << "damaged";
  }
  CHECK_EQ(n, 1);  // that of the system before is gone
  CHECK_EQ(compiled(), 2);
  CHECK_EQ(compiled(), 0);
  std::ofstream(empty_folder() + "/file") << "no folder";
  open_metal({}, empty_folder() + "/file/cache");  // costs time, is no error
}

CLAIM(kernels_that_are_missing_are_named) {
  const auto open = [](const char* kernel, uint32_t threads, const std::string& folder) {
    mtl::open_device({{kernel, threads, 1, 4}}, {folder, "", {}});
  };
  CHECK_THROWS(open("copy_rows_f32", 256, empty_folder()), DeviceError, "there are no kernels in");
  CHECK_THROWS(open("unheard", 256, kernels_folder()), DeviceError, "has the kernel unheard");
  CHECK_THROWS(open("copy_rows_f32", 512, kernels_folder()), DeviceError, "at most 256 threads");
  std::ofstream(empty_folder() + "/bad.metal") << "#error unreadable";
  CHECK_THROWS(open("copy_rows_f32", 256, empty_folder()), DeviceError,
               "bad.metal: error: #error unreadable");
  const DeviceRef device = open_metal();
  CHECK_THROWS(device->kernel("unheard"), InvalidArgument, "has no kernel unheard");
}

}  // namespace
}  // namespace flashnext::test
