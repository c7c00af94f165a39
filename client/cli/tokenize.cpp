// SPDX-License-Identifier: Apache-2.0
// lintel tokenize and lintel detokenize.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/console.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"
#include "model/core/json_reader.h"

namespace lintel::cli {
namespace {

constexpr const char* kTokenizeFooter = R"(
Standard output has a line {"text": ..., "ids": [...]} for each text, in their order. A line of FILE is
{"text": ...}; one that is no such object ends the command with its number.

Examples:
  lintel tokenize "Once upon a time"
  lintel tokenize --parse-special "<|im_start|>user" | jq -c .ids
  lintel tokenize --input texts.jsonl > ids.jsonl)";

constexpr const char* kDetokenizeFooter = R"(
Standard output has a line {"text": ..., "ids": [...]} for each list of ids, in their order. A line of
FILE is {"ids": [...]}; one that is no such object ends the command with its number. Special tokens add
nothing to a text.

Examples:
  lintel detokenize 785 3840 315
  lintel detokenize --input ids.jsonl | jq -r .text)";

struct TokenizeFlags {
  ConnectionFlags connection;
  std::string input;
  std::optional<std::string> text;
  std::vector<std::int32_t> ids;
  bool add_special = false;
  bool parse_special = false;
};

void print(Console& console, const std::string& text, const std::vector<std::int32_t>& ids) {
  JsonWriter json;
  json.begin_object().field("text", text).key("ids").begin_array();
  for (const std::int32_t id : ids) json.value(id);
  json.end_array().end_object();
  console.out(json.take() + "\n");
  console.flush();  // output from before a bad line is the user's
}

// Calls body(object, name) for each line of the file, "-": of standard input.
void for_each_line(const std::string& file, Console& console,
                   const std::function<void(const nlohmann::json&, const std::string&)>& body) {
  std::ifstream in;
  if (file != "-") {
    in.open(file, std::ios::binary);
    if (!in) throw Failure("--input " + file + ": cannot be opened: " + std::strerror(errno));
  }
  for (std::int64_t number = 1;; ++number) {
    const std::string name = (file == "-" ? "line " : file + ":") + std::to_string(number);
    std::optional<std::string> line;
    if (file == "-") {
      line = console.read_line();
    } else {
      std::string read;
      if (std::getline(in, read)) line = std::move(read);
      if (in.bad()) throw Failure(name + ": cannot be read");
    }
    if (!line) return;
    // A file of the user's own: as large as a line may be.
    JsonFailure failure;
    const auto json = read_json_tree(*line, {.max_bytes = std::int64_t{4} << 30}, failure);
    if (!json) throw Failure(name + ": no JSON");
    if (!json->is_object()) throw Failure(name + ": no object");
    body(*json, name);
  }
}

std::vector<std::int32_t> read_ids(const nlohmann::json& object, const std::string& name) {
  const auto found = object.find("ids");
  if (found == object.end() || !found->is_array()) {
    throw Failure(name + ": no list of token ids under \"ids\"");
  }
  std::vector<std::int32_t> ids;
  for (const nlohmann::json& id : *found) {
    const bool is_id = id.is_number_unsigned() &&
                       id.get<std::uint64_t>() <= std::numeric_limits<std::int32_t>::max();
    if (!is_id) {
      throw Failure(name + ": ids[" + std::to_string(ids.size()) + "] is " +
                    id.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                    ", which is no token id");
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

int run_tokenize(const TokenizeFlags& flags, Console& console) {
  if (flags.text.has_value() != flags.input.empty()) {
    throw UsageError("tokenize: expected TEXT or --input, one of them");
  }
  const Client client = flags.connection.connect();
  v1::TokenizeRequest request;
  request.set_model(flags.connection.model);
  request.set_add_special(flags.add_special);
  request.set_parse_special(flags.parse_special);
  const auto tokenize = [&](const std::string& text) {
    request.set_text(text);
    print(console, text, client.tokenize(request, &console.cancellation()));
  };
  if (flags.text) {
    tokenize(*flags.text);
    return kOk;
  }
  for_each_line(flags.input, console, [&](const nlohmann::json& object, const std::string& name) {
    const auto found = object.find("text");
    if (found == object.end() || !found->is_string()) {
      throw Failure(name + ": no text under \"text\"");
    }
    tokenize(found->get<std::string>());
  });
  return kOk;
}

int run_detokenize(const TokenizeFlags& flags, Console& console) {
  if (flags.ids.empty() == flags.input.empty()) {
    throw UsageError("detokenize: expected IDS or --input, one of them");
  }
  const Client client = flags.connection.connect();
  const auto detokenize = [&](const std::vector<std::int32_t>& ids) {
    v1::DetokenizeRequest request;
    request.set_model(flags.connection.model);
    request.mutable_ids()->Add(ids.begin(), ids.end());
    print(console, client.detokenize(request, &console.cancellation()), ids);
  };
  if (!flags.ids.empty()) {
    detokenize(flags.ids);
    return kOk;
  }
  for_each_line(flags.input, console, [&](const nlohmann::json& object, const std::string& name) {
    detokenize(read_ids(object, name));
  });
  return kOk;
}

}  // namespace

void add_tokenize(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize = app.add_subcommand("tokenize", "Show a text as the token ids of a model");
  tokenize->footer(kTokenizeFooter);
  tokenize->add_option("TEXT", flags->text, "The text");
  tokenize->add_option("--input", flags->input, "Texts, a JSON object a line; -: standard input")
      ->type_name("FILE");
  tokenize->add_flag("--add-special", flags->add_special,
                     "With the tokens that the model wants before and after a text, as <s>");
  tokenize->add_flag("--parse-special", flags->parse_special,
                     "Special tokens that are spelt out in a text become their ids");
  flags->connection.add_to(*tokenize, /*with_model=*/true);
  on_chosen(*tokenize, command_line,
            [flags, &command_line] { return run_tokenize(*flags, command_line.console); });

  CLI::App* detokenize = app.add_subcommand("detokenize", "Show token ids of a model as text");
  detokenize->footer(kDetokenizeFooter);
  detokenize->add_option("IDS", flags->ids, "The ids, with blanks or commas between them")
      ->delimiter(',');
  detokenize
      ->add_option("--input", flags->input, "Lists of ids, a JSON object a line; -: standard input")
      ->type_name("FILE");
  flags->connection.add_to(*detokenize, /*with_model=*/true);
  on_chosen(*detokenize, command_line,
            [flags, &command_line] { return run_detokenize(*flags, command_line.console); });
}

}  // namespace lintel::cli
