// SPDX-License-Identifier: Apache-2.0
// A server's token file, and calls with the tokens in it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <openssl/sha.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/server/support/service_fixture.h"
#include "tests/support/temporary_directory.h"

namespace lintel::testing {

// A line of a token file; the token of a name is "token-NAME".
inline std::string token_line(const std::string& name, const std::string& roles) {
  const std::string token = "token-" + name;
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  std::string line = name + " " + roles + " sha256:";
  for (const unsigned char byte : hash) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    line += digits;
  }
  return line + "\n";
}

inline const std::string kAllTokens = "# all of them\n\n" + token_line("alice", "generate,score") +
                                      token_line("bob", "generate") + token_line("carol", "score") +
                                      token_line("root", "admin") +
                                      token_line("both", "admin,generate");

struct TokenFile {
  TokenFile() { write(kAllTokens); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
  TemporaryDirectory directory;
  const std::string path = directory.path() / "tokens";
};

inline ServerOptions options_with(const TokenFile& file) {
  ServerOptions options = test_options();
  options.security.auth_tokens = file.path;
  return options;
}

inline void set_token(grpc::ClientContext& context, const std::string& name) {
  if (!name.empty()) context.AddMetadata("authorization", "Bearer token-" + name);
}

}  // namespace lintel::testing
