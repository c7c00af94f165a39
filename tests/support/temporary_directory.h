// SPDX-License-Identifier: Apache-2.0
// A directory that lives as long as its object.
#pragma once

#include <filesystem>

namespace lintel::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory();  // in the system's temporary directory, empty
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lintel::testing
