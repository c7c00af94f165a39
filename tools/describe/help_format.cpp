#include "tools/describe/help_format.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <vector>

namespace lintel::describe {

std::string HelpFormat::make_option_opts(const CLI::Option* option) const {
  std::istringstream in(CLI::Formatter::make_option_opts(option));
  std::vector<std::string> words{std::istream_iterator<std::string>(in), {}};
  for (const char* const label : {"Needs", "Excludes"}) {
    const auto is_label = [](const std::string& word) { return word.back() == ':'; };
    auto names = std::ranges::find(words, get_label(label) + ":");
    if (names == words.end()) continue;
    ++names;
    std::sort(names, std::find_if(names, words.end(), is_label));
  }
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return text;
}

}  // namespace lintel::describe
