// SPDX-License-Identifier: Apache-2.0
#include "server/http/ui/routes.h"

#include <string>

#include "server/http/ui/page_files.h"

namespace lintel {
namespace {

// The page talks to this server alone, runs no script but its own files, and is shown in no other
// page. blob: and data: are the pictures that people upload and save.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// RFC 9110, 13.1.2: `*`, or a list of tags, of which W/ does not matter here.
bool names_tag(std::string_view if_none_match, std::string_view etag) {
  return if_none_match == "*" || if_none_match.find(etag) != std::string_view::npos;
}

HttpAnswer page_answer(const PageFile& file, std::string_view if_none_match) {
  HttpAnswer answer;
  answer.headers = {{"etag", std::string(file.etag)},
                    {"cache-control", "no-cache"},  // asked for each time, sent if it changed
                    {"content-security-policy", kContentSecurityPolicy},
                    {"referrer-policy", "no-referrer"},
                    {"cross-origin-opener-policy", "same-origin"},
                    {"cross-origin-resource-policy", "same-origin"}};
  if (names_tag(if_none_match, file.etag)) {
    answer.status = 304;
    return answer;
  }
  answer.headers.emplace_back("content-type", std::string(file.type));
  answer.body = std::string(file.bytes);
  return answer;
}

}  // namespace

void add_page_routes(HttpRoutes& routes) {
  for (const PageFile& file : page_files()) {
    // The page needs no token; its requests to the server need one.
    routes.add({.method = "GET",
                .path = std::string(file.path),
                .handle =
                    [&file](const SharedExchange& exchange) {
                      const HttpRequest& request = exchange->request();
                      exchange->answer(page_answer(file, request.header("if-none-match")));
                    },
                .is_open = true});
  }
}

}  // namespace lintel
