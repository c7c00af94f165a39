// OriginRules: which web pages may call.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/web/http_message.h"

namespace lintel {

// Browsers say by Origin which page a request comes from. Pages of the server's own are always
// taken, others where they are named: without this any page that somebody opens could use a server
// on their machine. Who sends no Origin is no browser's page. Constant after construction.
class OriginRules {
 public:
  // `allowed`: "https://example.org:8443", or "*" for every page. `is_local`: the server listens
  // for its own machine alone; a page is its own only if it came from a name of this machine, for a
  // stranger's name may be made to point here.
  OriginRules(std::vector<std::string> allowed, bool is_local);

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
  const bool is_local_;
};

}  // namespace lintel
