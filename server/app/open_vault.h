// The vault that --session-store names.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "server/config/server_options.h"
#include "server/core/clock.h"
#include "server/sessions/storage/session_vault.h"

namespace lintel {

// Who a store is to know this server as.
struct StoreCredentials {
  std::string user;  // empty: the default one
  std::string password;
};
// A line with the user and one with the password, or one with the password alone. Throws
// std::runtime_error, naming the file.
StoreCredentials read_store_credentials(const std::filesystem::path& file);

// Throws std::runtime_error: VaultError of a directory, RedisError of servers. REQUIRES:
// options.durable.store is not empty. `clock` outlives it.
std::unique_ptr<SessionVault> open_vault(const ServerOptions& options, const Clock& clock);

}  // namespace lintel
