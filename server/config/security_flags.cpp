#include "server/config/security_flags.h"

namespace lintel {
namespace {

SecurityOptions& security(ServerOptions& options) { return options.security; }
Quotas::Limits& identity(ServerOptions& options) { return options.identity; }
SessionStore::Options& sessions(ServerOptions& options) { return options.sessions; }

}  // namespace

std::vector<Flag> security_flags() {
  using Options = SecurityOptions;
  return {
      path_flag("--tls-cert", security, &Options::tls_cert, "FILE",
                "Serve TLS with this PEM certificate (its intermediates after it), for names and "
                "addresses in its subject alternative names. Read again when it changes"),
      path_flag("--tls-key", security, &Options::tls_key, "FILE",
                "Its PEM private key, without a password"),
      path_flag("--tls-client-ca", security, &Options::tls_client_ca, "FILE",
                "Mutual TLS: clients need a certificate signed by one of these, PEM"),
      path_flag("--auth-tokens", security, &Options::auth_tokens, "FILE",
                "Calls need a bearer token of this file: a line each, NAME ROLES sha256:HEX, as "
                "`lintel token new` makes them. Read again when it changes. Health needs none"),
      list_flag(
          "--admin-certificate", security, &Options::admin_certificates, "NAME",
          [](const std::string& name) { return name; },
          "In mutual TLS without --auth-tokens: clients of this name have the role admin (loading "
          "models, log level, all sessions); repeat for several. A certificate's name is "
          "its first subject alternative name, or without any its common name; the log has it "
          "with x509: in front"),
      switch_flag("--insecure-public", security, &Options::insecure_public,
                  "Allow plain text on an address other machines reach: prompts and output can be "
                  "read and changed on their way"),
  };
}

std::vector<Flag> identity_flags() {
  using Limits = Quotas::Limits;
  using Sessions = SessionStore::Options;
  constexpr std::int64_t kMost = 1'000'000'000'000;
  return {
      number_flag("--identity-max-streams", identity, &Limits::max_streams, 0, 1'000'000,
                  "Generate and Score calls at a time"),
      number_flag("--identity-max-sessions", sessions, &Sessions::max_sessions_per_owner, 0,
                  100'000'000, "Sessions at a time"),
      bytes_flag("--identity-memory", sessions, &Sessions::bytes_per_owner, 0, kMostBytes,
                 "State of its sessions and calls, in bytes"),
      number_flag("--identity-tokens-per-second", identity, &Limits::tokens_per_second, 0, kMost,
                  "Prompt and new tokens, paid for as they are read and produced: without anything "
                  "saved up the identity's calls pause, and share this rate from then on. A call "
                  "that would wait for more than ten seconds to begin is refused"),
      number_flag("--identity-token-burst", identity, &Limits::token_burst, 0, kMost,
                  "Tokens saved up at most; 0: ten seconds' worth"),
  };
}

}  // namespace lintel
