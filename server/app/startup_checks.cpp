#include "server/app/startup_checks.h"

#include <dirent.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/auth/bearer_tokens.h"
#include "server/auth/certificates.h"
#include "server/port/listener.h"
#include "server/repository/model_repository.h"

namespace lintel {
namespace {

// `message`, which begins with a file, with the flags in front that name that file.
std::string with_flag(const std::string& message, const SecurityOptions& security) {
  const std::pair<const char*, const std::filesystem::path&> flags[] = {
      {"--tls-cert", security.tls_cert},
      {"--tls-key", security.tls_key},
      {"--tls-client-ca", security.tls_client_ca},
      {"--auth-tokens", security.auth_tokens}};
  std::string named;
  for (const auto& [flag, file] : flags) {
    if (file.empty() || !message.starts_with(file.string())) continue;
    const char after = message.c_str()[file.string().size()];
    if (after == ':' || after == ',') named += (named.empty() ? "" : ", ") + std::string(flag);
  }
  return named.empty() ? message : named + ": " + message;
}

void check_security_files(const SecurityOptions& security) {
  try {
    if (security.tls()) {
      read_certificates({security.tls_cert, security.tls_key, security.tls_client_ca});
    }
    if (!security.auth_tokens.empty()) BearerTokens tokens(security.auth_tokens);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(with_flag(error.what(), security));
  }
}

void check_repository(const ServerOptions& options) {
  if (options.models.repository.empty()) return;
  const std::string directory = options.models.repository.string();
  DIR* const opened = ::opendir(directory.c_str());
  if (opened == nullptr) {
    throw std::runtime_error("--model-repository: " + directory + ": " + std::strerror(errno));
  }
  ::closedir(opened);
  // A server without a model is ready, and all that it answers is that there is none.
  if (!options.models.directories.empty() || !options.models.load.empty()) return;
  std::string names;
  for (const std::string& name : ModelRepository(options.models.repository).names()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) {
    spdlog::warn("no model is loaded, and --model-repository {} has none yet", directory);
  } else {
    spdlog::warn(
        "no model is loaded: give --load-model, or `lintel model load NAME` with one of {}", names);
  }
}

void check_directory(const char* flag, const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) return;
  throw std::runtime_error(std::string(flag) + ": " + path.string() + ": " +
                           std::strerror(std::filesystem::exists(path) ? ENOTDIR : ENOENT));
}

}  // namespace

void check_before_loading(const ServerOptions& options) {
  check_security_files(options.security);
  check_repository(options);
  for (const auto& model : options.models.directories) check_directory("--model", model.path);
  for (const auto& adapter : options.models.adapters) check_directory("--adapter", adapter.path);
  if (const auto& states = options.initial_states.directory; !states.empty()) {
    check_directory("--initial-states", states);
  }
  // Bound and let go: who started the server twice hears of it at once.
  const Listener probe(options.listen, options.connections.keepalive_timeout_ms);
  if (options.http.listen) {
    const Listener http(*options.http.listen, options.http.write_timeout_ms);
  }
}

}  // namespace lintel
