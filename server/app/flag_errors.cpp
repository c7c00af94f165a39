#include "server/app/flag_errors.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <vector>

#include "tools/describe/suggest.h"

namespace lintel {
namespace {

// The value of --NAME VALUE or --NAME=VALUE; the last one counts.
std::optional<std::string> given(const std::string& flag, int argc, const char* const* argv) {
  std::optional<std::string> value;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == flag) value = i + 1 < argc ? argv[i + 1] : "";
    if (word.starts_with(flag + "=")) value = word.substr(flag.size() + 1);
  }
  return value;
}

std::string unknown_words(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : app.get_options()) {
    flags.push_back(option->get_single_name());
  }
  const std::vector<std::string> words = app.remaining();
  for (const std::string& word : words) {
    if (!word.starts_with("-") || word.size() < 2) continue;
    const std::string flag = word.substr(0, word.find('='));
    const std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
    return "there is no flag " + flag + describe::did_you_mean(name, flags, "--");
  }
  const std::string word = words.empty() ? "" : words.front();
  return "'" + word + "' belongs to no flag" +
         (std::filesystem::is_directory(word) ? ": a model's directory is given by --model" : "");
}

// Why a configuration file cannot be opened.
std::string unreadable(const std::string& file) {
  if (std::filesystem::is_directory(file)) return std::strerror(EISDIR);
  errno = 0;
  const std::ifstream in(file);
  return std::strerror(errno == 0 ? ENOENT : errno);
}

}  // namespace

std::string in_words(const CLI::ParseError& error, const CLI::App& app, const ConfigFile& config,
                     int argc, const char* const* argv) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unknown_words(app);
  if (dynamic_cast<const CLI::FileError*>(&error) != nullptr) {
    const std::string file = app["--config"]->as<std::string>();
    return "--config: " + file + ": " + unreadable(file);
  }
  const std::string flag = text.substr(0, text.find(':'));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const CLI::Option* const option = app.get_option_no_throw(flag);
    if (option == nullptr || option->get_expected_max() == 0) return text;
    const std::string wanted = flag + " " + option->get_type_name();
    return option->count() > 1 ? flag + ": is given more than once"
                               : flag + ": a value is missing: " + wanted;
  }
  const std::string place = config.place_of(flag);
  return place.empty() || given(flag, argc, argv) ? text : place + ": " + text;
}

bool asks_for_json(int argc, const char* const* argv, const ConfigFile& config) {
  return given("--log-format", argc, argv).value_or(config.log_format()) == "json";
}

}  // namespace lintel
