// Mapped files: whole, read in place by kernels, alive as long as somebody holds them.
#include "base/mapped_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "check.h"
#include "device_kernels.h"

namespace flashnext::test {
namespace {

// A file in the temporary folder, removed at the end.
struct TemporaryFile {
  explicit TemporaryFile(const std::vector<uint8_t>& bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "flashnext-XXXXXX").string();
    const int descriptor = mkstemp(name.data());
    CHECK(descriptor >= 0);
    CHECK_EQ(write(descriptor, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(descriptor);
    path = name;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  std::string path;
};

std::vector<uint8_t> pattern(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
  return bytes;
}

void a_kernel_reads_a_wrapped_file_in_place() {
  for (const size_t n : {1u, 4095u, 4096u, 4097u, 100'000u}) {
    const std::vector<uint8_t> bytes = pattern(n);
    const TemporaryFile file(bytes);
    const DeviceRef device = open_test_device(2);
    const auto mapped = MappedFile::open(file.path);
    CHECK_EQ(mapped->size_bytes(), n);
    CHECK(mapped->path() == file.path);
    const BufferRef in = device->wrap(mapped), out = device->allocate(n);
    CHECK(in->host() == mapped->data());
    CHECK_EQ(in->size_bytes(), n);
    const EventRef done = device->event();
    const auto cb = device->command_buffer();
    cb->dispatch(device->kernel("invert"), Grid{static_cast<uint32_t>(n)}, {in, out}, 0);
    cb->signal(done, 1);
    cb->commit();
    done->wait(1);
    for (size_t i = 0; i < n; ++i) {
      CHECK_EQ(static_cast<int>(out->host()[i]), static_cast<uint8_t>(~bytes[i]));
    }
  }
}

void a_buffer_keeps_its_file_mapped_after_it_is_unlinked() {
  const std::vector<uint8_t> bytes = pattern(10'000);
  const DeviceRef device = open_test_device(1);
  BufferRef buffer;
  {
    const TemporaryFile file(bytes);
    buffer = device->wrap(MappedFile::open(file.path));
  }
  for (size_t i = 0; i < bytes.size(); ++i) CHECK_EQ(static_cast<int>(buffer->host()[i]), bytes[i]);
}

void a_file_that_is_missing_or_empty_or_a_folder_is_refused_by_name() {
  const std::string missing = (std::filesystem::temp_directory_path() / "flashnext-no-such-file").string();
  CHECK_THROWS(MappedFile::open(missing), InvalidArgument, missing);
  const TemporaryFile empty({});
  CHECK_THROWS(MappedFile::open(empty.path), InvalidArgument, empty.path);
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS(MappedFile::open(folder), InvalidArgument, folder);
}

}  // namespace
}  // namespace flashnext::test

int main() {
  using namespace flashnext::test;
  return run_all({TEST(a_kernel_reads_a_wrapped_file_in_place),
                  TEST(a_buffer_keeps_its_file_mapped_after_it_is_unlinked),
                  TEST(a_file_that_is_missing_or_empty_or_a_folder_is_refused_by_name)});
}
