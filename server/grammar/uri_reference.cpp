// SPDX-License-Identifier: Apache-2.0
#include "server/grammar/uri_reference.h"

#include <algorithm>
#include <cstddef>

namespace lintel::grammar {
namespace {

struct Parts {
  std::string_view scheme, authority, path, query;  // scheme with its colon, query with its mark
  bool has_authority = false;
};

Parts parts_of(std::string_view uri) {
  Parts parts;
  uri = uri.substr(0, uri.find('#'));
  const std::size_t colon = uri.find_first_of(":/?");
  if (colon != std::string_view::npos && colon > 0 && uri[colon] == ':') {
    parts.scheme = uri.substr(0, colon + 1);
    uri.remove_prefix(colon + 1);
  }
  if (uri.starts_with("//")) {
    parts.has_authority = true;
    const std::size_t end = std::min(uri.find_first_of("/?", 2), uri.size());
    parts.authority = uri.substr(0, end);
    uri.remove_prefix(end);
  }
  const std::size_t query = std::min(uri.find('?'), uri.size());
  parts.path = uri.substr(0, query);
  parts.query = uri.substr(query);
  return parts;
}

std::string without_dots(std::string_view path) {
  std::string made;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view segment = path.substr(0, end);
    const bool is_last = end == path.size();
    path.remove_prefix(end);
    if (segment == "/." || segment == ".") {
      if (is_last) made += '/';
    } else if (segment == "/.." || segment == "..") {
      made.resize(std::min(made.rfind('/'), made.size()));
      if (is_last) made += '/';
    } else {
      made += segment;
    }
  }
  return made;
}

}  // namespace

std::string resolve_uri(std::string_view base, std::string_view reference) {
  const Parts from = parts_of(base);
  Parts to = parts_of(reference);
  std::string path(to.path);
  if (to.scheme.empty()) {
    to.scheme = from.scheme;
    if (!to.has_authority) {
      to.authority = from.authority;
      if (path.empty()) {
        path = from.path;
        if (to.query.empty()) to.query = from.query;
      } else if (path[0] != '/') {
        const std::size_t slash = from.path.rfind('/');
        const std::size_t kept = slash == std::string_view::npos ? 0 : slash + 1;
        const bool needs_slash = kept == 0 && from.has_authority;
        path = (needs_slash ? "/" : std::string(from.path.substr(0, kept))) + path;
      }
    }
  }
  const bool is_opaque = !to.scheme.empty() && to.authority.empty() && !path.starts_with('/');
  return std::string(to.scheme) + std::string(to.authority) +
         (is_opaque ? path : without_dots(path)) + std::string(to.query);
}

bool read_fragment(std::string_view reference, std::string* fragment) {
  fragment->clear();
  const std::size_t mark = reference.find('#');
  if (mark == std::string_view::npos) return true;
  const auto digit = [&](std::size_t at) {
    const char c = at < reference.size() ? reference[at] : '?';
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  for (std::size_t i = mark + 1; i < reference.size(); ++i) {
    if (reference[i] != '%') {
      *fragment += reference[i];
      continue;
    }
    const int high = digit(i + 1), low = digit(i + 2);
    if (high < 0 || low < 0) return false;
    *fragment += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return true;
}

}  // namespace lintel::grammar
