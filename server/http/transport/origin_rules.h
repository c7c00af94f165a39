// OriginRules: which web pages may call, and by which names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/core/listen_address.h"
#include "server/http/transport/http_message.h"

namespace lintel {

// Browsers name by Origin the page that a request comes from. The server's own pages are always
// accepted, others where they are listed: without this any page in a user's browser could use a
// server on the user's machine. Requests without Origin come from no page. Constant after
// construction.
class OriginRules {
 public:
  // `allowed`: "https://example.org:8443", or "*" for every page. `address`: where the server
  // listens. `hosts`: by which names it may be called besides those of this machine and of the
  // allowed origins, see HostRules.
  OriginRules(std::vector<std::string> allowed, const ListenAddress& address,
              std::vector<std::string> hosts = {});

  // Whether the server may be called by the name in the request's Host. A request that has none is
  // no browser's.
  bool takes_host(const HttpRequest& request) const;
  // Whether the page that the request comes from may call. REQUIRES: takes_host(request).
  bool takes(const HttpRequest& request) const;
  // Of the answer, for a browser to show it to the page; none where no flag names the page.
  HttpHeaders headers_for(const HttpRequest& request) const;
  // The answer to a preflight request; REQUIRES: takes(request).
  HttpAnswer preflight(const HttpRequest& request) const;
  static bool is_preflight(const HttpRequest& request);

 private:
  bool is_named(std::string_view origin) const;

  const std::vector<std::string> allowed_;
  const bool all_;
  const HostRules hosts_;
};

}  // namespace lintel
