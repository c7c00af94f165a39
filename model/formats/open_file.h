// SPDX-License-Identifier: Apache-2.0
// OpenFile: a file of weights, read piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace lintel {

// Const calls are thread-safe. A new version takes the file's place by rename; where one is written
// over it, or it is cut short, reading throws ModelError. It is not mapped, for that would kill the
// process then.
class OpenFile {
 public:
  // Throws ModelError for what is no regular file, cannot be opened, or is a pointer of Git LFS.
  explicit OpenFile(const std::filesystem::path& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& name() const { return name_; }  // the path, for errors
  std::uint64_t size() const;                        // bytes, when it was opened

  // Asks the system for the whole file, which will be read.
  void read_ahead() const;
  // Reads out.size() bytes. Throws ModelError.
  void read(std::uint64_t offset, std::span<char> out) const;
  // Throws ModelError when the file was written to since it was opened: what was read may be of two
  // versions.
  void check_unchanged() const;

 private:
  struct Descriptor;

  const std::string name_;
  const std::unique_ptr<const Descriptor> descriptor_;
};

}  // namespace lintel
