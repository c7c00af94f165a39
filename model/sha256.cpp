#include "model/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "model/config.h"

namespace lintel {
namespace {

constexpr std::size_t kChunkBytes = 1 << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw ModelError(path.string() + ": " + what + ": " + std::strerror(errno));
}

// The length goes in first, so it is the length found then; a file that changes meanwhile only
// gives another fingerprint.
void add_file(EVP_MD_CTX* context, const std::filesystem::path& path, std::vector<char>& chunk) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) fail(path, "cannot open");
  std::error_code error;
  const std::uint64_t length = std::filesystem::file_size(path, error);
  if (error) throw ModelError(path.string() + ": cannot read: " + error.message());
  std::array<unsigned char, 8> prefix;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    prefix[i] = static_cast<unsigned char>(length >> (8 * i));
  }
  EVP_DigestUpdate(context, prefix.data(), prefix.size());
  while (const std::size_t n = std::fread(chunk.data(), 1, chunk.size(), file.get())) {
    EVP_DigestUpdate(context, chunk.data(), n);
  }
  if (std::ferror(file.get())) fail(path, "cannot read");
}

}  // namespace

std::string sha256_of_files(std::span<const std::filesystem::path> files) {
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 is not available in this OpenSSL");
  }
  std::vector<char> chunk(kChunkBytes);
  for (const std::filesystem::path& path : files) add_file(context.get(), path, chunk);

  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace lintel
