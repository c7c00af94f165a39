#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cassert>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "model/config.h"
#include "model/error_text.h"

namespace lintel {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor data is copied as it lies");

class FileDescriptor {
 public:
  // Non-blocking: a FIFO in the place of a file must not hang the server.
  explicit FileDescriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

void widen(std::string_view bytes, float (*convert)(std::uint16_t), std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes.data() + i * sizeof(bits), sizeof(bits));
    out[i] = convert(bits);
  }
}

bool all_finite(std::span<const float> values) {
  std::uint32_t found = 0;  // no early exit: the loop vectorises
  for (const float v : values) {
    constexpr std::uint32_t kExponent = 0x7f800000u;
    found |= (std::bit_cast<std::uint32_t>(v) & kExponent) == kExponent ? 1u : 0u;
  }
  return found == 0;
}

}  // namespace

const char* to_string(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBf16:
      return "BF16";
    case TensorType::kI32:
      return "I32";
  }
  return "";
}

std::size_t bytes_per_value(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kI32 ? 4 : 2;
}

std::string shape_to_string(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t TensorEntry::num_values() const {
  return static_cast<std::int64_t>((end - begin) / bytes_per_value(type));
}

void SafetensorsFile::Unmap::operator()(const char* mapping) const {
  ::munmap(const_cast<char*>(mapping), size);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : name_(path.string()) {
  const FileDescriptor file(name_);
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
    throw ModelError(name_ + ": cannot open: " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) throw ModelError(name_ + ": expected a regular file");
  const std::size_t size = static_cast<std::size_t>(info.st_size);
  if (size > 0) {
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapping == MAP_FAILED) {
      throw ModelError(name_ + ": cannot map: " + std::strerror(errno));
    }
    mapping_ = std::unique_ptr<const char, Unmap>(static_cast<const char*>(mapping), Unmap{size});
    ::madvise(mapping, size, MADV_WILLNEED);
  }
  header_ = parse_safetensors({mapping_.get(), size}, name_);
}

const TensorEntry& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    throw ModelError(name_ + ": tensor " + quote(name) + ": missing");
  }
  return found->second;
}

std::string_view SafetensorsFile::bytes_of(const TensorEntry& tensor) const {
  return {mapping_.get() + header_.data_offset + tensor.begin, tensor.end - tensor.begin};
}

void SafetensorsFile::read_f32(const TensorEntry& tensor, std::span<float> out) const {
  assert(out.size() == static_cast<std::size_t>(tensor.num_values()));
  const std::string_view bytes = bytes_of(tensor);
  switch (tensor.type) {
    case TensorType::kF32:
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      break;
    case TensorType::kF16:
      widen(bytes, f16_to_f32, out);
      break;
    case TensorType::kBf16:
      widen(bytes, bf16_to_f32, out);
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
  const std::string_view bytes = bytes_of(entry);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace lintel
