#include <openssl/sha.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string_view>

#include "client/cli/commands.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
The server keeps a hash, so the token is shown once and cannot be had from its file.

Examples:
  lintel token new alice --roles generate,score --append tokens >alice.token
  lintel-server --auth-tokens tokens ...
  lintel generate --token @alice.token ...)";

struct TokenFlags {
  std::string name;
  std::string roles = "generate,score";
  std::string append;
};

std::string hex(std::span<const unsigned char> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

// 256 random bits, hexadecimal.
std::string new_token() {
  std::array<unsigned char, 32> bytes;
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw Failure(std::string("no random numbers: ") + std::strerror(errno));
  }
  return hex(bytes);
}

std::string hash_of(const std::string& token) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  return hex(hash);
}

// An entry glued to the last line would spoil two: people's editors may leave that one open.
bool ends_amid_a_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() <= 0) return false;  // new, empty, or a pipe
  in.seekg(-1, std::ios::end);
  return in.get() != '\n';
}

// As server/tokens.cpp has it, which refuses a whole file for one other name.
bool is_identity_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@";
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

int run_new(const TokenFlags& flags, Console& console) {
  if (!is_identity_name(flags.name)) {
    throw UsageError("NAME '" + flags.name + "' is not 1 to 64 of letters, digits and - _ . @");
  }
  const std::string token = new_token();
  const std::string line = flags.name + " " + flags.roles + " sha256:" + hash_of(token) + "\n";
  console.out(token + "\n");
  if (flags.append.empty()) {
    console.out(line);
    return kOk;
  }
  std::ofstream out(flags.append, std::ios::app);
  out << (ends_amid_a_line(flags.append) ? "\n" : "") << line << std::flush;
  if (!out) throw Failure("cannot write to " + flags.append);
  return kOk;
}

}  // namespace

void add_token(CLI::App& app, CommandLine& command_line) {
  CLI::App* command = app.add_subcommand("token", "Make bearer tokens for a server");
  command->require_subcommand(1);
  command->footer(kFooter);
  auto flags = std::make_shared<TokenFlags>();
  CLI::App* make = command->add_subcommand(
      "new", "Make a token: prints it, then the line for the server's --auth-tokens file");
  make->add_option("NAME", flags->name, "Whose token it is")->required();
  make->add_option("--roles", flags->roles, "Of generate, score and admin, with commas")
      ->type_name("ROLES")
      ->check([](const std::string& roles) {
        std::istringstream in(roles);
        for (std::string role; std::getline(in, role, ',');) {
          if (role != "generate" && role != "score" && role != "admin") {
            return "'" + role + "' is no role: generate, score or admin";
          }
        }
        return roles.empty() ? std::string("no role is given") : std::string();
      })
      ->capture_default_str();
  add_text(*make, "--append", flags->append, "FILE",
           "Append the line to this file rather than print it");
  make->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] { return run_new(*flags, command_line.console); };
  });
}

}  // namespace lintel::cli
