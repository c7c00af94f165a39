// `lintel session history`.
#include <memory>
#include <optional>

#include "client/cli/session_commands.h"

namespace lintel::cli {
namespace {

struct HistoryFlags {
  std::optional<std::int64_t> from, to;
  std::string format;
};

const char* source_name(v1::ValueSource source) {
  switch (source) {
    case v1::VALUE_SOURCE_SAMPLED:
      return "sampled";
    case v1::VALUE_SOURCE_GIVEN:
      return "given";
    case v1::VALUE_SOURCE_PROMPT:
      return "prompt";
    default:
      return "";
  }
}

std::string chunk_json(const v1::Chunk& chunk) {
  JsonWriter json;
  json.begin_object().field("first_position", chunk.first_position());
  json.field("source", source_name(chunk.source())).key("tokens").begin_array();
  for (const std::int32_t token : chunk.tokens()) json.value(token);
  return json.end_array().end_object().take() + "\n";
}

// Bytes as they are, or ids with commas between them.
std::string chunk_text(const v1::Chunk& chunk, bool as_bytes, bool is_first) {
  std::string text;
  for (const std::int32_t token : chunk.tokens()) {
    if (as_bytes) {
      text.push_back(static_cast<char>(token));
    } else {
      text += (is_first ? "" : ",") + std::to_string(token);
    }
    is_first = false;
  }
  return text;
}

int run_history(const SessionFlags& flags, const HistoryFlags& history, Console& console) {
  const Client client = flags.connection.connect();
  std::string format = history.format;
  if (format.empty() || format == "text") {
    const v1::Session session = client.get_session(flags.id, &console.cancellation());
    const bool is_bytes =
        client.get_model(session.model(), &console.cancellation()).modality() == "bytes";
    if (format == "text" && !is_bytes) {
      throw UsageError("--format text: this model's tokens are no bytes; use ids or jsonl");
    }
    format = is_bytes ? "text" : "ids";
  }
  v1::ReadHistoryRequest request;
  request.set_id(flags.id);
  request.set_from_position(history.from.value_or(0));
  if (history.to) request.set_to_position(*history.to);
  // Without --from what is left of a history that was cut off at its beginning.
  if (!history.from) {
    const v1::Session session = client.get_session(flags.id, &console.cancellation());
    request.set_from_position(session.oldest_position());
  }
  bool is_first = true;
  client.read_history(
      request,
      [&](const v1::Chunk& chunk) {
        console.out(format == "jsonl" ? chunk_json(chunk)
                                      : chunk_text(chunk, format == "text", is_first));
        is_first = false;
      },
      &console.cancellation());
  if (format == "ids" || (format == "text" && console.out_is_terminal())) console.out("\n");
  return kOk;
}

}  // namespace

void add_session_history(CLI::App& command, CommandLine& command_line) {
  auto history = std::make_shared<HistoryFlags>();
  CLI::App& sub = add_session_command(command, command_line,
                                      {.name = "history",
                                       .help = "Print the values of a session",
                                       .with_id = true,
                                       .with_json = false},
                                      [history](const SessionFlags& flags, Console& console) {
                                        return run_history(flags, *history, console);
                                      });
  add_parsed(sub, "--from", history->from, parse_int64, "P",
             "First position [the oldest there is]");
  add_parsed(sub, "--to", history->to, parse_int64, "P", "Position behind the last [all]");
  sub.add_option("--format", history->format,
                 "text: bytes as they are; ids: token ids; jsonl: an object for each run of values "
                 "with their source [text for byte models, else ids]")
      ->check(CLI::IsMember({"text", "ids", "jsonl"}))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace lintel::cli
