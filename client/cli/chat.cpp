// SPDX-License-Identifier: Apache-2.0
// lintel chat.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/cli/chat_turns.h"
#include "client/cli/commands.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

constexpr const char* kChatFooter = R"(
On a terminal lines are turns of a conversation. Each answer continues the turn
before it; the server keeps the state of the conversation, so that only the last
turn is read. A paste is one question, with its lines. A line that ends with \
continues on the next one; """ begins a text of several lines and ends it. Lines
that begin with a slash are commands:

  /help           all commands
  /undo           back to the turn before; the next question begins a branch
  /tree           all turns, with numbers
  /branch N       continue after turn N
  /system TEXT    another system message
  /think WORD     on, off or an effort: minimal, low, medium, high, xhigh, max
  /set NAME VALUE sampling from now on: /set temperature 0.7
  /stats          of the last answer: tokens cached, read, written, a second
  /save NAME      keep the conversation as the messages of a request, in
                  XDG_DATA_HOME/lintel/chats; a NAME with / is a path
  /load NAME      continue a conversation that was kept
  /bye            end, as Ctrl-D does

With --store each turn is a response that the server keeps. The conversation can
be continued later, also after the server was restarted: --resume with the id of
any of its responses. /undo then goes back beyond the turns of this run.
Ctrl-C stops an answer, and what came of it is kept; while you type it clears
the line. Without a terminal standard input is one question, and standard output
the answer.

--render prints the prompt that a request of /v1/chat/completions becomes, byte
for byte, and --render-ids its token ids as a JSON list. Nothing is generated.

Examples:
  lintel chat --model qwen --system "You are brief."
  echo "What is 17 * 3?" | lintel chat --think off
  lintel chat --store --temperature 0.7
  lintel chat --resume resp_0123456789abcdef0123456789abcdef
  lintel chat --render request.json)";

int render(const Client& client, const ChatFlags& flags, Console& console) {
  const std::string what = "--render " + flags.render;
  std::string body = console.read_file("--render", flags.render);
  if (!flags.connection.model.empty()) {
    const nlohmann::ordered_json request = parse_json(body, what);
    if (request.is_object() && !request.contains("model")) {
      // The body stays a text: its members keep their form.
      const std::string model = nlohmann::ordered_json(flags.connection.model).dump();
      body.insert(body.find('{') + 1, "\"model\":" + model + (request.empty() ? "" : ","));
    }
  }
  const v1::RenderChatResponse rendered = with_load_hint(client, console.cancellation(), [&] {
    return client.render_chat(body, &console.cancellation());
  });
  if (flags.render_ids) {
    JsonWriter ids;
    ids.begin_array();
    for (const std::int32_t id : rendered.ids()) ids.value(id);
    ids.end_array();
    console.out(ids.take());
  } else {
    console.out(rendered.text());
  }
  console.flush();
  return kOk;
}

void ask_once(Chat& chat, const std::string& question, Console& console) {
  chat.ask(question, console.cancellation());
  const std::string cut = chat.cut_text();
  if (!cut.empty()) console.err("lintel: " + cut + "; --max-tokens N asks for another number\n");
  if (chat.system().empty()) return;
  try {
    if (!chat.shows_system()) {
      console.err("lintel: the model's chat template leaves system messages out\n");
    }
  } catch (const CallError&) {  // the answer came all the same
  }
}

int run_chat(ChatFlags& flags, const ChatInput& input, const ServerEnd& server_end,
             Console& console) {
  const Client client = flags.connection.connect();
  Chat chat(client, flags, input, console);
  int status = kOk;
  if (input.question) {
    ask_once(chat, *input.question, console);
  } else {
    status = talk(chat, flags, server_end, console);
  }
  const std::string id = chat.response();
  if (flags.store && !id.empty()) console.err("continue with: lintel chat --resume " + id + "\n");
  return status;
}

// The flags of a conversation, but those of stored responses and of --render.
void add_conversation_flags(CLI::App& command, ChatFlags& flags) {
  flags.command = &command;
  add_text(command, "--system", flags.system, "TEXT", "System message; @FILE: from a file");
  add_text(command, "--think", flags.think, "WORD",
           "Reasoning: on, off, minimal, low, medium, high, xhigh or max; the model's own way "
           "unless given");
  add_text(command, "--tools", flags.tools, "FILE",
           "Tools: a JSON list as in requests of /v1/chat/completions or /v1/responses, one tool, "
           "or a request that has some");
  add_parsed(command, "--max-tokens", flags.max_tokens, parse_uint32, "N",
             "Tokens of an answer, reasoning included [up to the context, and a limit of the "
             "server]");
  command.add_flag("--json", flags.json, "Each answer as a line of JSON with its usage");
  flags.fields.add_sampling_to(command, "Seed: the same one gives the same answers [random]",
                               "the model's own");
  add_repeated(command, "--stop", flags.stop_strings, "TEXT", "End the answer at this text")
      ->group("Sampling");
}

}  // namespace

void check_think(const std::string& flag, const std::string& word) {
  for (const char* const known :
       {"", "on", "off", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (word == known) return;
  }
  throw UsageError(flag + ": '" + word +
                   "' is not on, off, minimal, low, medium, high, xhigh or max");
}

PrepareTalk add_talk_flags(CLI::App& command, Console& console) {
  const auto flags = std::make_shared<ChatFlags>();
  add_conversation_flags(command, *flags);
  return [flags, &console](std::optional<std::string> question) -> TalkOver {
    return [flags, &console, input = read_chat_input(*flags, std::move(question), console)](
               const ConnectionFlags& connection, const ServerEnd& server_end) {
      flags->connection = connection;
      return run_chat(*flags, input, server_end, console);
    };
  };
}

void add_chat(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = app.add_subcommand("chat", "Talk to a model that has a chat template");
  chat->footer(kChatFooter);
  add_conversation_flags(*chat, *flags);
  chat->add_flag("--store", flags->store, "The server keeps each turn as a response");
  add_text(*chat, "--resume", flags->resume, "RESPONSE",
           "Continue after this stored response; implies --store");
  add_text(*chat, "--render", flags->render, "REQUEST.json",
           "Print the prompt that this request becomes; -: standard input");
  chat->add_flag("--render-ids", flags->render_ids, "With --render: its token ids");
  flags->connection.add_to(*chat, /*with_model=*/true);
  on_chosen(*chat, command_line, [flags, &command_line] {
    Console& console = command_line.console;
    flags->store |= !flags->resume.empty();
    if (flags->render_ids && flags->render.empty()) {
      throw UsageError("--render-ids goes with --render");
    }
    if (!flags->render.empty()) {
      check_think("--think", flags->think);
      return render(flags->connection.connect(), *flags, console);
    }
    return run_chat(*flags, read_chat_input(*flags, std::nullopt, console), nullptr, console);
  });
}

}  // namespace lintel::cli
