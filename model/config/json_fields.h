// Fields: the keys of one object of config.json, read and checked by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lintel {

// Refuses text that is not JSON, that nests more than 8 deep, that has a key twice in an object, or
// whose tree takes more than 16 MiB. `file` is only used in errors. Throws ModelError.
nlohmann::json parse_strictly(std::string_view text, const std::string& file);

// Text of a found value for an error.
std::string found_text(const nlohmann::json& value);

// Every get marks its key as known; finish() refuses the others. All throw ModelError naming the
// file, the path of the key, what was found and what was expected.
class Fields {
 public:
  // path: of this object within the file, "" or "head." REQUIRES: object outlives this.
  Fields(const nlohmann::json& object, std::string file, std::string path);

  [[noreturn]] void fail(const std::string& key, const std::string& found,
                         const std::string& expected) const;

  bool has(const std::string& key);
  const nlohmann::json& value(const std::string& key, const std::string& expected);
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       const char* or_else = "");
  // A list with something in it. `expected` empty: the text for numbers of the heads.
  std::vector<std::int64_t> integers(const std::string& key, std::int64_t low, std::int64_t high,
                                     std::string expected = "");
  int small_integer(const std::string& key, int low, int high) {
    return static_cast<int>(integer(key, low, high));
  }
  // A number that is still positive and finite as f32, which is what kernels use.
  double positive(const std::string& key, double high, const char* or_null = "");
  // The same, or 0.
  double not_negative(const std::string& key, double high, const char* or_null = "");
  bool boolean(const std::string& key);
  // The place of the value among `names`.
  std::size_t choice(const std::string& key, std::span<const char* const> names);
  template <typename T>
  T choice(const std::string& key, std::initializer_list<std::pair<const char*, T>> names) {
    std::vector<const char*> known;
    for (const auto& [name, unused] : names) known.push_back(name);
    return (names.begin() + choice(key, known))->second;
  }

  // of: " for head type \"categorical\"", or empty.
  void finish(const std::string& of = "") const;

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string path_;
  std::set<std::string> known_;
};

}  // namespace lintel
