// SPDX-License-Identifier: Apache-2.0
#include "server/models/model_aliases.h"

#include <algorithm>

namespace lintel {

bool matches(std::string_view pattern, std::string_view name) {
  if (name.size() > kMostAliasBytes) return false;
  const std::size_t first = pattern.find('*');
  if (first == std::string_view::npos) return pattern == name;
  const std::size_t last = pattern.rfind('*');
  const std::string_view begin = pattern.substr(0, first);
  const std::string_view end = pattern.substr(last + 1);
  if (name.size() < begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end)) {
    return false;
  }
  // Each text between two * is matched at its first occurrence, which leaves most for the others.
  std::string_view rest = name.substr(begin.size(), name.size() - begin.size() - end.size());
  std::string_view between = pattern.substr(first, last - first);
  while (!between.empty()) {
    between.remove_prefix(1);  // the *
    const std::string_view text = between.substr(0, between.find('*'));
    const std::size_t found = rest.find(text);
    if (found == std::string_view::npos) return false;
    rest.remove_prefix(found + text.size());
    between.remove_prefix(text.size());
  }
  return true;
}

std::string aliased_model(std::span<const ModelAlias> aliases, std::string_view name) {
  const auto alias = std::ranges::find_if(
      aliases, [&](const ModelAlias& each) { return matches(each.pattern, name); });
  return alias == aliases.end() ? std::string() : alias->model;
}

}  // namespace lintel
