// SPDX-License-Identifier: Apache-2.0
#include "server/openai/sealer.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "server/core/random_bytes.h"

namespace lintel {
namespace {

constexpr unsigned char kForm = 1;  // the first byte of a sealed text
constexpr std::size_t kNonceBytes = 12, kTagBytes = 16;

struct FreeCipher {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Cipher = std::unique_ptr<EVP_CIPHER_CTX, FreeCipher>;

unsigned char* bytes_of_text(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}
const unsigned char* bytes_of_text(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

void check(bool is_well) {
  if (!is_well) throw std::runtime_error("OpenSSL cannot seal");
}

std::string encode_base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(bytes_of_text(text), bytes_of_text(bytes), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::optional<std::string> decode_base64(const std::string& text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::string bytes(3 * text.size() / 4, '\0');
  const int size =
      EVP_DecodeBlock(bytes_of_text(bytes), bytes_of_text(text), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  bytes.resize(static_cast<std::size_t>(size) - padding);
  if (encode_base64(bytes) != text) return std::nullopt;  // unused bits were set
  return bytes;
}

}  // namespace

Sealer::Sealer(const Secret& secret, std::string owner) : owner_(std::move(owner)) {
  // The key is derived, as the secret has other uses.
  std::string text = "seal";
  text.append(reinterpret_cast<const char*>(secret.data()), secret.size());
  SHA256(bytes_of_text(text), text.size(), key_.data());
}

std::string Sealer::context_of(const std::string& purpose) const { return purpose + ": " + owner_; }

std::string Sealer::seal(const std::string& purpose, const std::string& text) const {
  std::string sealed(1 + kNonceBytes, static_cast<char>(kForm));
  fill_with_random(std::as_writable_bytes(std::span(sealed)).subspan(1));
  const Cipher cipher(EVP_CIPHER_CTX_new());
  check(cipher != nullptr && EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr,
                                                key_.data(), bytes_of_text(sealed) + 1) == 1);
  const std::string context = context_of(purpose);
  int size = 0;
  check(EVP_EncryptUpdate(cipher.get(), nullptr, &size, bytes_of_text(context),
                          static_cast<int>(context.size())) == 1);
  const std::size_t begin = sealed.size();
  sealed.resize(begin + text.size() + kTagBytes);
  check(EVP_EncryptUpdate(cipher.get(), bytes_of_text(sealed) + begin, &size, bytes_of_text(text),
                          static_cast<int>(text.size())) == 1);
  int rest = 0;
  check(EVP_EncryptFinal_ex(cipher.get(), bytes_of_text(sealed) + begin + size, &rest) == 1);
  check(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes,
                            bytes_of_text(sealed) + begin + text.size()) == 1);
  return encode_base64(sealed);
}

std::optional<std::string> Sealer::open(const std::string& purpose,
                                        const std::string& sealed) const {
  std::optional<std::string> bytes = decode_base64(sealed);
  constexpr std::size_t kBegin = 1 + kNonceBytes;
  if (!bytes || bytes->size() < kBegin + kTagBytes || (*bytes)[0] != static_cast<char>(kForm)) {
    return std::nullopt;
  }
  const Cipher cipher(EVP_CIPHER_CTX_new());
  check(cipher != nullptr && EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr,
                                                key_.data(), bytes_of_text(*bytes) + 1) == 1);
  const std::string context = context_of(purpose);
  int size = 0;
  check(EVP_DecryptUpdate(cipher.get(), nullptr, &size, bytes_of_text(context),
                          static_cast<int>(context.size())) == 1);
  std::string text(bytes->size() - kBegin - kTagBytes, '\0');
  check(EVP_DecryptUpdate(cipher.get(), bytes_of_text(text), &size, bytes_of_text(*bytes) + kBegin,
                          static_cast<int>(text.size())) == 1);
  check(EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes,
                            bytes_of_text(*bytes) + bytes->size() - kTagBytes) == 1);
  int rest = 0;
  unsigned char none = 0;
  if (EVP_DecryptFinal_ex(cipher.get(), &none, &rest) != 1) return std::nullopt;
  return text;
}

}  // namespace lintel
