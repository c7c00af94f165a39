// SPDX-License-Identifier: Apache-2.0
#include "client/cli/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/cli/console.h"

namespace lintel::cli {
namespace {

template <typename Float>
std::string shortest(Float number) {
  if (!std::isfinite(number)) return "null";
  std::array<char, 64> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  std::string text(digits.data(), end);
  // "3" would read back as an integer, and "-0" lose its sign.
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

void JsonWriter::separate() {
  if (needs_comma_) text_ += ',';
  needs_comma_ = true;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  text_ += bracket;
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::literal(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  value(name);
  text_ += ':';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::value(float number) { return literal(shortest(number)); }
JsonWriter& JsonWriter::value(double number) { return literal(shortest(number)); }

JsonWriter& JsonWriter::value(std::string_view text) {
  return literal(nlohmann::json(text).dump(/*indent=*/-1, /*indent_char=*/' ',
                                           /*ensure_ascii=*/false,
                                           nlohmann::json::error_handler_t::replace));
}

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

Progress::Progress(Console& console, std::int64_t total, std::string unit, bool wanted)
    : console_(console),
      total_(total),
      unit_(std::move(unit)),
      shown_(wanted && console.err_is_terminal()) {}

Progress::~Progress() { erase(); }

void Progress::add(std::int64_t count) {
  done_ += count;
  const auto now = std::chrono::steady_clock::now();
  if (!shown_ || now < next_draw_) return;
  next_draw_ = now + std::chrono::milliseconds(100);
  std::string line;
  if (total_ > 0) {
    const std::int64_t width = note_.empty() ? 30 : 16;
    const auto filled = static_cast<std::size_t>(std::min(width, done_ * width / total_));
    line += "[" + std::string(filled, '#') +
            std::string(static_cast<std::size_t>(width) - filled, '-') + "] ";
    line += std::to_string(done_) + "/" + std::to_string(total_) + " " + unit_;
  } else {
    line += std::to_string(done_) + " " + unit_;
  }
  if (!note_.empty()) line += ", " + note_;
  // A line that wraps could not be drawn over.
  winsize size{};
  const bool is_known = ioctl(console_.err_fd(), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  line = line.substr(0, is_known ? size.ws_col - 1U : 79U);
  console_.err("\r\x1b[K" + line);
  drawn_ = true;
}

void Progress::erase() {
  if (drawn_) console_.err("\r\x1b[K");
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += row[i] + std::string(widths[i] - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace lintel::cli
