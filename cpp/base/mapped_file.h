// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace flashnext {

// Owns a mapping of a whole file; unmaps on destruction. The bytes stay valid while the object lives, also
// after the file is unlinked; a file truncated by somebody else while mapped is undefined, as everywhere.
class MappedFile {
 public:
  // Throws InvalidArgument naming the path and the system's reason; an empty file is refused.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  // Says that a range has been copied and its pages need not stay in memory; reading it again is allowed and
  // slow.
  void release(size_t offset, size_t n) const;
  // Says that single places of a range will be read: pages around them are not read along.
  void expect_random(size_t offset, size_t n) const;
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size_bytes)
      : path_(std::move(path)), data_(data), size_bytes_(size_bytes) {}

  std::string path_;
  const std::byte* data_;
  size_t size_bytes_;
};

}  // namespace flashnext
