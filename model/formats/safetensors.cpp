#include "model/formats/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "model/core/error_text.h"
#include "model/core/float_formats.h"
#include "model/core/model_error.h"

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is copied as it lies");

// Of bf16 and f16 tensors, which are widened piece by piece.
constexpr std::size_t kPieceValues = 32768;

bool all_finite(std::span<const float> values) {
  std::uint32_t found = 0;  // no early exit: the loop vectorises
  for (const float v : values) {
    constexpr std::uint32_t kExponent = 0x7f800000u;
    found |= (std::bit_cast<std::uint32_t>(v) & kExponent) == kExponent ? 1u : 0u;
  }
  return found == 0;
}

template <typename Value>
std::span<char> chars_of(std::span<Value> values) {
  return {reinterpret_cast<char*>(values.data()), values.size_bytes()};
}

}  // namespace

// The file and what it was when it was opened.
class SafetensorsFile::Descriptor {
 public:
  // Non-blocking: a FIFO in the place of a file must not hang the server.
  explicit Descriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail(path, "cannot open");
    if (::fstat(fd_, &opened_) == 0) return;
    ::close(fd_);
    fail(path, "cannot open");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  const struct stat& opened() const { return opened_; }

  [[noreturn]] static void fail(const std::string& path, const char* what) {
    throw ModelError(path + ": " + what + ": " + std::strerror(errno));
  }

 private:
  const int fd_;
  struct stat opened_ {};
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : name_(path.string()), descriptor_(std::make_unique<const Descriptor>(name_)) {
  if (!S_ISREG(descriptor_->opened().st_mode)) {
    throw ModelError(name_ + ": expected a regular file");
  }
  ::posix_fadvise(descriptor_->get(), 0, 0, POSIX_FADV_WILLNEED);
  header_ = parse_safetensors(read_header(), size(), name_);
}

SafetensorsFile::~SafetensorsFile() = default;

std::uint64_t SafetensorsFile::size() const {
  return static_cast<std::uint64_t>(descriptor_->opened().st_size);
}

std::string SafetensorsFile::read_header() const {
  std::string begin(std::min<std::uint64_t>(size(), kHeaderLengthBytes), '\0');
  read(0, begin);
  begin.resize(safetensors_header_bytes(begin, size(), name_));
  read(0, begin);
  return begin;
}

void SafetensorsFile::check_unchanged() const {
  const struct stat& then = descriptor_->opened();
  struct stat now {};
  if (::fstat(descriptor_->get(), &now) != 0) Descriptor::fail(name_, "cannot read");
  if (now.st_size == then.st_size && now.st_mtim.tv_sec == then.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == then.st_mtim.tv_nsec) {
    return;
  }
  throw ModelError(name_ + ": was changed while it was read");
}

void SafetensorsFile::read(std::uint64_t offset, std::span<char> out) const {
  for (std::size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(descriptor_->get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) Descriptor::fail(name_, "cannot read");
    if (got == 0) throw ModelError(name_ + ": was cut short while it was read");
    done += static_cast<std::size_t>(got);
  }
}

const TensorEntry& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    throw ModelError(name_ + ": tensor " + quote(name) + ": missing");
  }
  return found->second;
}

void SafetensorsFile::read_widened(const TensorEntry& tensor, float (*convert)(std::uint16_t),
                                   std::span<float> out, const BytesRead& bytes_read) const {
  std::vector<std::uint16_t> piece(std::min(out.size(), kPieceValues));
  for (std::size_t done = 0; done < out.size(); done += piece.size()) {
    piece.resize(std::min(piece.size(), out.size() - done));
    read(header_.data_offset + tensor.begin + done * sizeof(piece[0]), chars_of(std::span(piece)));
    if (bytes_read) bytes_read(chars_of(std::span(piece)));
    std::transform(piece.begin(), piece.end(), out.subspan(done).begin(), convert);
  }
}

void SafetensorsFile::read_f32(const TensorEntry& tensor, std::span<float> out,
                               const BytesRead& bytes_read) const {
  assert(out.size() == static_cast<std::size_t>(tensor.num_values()));
  switch (tensor.type) {
    case TensorType::kF32:
      read(header_.data_offset + tensor.begin, chars_of(out));
      if (bytes_read) bytes_read(chars_of(out));
      break;
    case TensorType::kF16:
      read_widened(tensor, f16_to_f32, out, bytes_read);
      break;
    case TensorType::kBf16:
      read_widened(tensor, bf16_to_f32, out, bytes_read);
      break;
    case TensorType::kI32:
      throw ModelError(name_ + ": tensor " + quote(tensor.name) +
                       ": found dtype I32, expected F32, F16 or BF16");
  }
  if (all_finite(out)) return;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::isfinite(out[i])) continue;
    throw ModelError(name_ + ": tensor " + quote(tensor.name) + ": found " +
                     std::to_string(out[i]) + " at index " + std::to_string(i) +
                     ", expected a finite number");
  }
}

std::vector<float> SafetensorsFile::read_f32(std::string_view name) const {
  const TensorEntry& entry = tensor(name);
  std::vector<float> values(static_cast<std::size_t>(entry.num_values()));
  read_f32(entry, values);
  return values;
}

std::vector<std::int32_t> SafetensorsFile::read_i32(std::string_view name) const {
  const TensorEntry& entry = tensor(name);
  if (entry.type != TensorType::kI32) {
    throw ModelError(name_ + ": tensor " + quote(name) + ": found dtype " + to_string(entry.type) +
                     ", expected I32");
  }
  std::vector<std::int32_t> values(static_cast<std::size_t>(entry.num_values()));
  read(header_.data_offset + entry.begin, chars_of(std::span(values)));
  return values;
}

}  // namespace lintel
