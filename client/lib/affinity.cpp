#include "client/lib/affinity.h"

#include <openssl/evp.h>

#include <array>

namespace lintel {

std::string affinity_key(const std::string& session_id) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  EVP_Digest(session_id.data(), session_id.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  std::string key;
  for (int i = 0; i < 8; ++i) {
    constexpr char kDigits[] = "0123456789abcdef";
    key += kDigits[digest[i] >> 4];
    key += kDigits[digest[i] & 15];
  }
  return key;
}

}  // namespace lintel
