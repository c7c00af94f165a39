// SPDX-License-Identifier: Apache-2.0
#include "server/security/bearer_tokens.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace lintel {
namespace {

constexpr Role kRoles[] = {Role::kGenerate, Role::kScore, Role::kAdmin};
constexpr std::string_view kPrefix = "sha256:";

Role parse_role(const std::string& text) {
  for (const Role role : kRoles) {
    if (text == to_string(role)) return role;
  }
  throw std::runtime_error("'" + text + "' is no role: generate, score or admin");
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_identity_name(const std::string& name) {
  if (name.size() > 64) return false;
  for (const unsigned char c : name) {
    if (std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.' && c != '@') return false;
  }
  return !name.empty();
}

std::string read(const std::filesystem::path& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in.is_open() || in.bad() || errno == EISDIR) {
    throw std::runtime_error(file.string() + ": cannot be read: " + std::strerror(errno));
  }
  return std::move(text).str();
}

}  // namespace

BearerTokenTable::Hash BearerTokenTable::hash_of(std::string_view token) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hash;
}

BearerTokenTable::Entry BearerTokenTable::parse_line(const std::vector<std::string>& words) {
  if (words.size() != 3) throw std::runtime_error("is not NAME ROLES sha256:HEX");
  Entry entry;
  if (!is_identity_name(words[0])) {
    throw std::runtime_error("the name is not 1 to 64 of letters, digits and - _ . @");
  }
  entry.identity.name = words[0];
  std::istringstream roles(words[1]);
  for (std::string role; std::getline(roles, role, ',');) {
    entry.identity.roles.add(parse_role(role));
  }
  const std::string& hash = words[2];
  if (hash.rfind(kPrefix, 0) != 0 || hash.size() != kPrefix.size() + 2 * entry.hash.size()) {
    throw std::runtime_error("the hash is not sha256: and 64 hexadecimal digits");
  }
  for (std::size_t i = 0; i < entry.hash.size(); ++i) {
    const int high = hex_digit(hash[kPrefix.size() + 2 * i]);
    const int low = hex_digit(hash[kPrefix.size() + 2 * i + 1]);
    if (high < 0 || low < 0) throw std::runtime_error("the hash is not hexadecimal");
    entry.hash[i] = static_cast<unsigned char>(16 * high + low);
  }
  return entry;
}

BearerTokenTable::BearerTokenTable(std::string_view text, const std::string& source) {
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream in(line.substr(0, line.find('#')));
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.empty()) continue;
    try {
      entries_.push_back(parse_line(words));
    } catch (const std::exception& error) {  // never the line itself: it may hold a token
      throw std::runtime_error(source + ", line " + std::to_string(number) + ": " + error.what());
    }
  }
  if (entries_.empty()) throw std::runtime_error(source + ": holds no token");
}

std::optional<Identity> BearerTokenTable::find(std::string_view token) const {
  const Hash hash = hash_of(token);
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.hash.data(), hash.data(), hash.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->identity;
}

BearerTokens::BearerTokens(std::filesystem::path file) : file_(std::move(file)) {
  // The stamp is taken first: a change while the file is read is found the next time.
  const FileStamp before = FileStamp::of(file_);
  auto table = std::make_shared<const BearerTokenTable>(read(file_), file_.string());
  MutexLock lock(mutex_);
  stamp_ = before;
  table_ = std::move(table);
}

std::shared_ptr<const BearerTokenTable> BearerTokens::table() const {
  MutexLock lock(mutex_);
  return table_;
}

bool BearerTokens::reload_if_changed() {
  const FileStamp now = FileStamp::of(file_);
  {
    MutexLock lock(mutex_);
    if (now == stamp_) return false;
  }
  try {
    auto table = std::make_shared<const BearerTokenTable>(read(file_), file_.string());
    spdlog::info("{} tokens from {}", table->size(), file_.string());
    MutexLock lock(mutex_);
    table_ = std::move(table);
    stamp_ = now;  // only now: a file that could not be read is tried again
    failed_.reset();
  } catch (const std::exception& error) {
    MutexLock lock(mutex_);
    if (std::exchange(failed_, now) == now) return false;
    spdlog::error("tokens not reloaded, the old ones stay: {}", error.what());
    return false;
  }
  return true;
}

std::string_view bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    if (std::tolower(static_cast<unsigned char>(authorization[i])) != kScheme[i]) return {};
  }
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  return authorization;
}

}  // namespace lintel
