// A request's first line and headers, from Beast's form to what routes get.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>
#include <string_view>

#include "server/web/http_message.h"

namespace lintel {

// ASCII's letters; all else as it is.
std::string lower(std::string_view text);

// Method, path, query and headers, their names in lower case. Without what the connection knows:
// peer, certificate and the request's id.
HttpRequest request_of_head(
    const boost::beast::http::request<boost::beast::http::string_body>& message);

}  // namespace lintel
