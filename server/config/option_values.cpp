// SPDX-License-Identifier: Apache-2.0
#include "server/config/option_values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>

#include "model/core/errors.h"
#include "server/chat/template/traits.h"
#include "server/core/random_bytes.h"
#include "server/models/model_repository.h"

namespace lintel {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

constexpr std::uint64_t kKilo = 1000;
constexpr std::uint64_t kKibi = 1024;
constexpr Unit kByteUnits[] = {
    {"", 1},
    {"b", 1},
    {"kb", kKilo},
    {"mb", kKilo* kKilo},
    {"gb", kKilo* kKilo* kKilo},
    {"tb", kKilo* kKilo* kKilo* kKilo},
    {"kib", kKibi},
    {"mib", kKibi* kKibi},
    {"gib", kKibi* kKibi* kKibi},
    {"tib", kKibi* kKibi* kKibi* kKibi},
};
constexpr Unit kTimeUnits[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60'000}, {"min", 60'000}, {"h", 3'600'000}};

// A whole number and a unit of `units`; `what` and `examples` are for the error.
template <std::size_t N>
std::uint64_t parse_with_unit(std::string_view text, const Unit (&units)[N], std::uint64_t limit,
                              const char* what, const char* examples) {
  const auto fail = [&](const std::string& why) -> std::uint64_t {
    throw UsageError("'" + std::string(text) + "' is not " + what + " (" + examples + "): " + why);
  };
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc::result_out_of_range) return fail("the number is too large");
  if (error != std::errc()) return fail("it does not start with a whole number");
  std::string unit(rest, end);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (number == 0 && unit.empty()) return 0;
  for (const Unit& known : units) {
    if (known.name != unit) continue;
    if (number > limit / known.factor) return fail("the number is too large");
    return number * known.factor;
  }
  return fail(unit.empty() ? "the unit is missing" : "unknown unit '" + unit + "'");
}

int parse_port(const std::string& text, const std::string& address) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end || port < 0 || port > 65535) {
    throw UsageError("'" + address + "': the port '" + text + "' is not a number from 0 to 65535");
  }
  return port;
}

}  // namespace

std::uint64_t parse_bytes(std::string_view text) {
  return parse_with_unit(text, kByteUnits, std::numeric_limits<std::int64_t>::max(), "a size",
                         "e.g. 1048576, 512MiB, 2GB");
}

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return std::to_string(bytes) + kUnits[unit];
}

std::chrono::milliseconds parse_duration(std::string_view text) {
  const std::chrono::milliseconds longest = kLongestDuration;
  return std::chrono::milliseconds(parse_with_unit(text, kTimeUnits,
                                                   static_cast<std::uint64_t>(longest.count()),
                                                   "a duration", "e.g. 250ms, 30s, 10m, 2h"));
}

std::string format_duration(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  if (ms == 0) return "0";
  constexpr std::int64_t kHour = 3'600'000, kDay = 24 * kHour;
  if (ms >= kDay && ms % kHour == 0) return std::to_string(ms / kHour) + "h";
  if (ms % 60'000 == 0) return std::to_string(ms / 60'000) + "m";
  if (ms % 1000 == 0) return std::to_string(ms / 1000) + "s";
  return std::to_string(ms) + "ms";
}

std::string parse_replica_id(const std::string& text) {
  if (is_replica_id(text)) return text;
  throw UsageError("'" + text + "' is not 1 to 64 letters, digits, '.', '_' and '-'");
}

ListenAddress parse_listen_address(const std::string& text) {
  ListenAddress address;
  if (text.rfind("unix:", 0) == 0) {
    address.unix_path = text.substr(5);
    address.host.clear();
    address.port = 0;
    if (address.unix_path.empty()) throw UsageError("'" + text + "' has no path after unix:");
    // sockaddr_un holds 108 bytes, the last of them zero.
    if (address.unix_path.size() > 107) {
      throw UsageError("the path of '" + text + "' is longer than the 107 bytes a socket can have");
    }
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    throw UsageError("'" + text + "' is not HOST:PORT, [IPv6]:PORT or unix:PATH");
  }
  address.host = text.substr(0, colon);
  if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    throw UsageError("'" + text + "': an IPv6 address needs brackets, as in [::1]:50051");
  }
  if (address.host.empty()) throw UsageError("'" + text + "' has no host before the port");
  address.port = parse_port(text.substr(colon + 1), text);
  return address;
}

