#include "bench/output_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace lintel::bench {
namespace {

[[noreturn]] void fail(const std::string& flag, const std::string& file, int error) {
  throw cli::Failure(flag + " " + file + ": cannot be written: " + std::strerror(error));
}

}  // namespace

void require_writable(const std::string& flag, const std::string& file) {
  if (file.empty() || file == "-") return;
  const bool was_there = ::access(file.c_str(), F_OK) == 0;
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) fail(flag, file, errno);
  ::close(fd);
  if (!was_there) ::unlink(file.c_str());
}

void write_file(const std::string& flag, const std::string& file, const std::string& text,
                cli::Console& console) {
  if (file == "-") return console.out(text);
  errno = 0;
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (!out) fail(flag, file, errno);
}

}  // namespace lintel::bench
