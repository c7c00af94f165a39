// SPDX-License-Identifier: Apache-2.0
// The table of the flags of lintel-server: the command line, the configuration file, --help, man
// pages, completions and docs/flags.md are made of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/config/option_values.h"
#include "server/config/server_options.h"

namespace lintel {

// Flag: a row of the table of flags, and the kinds of rows there are.

// How an operator sets one member of ServerOptions.
struct Flag {
  enum class Type { kText, kNumber, kBytes, kDuration, kChoice, kList, kSwitch };

  Type type = Type::kText;
  std::string name;   // "--workers"
  std::string group;  // its heading in --help
  std::string value;  // what stands for the value, e.g. "BYTES"; empty: a switch
  std::string help;
  // Of kNumber, kBytes and kDuration (ms): what is taken, both included.
  std::int64_t low = 0, high = 0;
  std::vector<std::string> words;   // of kChoice: what is taken
  bool default_of_machine = false;  // pages that are read elsewhere leave it out

  // "1 to 64", "1s on", or empty where all that can be written is taken.
  std::string range() const;

  // The member, as text that `set` takes; empty where there is nothing to show.
  std::function<std::string(ServerOptions&)> shown;
  // Reads `text` into the member; of kList, one more element. Throws UsageError, which does not
  // name the flag.
  std::function<void(ServerOptions&, const std::string& text)> set;
  // The member itself: which one a row sets can be asked.
  std::function<void*(ServerOptions&)> member;
};

// Finds one of the structs that ServerOptions is made of, and its member.
template <typename Struct>
using Part = Struct& (*)(ServerOptions&);

// A row without its `set` and `shown`.
template <typename Struct, typename T>
Flag flag_of(Flag::Type type, std::string name, Part<Struct> part, T Struct::*member,
             std::string value, std::string help) {
  Flag flag{
      .type = type, .name = std::move(name), .value = std::move(value), .help = std::move(help)};
  flag.shown = [](ServerOptions&) { return std::string(); };
  flag.member = [=](ServerOptions& options) -> void* { return &(part(options).*member); };
  return flag;
}

// A row whose text is read by `parse` and shown by `show`. The rows below are made of it.
template <typename Struct, typename T, typename Parse, typename Show>
Flag text_flag(std::string name, Part<Struct> part, T Struct::*member, std::string value,
               Parse parse, Show show, std::string help) {
  Flag flag =
      flag_of(Flag::Type::kText, std::move(name), part, member, std::move(value), std::move(help));
  flag.set = [=](ServerOptions& options, const std::string& text) {
    part(options).*member = parse(text);
  };
  flag.shown = [=](ServerOptions& options) { return std::string(show(part(options).*member)); };
  return flag;
}

// A whole number from low to high.
template <typename Struct, typename T>
Flag number_flag(std::string name, Part<Struct> part, T Struct::*member, std::int64_t low,
                 std::int64_t high, std::string help) {
  Flag flag = text_flag(
      std::move(name), part, member, "N",
      [low, high](const std::string& text) {
        return static_cast<T>(parse_whole_number(text, low, high));
      },
      [](T number) { return std::to_string(number); }, std::move(help));
  flag.type = Flag::Type::kNumber;
  flag.low = low;
  flag.high = high;
  return flag;
}

// parse_bytes from low to high, which the error names; `refusal`: what it says instead.
std::int64_t parse_bytes_between(const std::string& text, std::int64_t low, std::int64_t high,
                                 const std::string& refusal);
// The most that parse_bytes takes.
inline constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

template <typename Struct, typename T>
Flag bytes_flag(std::string name, Part<Struct> part, T Struct::*member, std::int64_t low,
                std::int64_t high, std::string help, std::string refusal = "") {
  Flag flag = text_flag(
      std::move(name), part, member, "BYTES",
      [low, high, refusal](const std::string& text) {
        return static_cast<T>(parse_bytes_between(text, low, high, refusal));
      },
      [](T bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); }, std::move(help));
  flag.type = Flag::Type::kBytes;
  flag.low = low;
  flag.high = high;
  return flag;
}

// parse_duration from `low` on, in whole seconds or not.
std::chrono::milliseconds parse_duration_from(const std::string& text,
                                              std::chrono::milliseconds low, bool whole_seconds);

// At least `low`; whole seconds where the member counts these.
template <typename Struct, typename Duration>
Flag duration_flag(std::string name, Part<Struct> part, Duration Struct::*member,
                   std::chrono::milliseconds low, std::string help) {
  Flag flag = text_flag(
      std::move(name), part, member, "DURATION",
      [low](const std::string& text) {
        constexpr bool kSeconds = std::is_same_v<Duration, std::chrono::seconds>;
        return std::chrono::duration_cast<Duration>(parse_duration_from(text, low, kSeconds));
      },
      [](Duration duration) { return format_duration(duration); }, std::move(help));
  flag.type = Flag::Type::kDuration;
  flag.low = low.count();
  flag.high = std::chrono::milliseconds(kLongestDuration).count();
  return flag;
}

// The index of `word`. Throws UsageError, with the word that may have been meant.
std::size_t index_of_word(const std::string& word, const std::vector<std::string>& words);

// One of `values`, by its word.
template <typename Struct, typename T>
Flag choice_flag(std::string name, Part<Struct> part, T Struct::*member, std::string value,
                 const std::vector<std::pair<std::string, T>>& values, std::string help) {
  std::vector<std::string> words;
  for (const auto& choice : values) words.push_back(choice.first);
  Flag flag = text_flag(
      std::move(name), part, member, std::move(value),
      [words, values](const std::string& text) {
        return values[index_of_word(text, words)].second;
      },
      [values](const T& chosen) {
        for (const auto& [word, meant] : values) {
          if (meant == chosen) return word;
        }
        return std::string();
      },
      std::move(help));
  flag.type = Flag::Type::kChoice;
  flag.words = std::move(words);
  return flag;
}

// A path that is not empty. `value`: "FILE" or "DIR".
template <typename Struct>
Flag path_flag(std::string name, Part<Struct> part, std::filesystem::path Struct::*member,
               std::string value, std::string help) {
  const auto parse = [](const std::string& text) {
    if (text.empty()) throw UsageError("is empty");
    return std::filesystem::path(text);
  };
  const auto show = [](const std::filesystem::path& path) { return path.string(); };
  return text_flag(std::move(name), part, member, std::move(value), parse, show, std::move(help));
}

// Given several times, or as a list in a configuration file.
template <typename Struct, typename T, typename Parse>
Flag list_flag(std::string name, Part<Struct> part, std::vector<T> Struct::*member,
               std::string value, Parse parse, std::string help) {
  Flag flag =
      flag_of(Flag::Type::kList, std::move(name), part, member, std::move(value), std::move(help));
  flag.set = [=](ServerOptions& options, const std::string& text) {
    (part(options).*member).push_back(parse(text));
  };
  return flag;
}

// Without a value; `set` is given "true" or "false".
template <typename Struct>
Flag switch_flag(std::string name, Part<Struct> part, bool Struct::*member, std::string help) {
  Flag flag = flag_of(Flag::Type::kSwitch, std::move(name), part, member, "", std::move(help));
  flag.set = [=](ServerOptions& options, const std::string& text) {
    part(options).*member = text == "true";
  };
  return flag;
}

// Flags of session storage and durability.

std::vector<Flag> session_store_flags();
// Of a store that servers share.
std::vector<Flag> shared_store_flags();

// When a drain hands calls over: --drain-handover, or what stands for it.
std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options);

// In the order of --help.
std::vector<Flag> server_flags();

}  // namespace lintel
