#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace flashnext {

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw InvalidArgument("cannot open " + path + ": " + std::strerror(errno));
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
    ::close(fd);
    throw InvalidArgument("cannot map " + path + ": not a regular file with content");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int reason = errno;
  ::close(fd);
  if (data == MAP_FAILED) throw InvalidArgument("cannot map " + path + ": " + std::strerror(reason));
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<const std::byte*>(data), size));
}

void MappedFile::release(size_t offset, size_t n) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page, last = (offset + n) / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

void MappedFile::expect_random(size_t offset, size_t n) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = offset / page * page;
  ::madvise(const_cast<std::byte*>(data_) + first, offset + n - first, MADV_RANDOM);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), size_bytes_); }

}  // namespace flashnext
