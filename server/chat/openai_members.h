// SPDX-License-Identifier: Apache-2.0
// Members that completions and chats of OpenAI's API have in common, of trees in either order.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "lintel/v1/generation.pb.h"

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

// These return what is wrong with the member; empty: nothing, and it is read.

template <typename Json>
std::string read_seed(const Json& value, v1::Sampling& sampling) {
  if (!value.is_number_integer()) return "is not a whole number of 64 bits";
  sampling.set_seed(value.is_number_unsigned()
                        ? value.template get<std::uint64_t>()
                        : static_cast<std::uint64_t>(value.template get<std::int64_t>()));
  return "";
}

template <typename Json>
std::string read_logit_bias(const Json& value, v1::Sampling& sampling) {
  if (!value.is_object()) return "is not an object of token ids and biases";
  for (const auto& [name, bias] : value.items()) {
    std::int32_t token = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    if (error != std::errc() || rest != name.data() + name.size()) {
      return "has '" + printable(name) + "', which is not a token id";
    }
    if (!bias.is_number()) return "has a bias of " + name + " that is not a number";
    (*sampling.mutable_logit_bias())[token] = bias.template get<float>();
  }
  return "";
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

// A text, or a list of them: take(text) is called with each. False: it is another value, or `take`
// returned false.
template <typename Json, typename Take>
bool read_texts(const Json& value, Take take) {
  const auto read = [&take](const Json& text) {
    return text.is_string() && take(text.template get_ref<const std::string&>());
  };
  return value.is_string() ? read(value) : value.is_array() && std::ranges::all_of(value, read);
}

}  // namespace lintel
