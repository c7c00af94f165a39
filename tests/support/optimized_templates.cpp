// SPDX-License-Identifier: Apache-2.0
// Functions of templates that are used everywhere, optimised. A linker keeps one definition of a
// template's function, the first: without this file that of a test's -O0, which would then run in
// the server, too.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// From C++20 on libstdc++ leaves it to each file that uses one.
template class std::basic_string<char>;
template class std::vector<std::string>;
template class std::vector<int>;
template class std::vector<float>;

namespace lintel::testing {

template <typename Json>
std::string use_json(const std::string& text) {
  Json parsed = Json::parse(text);
  Json other = Json::parse(text.data(), text.data() + text.size());
  const Json third = Json::parse(std::string_view(text), nullptr, /*allow_exceptions=*/false);
  other.push_back(parsed);
  other["key"] = std::move(parsed);
  const std::vector<Json> all(3, third);
  const Json list = all;
  return other.dump() + list.dump(2) + (list == other ? list[0].template get<std::string>() : "");
}

template std::string use_json<nlohmann::json>(const std::string& text);
template std::string use_json<nlohmann::ordered_json>(const std::string& text);

}  // namespace lintel::testing
