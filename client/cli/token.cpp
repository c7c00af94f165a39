// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "client/cli/commands.h"

namespace lintel::cli {
namespace {

constexpr const char* kTokenFooter = R"(
The server keeps a hash, so the token is shown once and cannot be had from its file. --out and --append
make files that their owner alone can read.

Examples:
  lintel token new alice --roles generate,score --out alice.token --append tokens
  lintel-server --auth-tokens tokens ...
  lintel generate --token @alice.token ...)";

struct TokenFlags {
  std::string name;
  std::string roles = "generate,score";
  std::string out;
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

// Has the rule of server/security/bearer_tokens.cpp, which refuses a whole file for one other name.
bool is_identity_name(const std::string& name) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@";
  return !name.empty() && name.size() <= 64 &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

// A descriptor, closed at the end.
class File {
 public:
  File(const std::string& flag, const std::string& path, int flags)
      : name_(flag + " " + path), file_(open(path.c_str(), flags | O_CLOEXEC, S_IRUSR | S_IWUSR)) {
    if (file_ >= 0) return;
    if (errno == EEXIST) throw Failure(name_ + ": is there already, and may hold a token");
    fail();
  }
  ~File() { close(file_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Writes in one piece: two commands that append at a time leave two lines.
  void write(const std::string& text) {
    if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw Failure(name_ + ": cannot be written: " + std::strerror(errno));
  }
  const std::string name_;
  const int file_;
};

int run_new(const TokenFlags& flags, Console& console) {
  if (!is_identity_name(flags.name)) {
    throw UsageError("NAME '" + flags.name + "' is not 1 to 64 of letters, digits and - _ . @");
  }
  const std::string token = new_token();
  const std::string line = flags.name + " " + flags.roles + " sha256:" + hash_of(token) + "\n";
  std::optional<File> out;
  if (!flags.out.empty()) out.emplace("--out", flags.out, O_WRONLY | O_CREAT | O_EXCL);
  try {
    // The token first: the server's file should have no entry whose token is lost.
    if (out) {
      out->write(token + "\n");
    } else {
      console.out(token + "\n");
      console.flush();
    }
    if (flags.append.empty()) {
      console.out(line);
    } else {
      File("--append", flags.append, O_WRONLY | O_CREAT | O_APPEND)
          .write((ends_amid_a_line(flags.append) ? "\n" : "") + line);
    }
  } catch (const Failure&) {
    if (out) unlink(flags.out.c_str());  // no server knows what it holds
    throw;
  }
  return kOk;
}

}  // namespace

void add_token(CLI::App& app, CommandLine& command_line) {
  CLI::App* command = app.add_subcommand("token", "Make bearer tokens for a server");
  command->require_subcommand(1);
  command->footer(kTokenFooter);
  auto flags = std::make_shared<TokenFlags>();
  CLI::App* make = command->add_subcommand(
      "new",
      "Make a token: prints it, then the line for the server's --auth-tokens file; of "
      "either what does not go into a file");
  make->add_option("NAME", flags->name, "Whose token it is")->required();
  make->add_option("--roles", flags->roles,
                   "What it may be used for: of generate, score and admin, with commas")
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
  add_text(*make, "--out", flags->out, "FILE",
           "Write the token to this file, which must not be there yet, rather than print it");
  add_text(*make, "--append", flags->append, "FILE",
           "Append the line to this file, the server's, rather than print it");
  make->footer(kTokenFooter);
  on_chosen(*make, command_line,
            [flags, &command_line] { return run_new(*flags, command_line.console); });
}

}  // namespace lintel::cli
