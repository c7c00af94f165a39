// Files that commands write.
#pragma once

#include <string>
#include <string_view>

namespace lintel::cli {

// A file that is opened before the work is done and written after it: what cannot be written is
// said at once, and what was in the file stays until there is something to put in its place.
//
// Threads: one at a time.
class OutputFile {
 public:
  // Opens `path`, makes it where there is none. Throws Failure naming `flag` and `path`.
  OutputFile(const std::string& flag, const std::string& path);
  // Removes what it made and nothing was written to.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Unbuffered. The first call empties the file. Throws Failure as the constructor.
  void write(std::string_view bytes);

 private:
  [[noreturn]] void fail(int error) const;

  const std::string name_;  // flag and path
  const std::string path_;
  int file_ = -1;
  bool made_ = false;
  bool written_ = false;
};

}  // namespace lintel::cli
