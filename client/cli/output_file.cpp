#include "client/cli/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/cli/console.h"

namespace lintel::cli {

OutputFile::OutputFile(const std::string& flag, const std::string& path)
    : name_(flag + " " + path), path_(path) {
  constexpr mode_t kMode = 0666;  // less the umask
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  made_ = file_ >= 0;
  if (!made_ && errno == EEXIST) file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, kMode);
  if (file_ < 0) fail(errno);
}

OutputFile::~OutputFile() {
  close(file_);
  if (made_ && !written_) unlink(path_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  // Pipes and devices have nothing to be emptied of.
  if (!written_ && ftruncate(file_, 0) != 0 && errno != EINVAL) fail(errno);
  written_ = true;
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(errno);
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

void OutputFile::fail(int error) const {
  throw Failure(name_ + ": cannot be written: " + std::strerror(error));
}

}  // namespace lintel::cli
