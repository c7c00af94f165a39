// SPDX-License-Identifier: Apache-2.0
// Common members of the requests of OpenAI's API, for trees in either order.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "proto/fields/request_fields.h"
#include "proto/fields/unserved_members.h"
#include "server/api/params/generate_params.h"
#include "server/rpc/ignored_members.h"

namespace lintel {

// True for a whole number from 0 to the largest Number.
template <typename Number, typename Json>
bool is_whole(const Json& value) {
  if (!value.is_number_integer()) return false;
  const bool is_negative = !value.is_number_unsigned() && value.template get<std::int64_t>() < 0;
  return !is_negative && value.template get<std::uint64_t>() <=
                             static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
}

// The beginning of a text of the request, as an error quotes it.
inline std::string printable(const std::string& text) {
  std::string quoted = text.substr(0, 64);
  std::ranges::replace_if(
      quoted, [](char c) { return c < ' ' || c > '~'; }, '?');
  return quoted;
}

// Reads a list of ids; false: it is not a list, or has other items.
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

// Reads a member of JSON into a field of the table. Each function returns the error; empty: it was
// read.
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
  // Read by read_logit_bias().
  std::string read(std::map<std::int32_t, float>&) const { return "is not served"; }
  // Without a form in JSON: no column of these APIs names such a field.
  std::string read(api::Values&) const { return "is not served"; }
  std::string read(api::TimeLimit&) const { return "is not served"; }

  template <typename T>
  std::string read(std::optional<T>& to) const {
    return read(to.emplace());
  }
};

// True for a value with which another server's clients leave a field out.
template <typename Json>
bool stands_for_none(std::size_t field, const Json& value) {
  const std::string_view name = kRequestFields[field].name;
  return (name == "max_new_tokens" || name == "sampling.top_k") && value == -1;
}

// Reads `value` into the field that the API calls `name`; `known`: true if there is such a field.
template <typename Json>
std::string read_field(FieldName RequestField::*column, const std::string& name, const Json& value,
                       api::GenerateParams& params, bool& known) {
  const std::optional<std::size_t> field = find_field(column, name);
  known = field.has_value();
  if (!known || stands_for_none(*field, value)) return "";
  const MemberReader<Json> reader{value};
  std::string wrong =
      std::visit([&](auto* member) { return reader.read(*member); }, api::param_of(params, *field));
  if (kRequestFields[*field].name == "stop.strings") {
    std::erase(params.stop.strings, "");  // `stop: ""` is none
  }
  return wrong;
}

// Biases of the tokens of texts, as logit_bias has those of ids.
using TextBiases = std::vector<std::pair<std::string, float>>;
inline constexpr std::size_t kMostTextBiases = 64;
inline constexpr std::size_t kMostBiasTextBytes = 256;

// Reads logit_bias: an object of OpenAI's, whose names may also be texts, or a list of llama.cpp's
// pairs of an id or a text and a bias. A bias of false means never. Returns the error.
template <typename Json>
std::string read_logit_bias(const Json& value, std::map<std::int32_t, float>& ids,
                            TextBiases& texts) {
  constexpr float kNever = -10000;  // the lowest that is accepted
  const auto read = [&](const Json& key, const Json& bias) -> std::string {
    const std::string shown =
        key.is_string() ? printable(key.template get<std::string>()) : printable(key.dump());
    const bool is_never = bias.is_boolean() && !bias.template get<bool>();
    if (!bias.is_number() && !is_never) return "has a bias of " + shown + " that is not a number";
    const float to = is_never ? kNever : bias.template get<float>();
    if (!key.is_string()) {
      if (!is_whole<std::int32_t>(key)) return "has " + shown + ", which is no token id or text";
      ids[key.template get<std::int32_t>()] = to;
      return "";
    }
    const std::string text = key.template get<std::string>();
    std::int32_t id = 0;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (value.is_object() && error == std::errc() && rest == text.data() + text.size()) {
      ids[id] = to;
      return "";
    }
    if (text.empty() || text.size() > kMostBiasTextBytes) {
      return "has a text of " + std::to_string(text.size()) + " bytes, 1 to " +
             std::to_string(kMostBiasTextBytes) + " are taken";
    }
    if (texts.size() == kMostTextBiases) {
      return "has more than " + std::to_string(kMostTextBiases) + " texts";
    }
    texts.emplace_back(text, to);
    return "";
  };
  if (value.is_object()) {
    for (const auto& [name, bias] : value.items()) {
      std::string wrong = read(Json(name), bias);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }
  if (!value.is_array()) return "is not an object or a list of tokens and biases";
  for (const Json& pair : value) {
    if (!pair.is_array() || pair.size() != 2) return "is not a list of pairs of token and bias";
    std::string wrong = read(pair[0], pair[1]);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// The error of a member that is not served; empty: it is ignored, and added to `ignored`. served:
// the names that it may misspell. object: the one that has it, "stream_options."; empty: it is at
// the top. api: of kUnservedMembers.
template <typename Json>
std::string pass_unknown(const std::string& object, const std::string& name, const Json& value,
                         unsigned api, std::span<const std::string_view> served,
                         IgnoredMembers& ignored) {
  if (value.is_null()) return "";  // as if it were not there
  for (const UnservedMember& row : kUnservedMembers) {
    if (!object.empty() || row.name != name || (row.apis & api) == 0) continue;
    const Json neutral = Json::parse(row.neutral);
    if (std::ranges::find(neutral, value) != neutral.end()) break;
    // A path of another route, or a member of this one.
    const std::string_view member = row.instead.substr(0, row.instead.find_first_of(" ."));
    const bool is_served =
        member.starts_with('/') || std::ranges::find(served, member) != served.end();
    const std::string instead = is_served ? ": " + std::string(row.instead) + " is" : "";
    return "changes the answer and is not served" + instead;
  }
  const std::string_view near = find_near_name(name, served);
  if (!near.empty()) {
    return "is not a parameter of this server: did you mean " + std::string(near) + "?";
  }
  ignored.add(object + name);
  return "";
}

// The names of an API in the table of fields, and `others`.
inline std::vector<std::string_view> served_names(FieldName RequestField::*column,
                                                  std::vector<std::string_view> others) {
  for (const RequestField& row : kRequestFields) {
    if ((row.*column).is_read_by_table()) others.push_back((row.*column).text);
  }
  return others;
}

// Options of a stream.
struct StreamOptions {
  bool include_usage = false;     // at its end
  bool continuous_usage = false;  // and in each event
};

template <typename Json>
std::string read_stream_options(const Json& value, StreamOptions& options,
                                IgnoredMembers& ignored) {
  constexpr std::string_view kServed[] = {"include_usage", "continuous_usage_stats",
                                          "include_obfuscation"};
  if (!value.is_object()) return "is not an object";
  for (const auto& [name, option] : value.items()) {
    if (option.is_null() || name == "include_obfuscation") continue;  // nothing is obscured
    const bool is_usage = name == "include_usage";
    if (!is_usage && name != "continuous_usage_stats") {
      const std::string wrong = pass_unknown("stream_options.", name, option, 0, kServed, ignored);
      if (!wrong.empty()) return "has '" + printable(name) + "', which " + wrong;
      continue;
    }
    if (!option.is_boolean()) return "has a " + name + " that is not true or false";
    (is_usage ? options.include_usage : options.continuous_usage) = option.template get<bool>();
  }
  options.continuous_usage = options.continuous_usage && options.include_usage;
  return "";
}

}  // namespace lintel
