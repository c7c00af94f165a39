// SPDX-License-Identifier: Apache-2.0
// Members that the requests of OpenAI's API have in common, of trees in either order.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "proto/fields/request_fields.h"
#include "server/api/params/generate_params.h"

namespace lintel {

// A whole number from 0 to the largest that Number has.
template <typename Number, typename Json>
bool is_whole(const Json& value) {
  if (value.is_number_unsigned()) {
    return value.template get<std::uint64_t>() <=
           static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
  }
  return value.is_number_integer() && value.template get<std::int64_t>() >= 0;
}

// The beginning of a text of the request, as an error quotes it.
inline std::string printable(const std::string& text) {
  std::string quoted = text.substr(0, 64);
  std::ranges::replace_if(
      quoted, [](char c) { return c < ' ' || c > '~'; }, '?');
  return quoted;
}

// The ids of a list; false: it is none, or has an item that is no id.
template <typename Json>
bool read_ids(const Json& value, std::vector<std::int32_t>& ids) {
  if (!value.is_array()) return false;
  ids.reserve(value.size());
  for (const Json& id : value) {
    if (!is_whole<std::int32_t>(id)) return false;
    ids.push_back(id.template get<std::int32_t>());
  }
  return true;
}

// A member of JSON, read into a field of the table. Each function returns what is wrong with it;
// empty: nothing, and it is read.
template <typename Json>
struct MemberReader {
  const Json& value;

  std::string read(bool& to) const {
    if (!value.is_boolean()) return "is not true or false";
    to = value.template get<bool>();
    return "";
  }
  std::string read(std::uint32_t& to) const {
    if (!is_whole<std::uint32_t>(value)) return "is not a whole number from 0 to 4294967295";
    to = value.template get<std::uint32_t>();
    return "";
  }
  std::string read(std::int64_t& to) const {
    if (!is_whole<std::int64_t>(value)) return "is not a whole number from 0 on";
    to = value.template get<std::int64_t>();
    return "";
  }
  std::string read(std::uint64_t& to) const {  // of seeds, which may be written as negative
    if (!value.is_number_integer()) return "is not a whole number of 64 bits";
    to = value.is_number_unsigned()
             ? value.template get<std::uint64_t>()
             : static_cast<std::uint64_t>(value.template get<std::int64_t>());
    return "";
  }
  std::string read(float& to) const {
    if (!value.is_number()) return "is not a number";
    to = value.template get<float>();
    return "";
  }
  std::string read(std::string& to) const {
    if (!value.is_string()) return "is not a text";
    to = value.template get<std::string>();
    return "";
  }
  // A text, or a list of them.
  std::string read(std::vector<std::string>& to) const {
    const auto take = [&to](const Json& text) {
      if (text.is_string()) to.push_back(text.template get<std::string>());
      return text.is_string();
    };
    const bool is_read =
        value.is_string() ? take(value) : value.is_array() && std::ranges::all_of(value, take);
    return is_read ? "" : "is not a text or a list of texts";
  }
  std::string read(std::vector<std::int32_t>& to) const {
    return read_ids(value, to) ? "" : "is not a list of token ids";
  }
  std::string read(std::map<std::int32_t, float>& to) const {
    if (!value.is_object()) return "is not an object of token ids and biases";
    for (const auto& [name, bias] : value.items()) {
      std::int32_t token = 0;
      const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), token);
      if (error != std::errc() || rest != name.data() + name.size()) {
        return "has '" + printable(name) + "', which is not a token id";
      }
      if (!bias.is_number()) return "has a bias of " + name + " that is not a number";
      to[token] = bias.template get<float>();
    }
    return "";
  }
  // Known tokens: [{"position": P, "text" or "tokens": ...}].
  std::string read(std::vector<api::GivenValues>& to) const {
    if (!value.is_array()) return "is not a list of spans";
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Json& span = value[i];
      const std::string path = "[" + std::to_string(i) + "]";
      const bool is_span = span.is_object() && span.size() == 2 && span.contains("position") &&
                           (span.contains("text") || span.contains("tokens"));
      if (!is_span) return path + " is not {\"position\": P, \"text\" or \"tokens\": values}";
      if (!is_whole<std::int64_t>(span["position"])) return path + ".position is not a position";
      api::GivenValues& given = to.emplace_back();
      given.position = span["position"].template get<std::int64_t>();
      if (span.contains("text")) {
        if (!span["text"].is_string()) return path + ".text is not a text";
        given.values = api::text_values(span["text"].template get<std::string>());
        continue;
      }
      std::vector<std::int32_t> ids;
      if (!read_ids(span["tokens"], ids) || ids.empty()) {
        return path + ".tokens is not a list of token ids";
      }
      given.values = api::token_values(std::move(ids));
    }
    return "";
  }
  // Without a form in JSON: no column of these APIs names such a field.
  std::string read(api::Values&) const { return "is not served"; }
  std::string read(api::TimeLimit&) const { return "is not served"; }

  template <typename T>
  std::string read(std::optional<T>& to) const {
    return read(to.emplace());
  }
};

// Reads `value` into the field that the API calls `name`; `known`: whether there is such a field.
template <typename Json>
std::string read_field(FieldName RequestField::*column, const std::string& name, const Json& value,
                       api::GenerateParams& params, bool& known) {
  const std::optional<std::size_t> field = find_field(column, name);
  known = field.has_value();
  if (!known) return "";
  const MemberReader<Json> reader{value};
  return std::visit([&](auto* member) { return reader.read(*member); },
                    api::param_of(params, *field));
}

template <typename Json>
std::string read_stream_options(const Json& value, bool& include_usage) {
  if (!value.is_object()) return "is not an object";
  for (const auto& [name, option] : value.items()) {
    if (name == "include_obfuscation") continue;  // nothing is obscured in any case
    if (name != "include_usage") return "has '" + name.substr(0, 64) + "', which is not served";
    if (!option.is_boolean()) return "has an include_usage that is not true or false";
    include_usage = option.template get<bool>();
  }
  return "";
}

}  // namespace lintel
