// SPDX-License-Identifier: Apache-2.0
// The table of the flags of lintel-server: the command line, the configuration file, --help, man
// pages, completions and docs/flags.md are made of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "server/config/option_values.h"
#include "server/config/server_options.h"

namespace lintel {

// A row of the table: how an operator sets one member of the options that the table is of.
struct Flag {
  enum class Type { kText, kNumber, kBytes, kDuration, kChoice, kList, kSwitch };
  using Set = void (*)(const Flag& flag, const std::string& text);
  using Show = std::string (*)(const Flag& flag);

  Type type = Type::kText;
  std::string name;   // "--workers"
  std::string group;  // its heading in --help
  std::string value;  // what stands for the value, e.g. "BYTES"; empty: a switch
  std::string help;
  // Bounds of kNumber, kBytes and kDuration (ms), both included.
  std::int64_t low = 0, high = 0;
  std::string refusal;              // of kBytes: what an error says in place of the bounds
  std::vector<std::string> words;   // of kChoice: what is taken
  bool default_of_machine = false;  // pages that are read elsewhere leave it out

  void* member = nullptr;
  Set set_member = nullptr;    // for the member's type
  Show show_member = nullptr;  // likewise

  // "1 to 64", "1s on", or empty where all that can be written is taken.
  std::string range() const;
  // The member, as text that `set` takes; empty where there is nothing to show.
  std::string shown() const { return show_member(*this); }
  // Reads `text` into the member; of kList, one more element. Throws UsageError, which does not
  // name the flag.
  void set(const std::string& text) const { set_member(*this, text); }
};

// The most that parse_bytes takes.
inline constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

// The time after which a drain hands calls over: --drain-handover, or its default for the store.
std::chrono::milliseconds handover_after(const ServerOptions::DurableOptions& options);

// The flags that set members of `options`, in the order of --help. REQUIRES: `options` outlives
// them.
std::vector<Flag> server_flags(ServerOptions& options);

}  // namespace lintel
