// The file of --config: flags as keys.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace lintel {

// What TOML and INI files have in common, and of TOML what flags need:
//
//   # a comment, or one that begins with ;
//   model = ["weights/a", 'other=weights/b']   # a list, also over several lines
//   session-memory = "512MiB"                  # or without quotes, where it is one word
//   workers = 4
//   insecure-public = true
//
// No sections. CLI11's own reader takes nearly anything for a value, up to the end of the file
// where a bracket is missing; this one says what is wrong, and in which line.
class ConfigFile final : public CLI::ConfigTOML {
 public:
  // `app` declares the flags and --config; it is asked while a file is read.
  explicit ConfigFile(const CLI::App& app) : app_(app) {}

  // Throws UsageError: "FILE, line N: ...".
  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override;

  // "FILE, line N" where a flag ("--workers") was set, else empty.
  std::string place_of(const std::string& flag) const;
  // As the file has it, "" when it has none; also when the file is refused for something else.
  const std::string& log_format() const { return log_format_; }

 private:
  const CLI::App& app_;
  // Of the last file; from_config is const in CLI11, and called once.
  mutable std::map<std::string, std::string> places_;  // by key
  mutable std::string log_format_;
};

}  // namespace lintel
