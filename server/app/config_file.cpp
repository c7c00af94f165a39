#include "server/app/config_file.h"

#include <cctype>
#include <regex>
#include <sstream>
#include <utility>

#include "server/config/option_values.h"
#include "tools/describe/suggest.h"

namespace lintel {
namespace {

// One file's text, read from its beginning to its end.
class Reader {
 public:
  Reader(std::string text, std::string file) : text_(std::move(text)), file_(std::move(file)) {}

  std::string place(int line) const { return file_ + ", line " + std::to_string(line); }
  [[noreturn]] void fail(int line, const std::string& why) const {
    throw UsageError(place(line) + ": " + why);
  }
  int line() const { return line_; }
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return at_end() ? '\n' : text_[at_]; }
  char take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    return c;
  }
  bool takes(char c) {
    if (at_end() || text_[at_] != c) return false;
    take();
    return true;
  }
  void skip_spaces() {
    while (!at_end() && (peek() == ' ' || peek() == '\t' || peek() == '\r')) take();
  }
  void skip_line() {
    while (!at_end() && take() != '\n') {
    }
  }
  // Spaces, line ends and comments, as between the elements of a list.
  void skip_blank() {
    while (!at_end()) {
      skip_spaces();
      if (peek() == '#') {
        skip_line();
      } else if (!takes('\n')) {
        return;
      }
    }
  }
  // Until one of these or the end of the line, without the spaces at its end.
  std::string take_until(std::string_view stops) {
    std::string text;
    while (!at_end() && peek() != '\n' && stops.find(peek()) == std::string_view::npos) {
      text.push_back(take());
    }
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) {
      text.pop_back();
    }
    return text;
  }

 private:
  const std::string text_, file_;
  std::size_t at_ = 0;
  int line_ = 1;
};

// "..." with TOML's escapes, or '...' as it is. REQUIRES: at a quote.
std::string read_quoted(Reader& in, const std::string& key) {
  const int line = in.line();
  const char quote = in.take();
  std::string value;
  while (!in.at_end() && in.peek() != '\n') {
    const char c = in.take();
    if (c == quote) return value;
    if (c != '\\' || quote == '\'') {
      value.push_back(c);
      continue;
    }
    const char escaped = in.peek();
    static constexpr std::string_view kNames = "\"\\nt", kMeant = "\"\\\n\t";
    const std::size_t at = kNames.find(escaped);
    if (at == std::string_view::npos) {
      in.fail(line,
              key + ": '\\" + std::string(1, escaped) +
                  "' is not \\\\, \\\", \\n or \\t; a text in single quotes is taken as it is");
    }
    in.take();
    value.push_back(kMeant[at]);
  }
  in.fail(line, key + ": the " + std::string(1, quote) + " at the end is missing");
}

// A value without quotes: one word.
std::string read_word(Reader& in, const std::string& key, std::string_view stops) {
  const int line = in.line();
  const std::string word = in.take_until(stops);
  if (word.find_first_of(" \t,") != std::string::npos) {
    in.fail(line, key + ": '" + word + "' needs quotes, or as a list brackets: [\"a\", \"b\"]");
  }
  if (word.find_first_of("\"'[]{}=") != std::string::npos) {
    in.fail(line, key + ": '" + word + "' is not a number, a word or a text in quotes");
  }
  return word;
}

std::string read_scalar(Reader& in, const std::string& key, std::string_view stops) {
  const bool quoted = in.peek() == '"' || in.peek() == '\'';
  return quoted ? read_quoted(in, key) : read_word(in, key, stops);
}

// REQUIRES: after its "[".
std::vector<std::string> read_list(Reader& in, const std::string& key) {
  const int line = in.line();
  std::vector<std::string> values;
  while (true) {
    in.skip_blank();
    if (in.takes(']')) return values;
    if (in.at_end()) in.fail(line, key + ": the ] of its list is missing");
    values.push_back(read_scalar(in, key, ",]#="));
    in.skip_blank();
    if (in.takes(',') || in.peek() == ']') continue;
    // At the end, or at what can only be the next key.
    in.fail(line, key + ": the ] of its list is missing, or a comma before '" +
                      in.take_until(" #,]") + "' in line " + std::to_string(in.line()));
  }
}

// What stands between "=" and the end of the line. A comment may follow.
std::vector<std::string> read_value(Reader& in, const std::string& key) {
  const int line = in.line();
  in.skip_spaces();
  std::vector<std::string> values;
  if (in.takes('[')) {
    values = read_list(in, key);
  } else {
    const bool quoted = in.peek() == '"' || in.peek() == '\'';
    values.push_back(read_scalar(in, key, "#"));
    if (!quoted && values.front().empty()) in.fail(line, key + ": a value is missing after =");
  }
  in.skip_spaces();
  if (in.peek() != '\n' && in.peek() != '#') {
    in.fail(in.line(), key + ": '" + in.take_until("#") + "' stands after the value");
  }
  in.skip_line();
  return values;
}

std::vector<std::string> keys_of(const CLI::App& app) {
  std::vector<std::string> keys;
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_configurable()) keys.push_back(option->get_single_name());
  }
  return keys;
}

}  // namespace

std::vector<CLI::ConfigItem> ConfigFile::from_config(std::istream& input) const {
  std::ostringstream all;
  all << input.rdbuf();
  static const std::regex kLogFormat("(?:^|\n)[ \t]*log-format[ \t]*=[ \t]*[\"']?([a-z]+)");
  const std::string text = all.str();
  if (std::smatch match; std::regex_search(text, match, kLogFormat)) log_format_ = match[1];

  Reader in(text, app_["--config"]->as<std::string>());
  std::vector<CLI::ConfigItem> found;
  while (!in.at_end()) {
    in.skip_blank();
    if (in.at_end()) break;
    const int line = in.line();
    if (in.peek() == ';') {
      in.skip_line();
      continue;
    }
    if (in.peek() == '[') {
      in.skip_line();
      in.fail(line, "there are no sections, only keys");
    }
    const std::string key = in.take_until("=#");
    const CLI::Option* const option = app_.get_option_no_throw("--" + key);
    if (option == nullptr || !option->get_configurable()) {
      in.fail(line, "there is no key " + key + describe::did_you_mean(key, keys_of(app_)) +
                        (option != nullptr ? ": it is for the command line"
                                           : " Keys are the flags without the dashes in front"));
    }
    CLI::ConfigItem item;
    item.name = key;
    const bool is_switch = option->get_expected_max() == 0;
    if (in.takes('=')) {
      item.inputs = read_value(in, key);
    } else {
      if (!is_switch) in.fail(line, key + ": a value is missing: " + key + " = ...");
      in.skip_line();
      item.inputs = {"true"};
    }
    if (is_switch && item.inputs != std::vector<std::string>{"true"} &&
        item.inputs != std::vector<std::string>{"false"}) {
      in.fail(line, key + ": is true or false");
    }
    if (!is_switch && option->get_expected_max() == 1 && item.inputs.size() != 1) {
      in.fail(line, key + ": takes one value, not a list of " + std::to_string(item.inputs.size()));
    }
    const auto [first, is_new] = places_.emplace(key, in.place(line));
    if (!is_new) in.fail(line, key + ": is given twice, first in " + first->second);
    if (!item.inputs.empty()) found.push_back(std::move(item));
  }
  return found;
}

std::string ConfigFile::place_of(const std::string& flag) const {
  const auto found = places_.find(flag.substr(std::min<std::size_t>(2, flag.size())));
  return found == places_.end() ? "" : found->second;
}

}  // namespace lintel