namespace {

bool exists(const std::string& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

}  // namespace

std::optional<std::string> name_of_pulled(const std::string& text) {
  std::string name = text;
  const std::size_t at = text.find('@');
  if (at != std::string::npos) {
    const std::size_t colon = std::min(text.find(':', at), text.size());
    if (colon == at + 1) return std::nullopt;
    name.erase(at, colon - at);
  }
  if (name.find('/') == std::string::npos || !is_repository_name(name)) return std::nullopt;
  return name;
}

std::string hint_to_pull(const std::string& text) {
  if (!name_of_pulled(text)) return "";
  return "; is it of a hub? `lintel pull " + text + "` downloads it and prints its path";
}

ModelDirectory parse_model_directory(const std::string& text) {
  ModelDirectory model;
  // A path may contain '=', too: one that exists is no name and path.
  const std::size_t equals = text.find('=');
  const bool named = equals != std::string::npos && !exists(text) &&
                     (text.find('/') > equals || is_repository_name(text.substr(0, equals)));
  model.path = named ? text.substr(equals + 1) : text;
  if (model.path.empty()) throw UsageError("'" + text + "' names no directory or file");
  if (named) {
    model.name = text.substr(0, equals);
  } else {
    std::filesystem::path directory = std::filesystem::absolute(model.path).lexically_normal();
    if (!directory.has_filename()) directory = directory.parent_path();  // a trailing slash
    model.name = directory.filename().string();
    if (directory.extension() == ".gguf") {
      model.name = directory.stem().string();
      // The first of several parts is named NAME-00001-of-00003.gguf.
      model.name = model.name.substr(0, model.name.find("-00001-of-"));
    }
  }
  if (!is_repository_name(model.name)) {
    throw UsageError("'" + model.name + "' of '" + text +
                     "' cannot name a model: 1 to 128 of letters, digits, '.', '-' and '_', not "
                     "beginning with '.', or ORG/NAME of such; give another with NAME=PATH" +
                     (exists(text) ? "" : hint_to_pull(text)));
  }
  return model;
}

AdapterDirectory parse_adapter_directory(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    throw UsageError("'" + text + "' is not NAME=DIR or MODEL:NAME=DIR");
  }
  AdapterDirectory adapter;
  adapter.name = text.substr(0, equals);
  adapter.path = text.substr(equals + 1);
  if (adapter.path.empty()) throw UsageError("'" + text + "' names no directory");
  const std::size_t colon = adapter.name.rfind(':');  // ORG/NAME:QUANT has one, too
  if (colon != std::string::npos) {
    adapter.model = adapter.name.substr(0, colon);
    adapter.name.erase(0, colon + 1);
    if (!is_repository_name(adapter.model)) {
      throw UsageError("'" + adapter.model + "' of '" + text + "' cannot name a model");
    }
  }
  if (!is_model_name(adapter.name)) {
    throw UsageError("'" + adapter.name + "' of '" + text +
                     "' cannot name an adapter: 1 to 128 of letters, digits, '.', '-' and '_', "
                     "not beginning with '.'");
  }
  return adapter;
}

namespace {

// The model of [MODEL=]VALUE, which is left with the value. Empty: none is named.
std::string take_model(std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || exists(text)) return "";
  std::string model = text.substr(0, equals);
  if (!is_repository_name(model)) {
    throw UsageError("'" + model + "' of '" + text + "' cannot name a model");
  }
  text.erase(0, equals + 1);
  return model;
}

}  // namespace

ChatTemplateFile parse_chat_template_file(const std::string& text) {
  std::string path = text;
  ChatTemplateFile file;
  file.model = take_model(path);
  if (path.empty()) throw UsageError("'" + text + "' names no file");
  file.path = path;
  return file;
}

GivenToolDialect parse_tool_dialect(const std::string& text) {
  std::string name = text;
  GivenToolDialect given;
  given.model = take_model(name);
  for (const ToolDialect dialect :
       {ToolDialect::kNone, ToolDialect::kHermes, ToolDialect::kXml, ToolDialect::kPythonic}) {
    if (name_of(dialect) != name) continue;
    given.dialect = dialect;
    return given;
  }
  throw UsageError("'" + name + "' is not none, hermes, xml or pythonic");
}

ModelAlias parse_model_alias(const std::string& text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string::npos) throw UsageError("'" + text + "' is not PATTERN=NAME");
  ModelAlias alias{text.substr(0, equals), text.substr(equals + 1)};
  const bool is_printable =
      std::ranges::all_of(alias.pattern, [](unsigned char c) { return c > ' ' && c != 0x7f; });
  if (alias.pattern.empty() || alias.pattern.size() > kMostAliasBytes || !is_printable) {
    throw UsageError("'" + text + "': the pattern before '=' is not of 1 to " +
                     std::to_string(kMostAliasBytes) + " characters without blanks");
  }
  if (!is_repository_name(alias.model)) {
    throw UsageError("'" + text + "': '" + alias.model + "' cannot name a model");
  }
  return alias;
}

std::int64_t parse_whole_number(std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw UsageError("'" + std::string(text) + "' is not " + whole_number_text(low, high));
  }
  return value;
}

}  // namespace lintel
