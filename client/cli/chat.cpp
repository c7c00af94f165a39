// SPDX-License-Identifier: Apache-2.0
// lintel chat.
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/console.h"
#include "client/cli/line_editor.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFooter = R"(
On a terminal lines are turns of a conversation. Each answer continues the turn before it; the server
keeps the state of the conversation, so that only the last turn is read. Lines that begin with a slash
are commands:
  /undo           back to the turn before; the next line begins a branch
  /tree           all turns, with numbers
  /branch N       continue after turn N
  /system TEXT    another system message
  /think WORD     on, off or an effort: minimal, low, medium, high
  /stats          tokens of the last turn: cached, read, written, a second
  /save FILE      the conversation as the messages of a request
  /exit           end, as Ctrl-D does
Ctrl-C ends an answer, and the program while nothing is answered. Without a terminal standard input is
one question, and standard output the answer.

--render prints the prompt that a request of /v1/chat/completions becomes, byte for byte, and
--render-ids its token ids as a JSON list. Nothing is generated.

Examples:
  lintel chat --model qwen --system "You are brief."
  echo "What is 17 * 3?" | lintel chat --think off
  lintel chat --render request.json)";

struct ChatFlags {
  ConnectionFlags connection;
  std::string system;
  std::string think;
  std::string tools;
  std::string render;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint32_t> max_tokens;
  bool json = false;
  bool render_ids = false;
};

void check_think(const std::string& word) {
  for (const char* const known :
       {"", "on", "off", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    if (word == known) return;
  }
  throw UsageError("--think: '" + word +
                   "' is not on, off, minimal, low, medium, high, xhigh or max");
}

Json parse(const std::string& text, const std::string& what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Failure(what + ": no JSON");
  return json;
}

// A turn of a conversation: a question and its answer. Turns form a tree.
struct Turn {
  std::optional<std::size_t> before;  // nothing: it is the first
  std::string question;
  Json answer;  // the message of the assistant
};

struct TurnStats {
  v1::ChatUsage usage;
  double seconds_to_first = 0;
  double seconds = 0;
};

class Chat {
 public:
  Chat(const Client& client, const ChatFlags& flags, Console& console)
      : client_(client), flags_(flags), console_(console), think_(flags.think) {
    system_ = flags.system.starts_with('@') ? console.read_file("--system", flags.system.substr(1))
                                            : flags.system;
    if (!flags.tools.empty()) {
      tools_ = parse(console.read_file("--tools", flags.tools), "--tools " + flags.tools);
    }
  }

  // Asks, and prints the answer as it comes. The turn is kept, unless the call fails.
  void ask(const std::string& question, Cancellation& cancellation);

  void undo() {
    if (!current_) throw UsageError("there is no turn to go back from");
    current_ = turns_[*current_].before;
  }
  void go_to(std::size_t turn) {
    if (turn >= turns_.size()) {
      throw UsageError("there are " + std::to_string(turns_.size()) + " turns");
    }
    current_ = turn;
  }
  std::string tree() const {
    std::string lines;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      lines += std::to_string(i) + (current_ == i ? " *" : "  ");
      if (turns_[i].before) lines += " after " + std::to_string(*turns_[i].before);
      lines += ": " + turns_[i].question.substr(0, 60) + "\n";
    }
    return lines.empty() ? "no turns\n" : lines;
  }
  std::string stats() const {
    const v1::ChatUsage& usage = last_.usage;
    const std::int64_t read = usage.prompt_tokens() - usage.cached_tokens();
    const double writing = last_.seconds - last_.seconds_to_first;
    const double rate =
        writing > 0 ? static_cast<double>(usage.completion_tokens()) / writing : 0.0;
    char text[200];
    std::snprintf(text, sizeof text,
                  "%lld tokens cached, %lld read, %lld written (%lld of reasoning), first after "
                  "%.2f s, %.1f a second\n",
                  static_cast<long long>(usage.cached_tokens()), static_cast<long long>(read),
                  static_cast<long long>(usage.completion_tokens()),
                  static_cast<long long>(usage.reasoning_tokens()), last_.seconds_to_first, rate);
    return text;
  }
  Json messages() const {
    std::vector<std::size_t> path;
    for (std::optional<std::size_t> at = current_; at; at = turns_[*at].before) path.push_back(*at);
    Json messages = Json::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    for (auto turn = path.rbegin(); turn != path.rend(); ++turn) {
      messages.push_back({{"role", "user"}, {"content", turns_[*turn].question}});
      messages.push_back(turns_[*turn].answer);
    }
    return messages;
  }
  void set_system(std::string text) { system_ = std::move(text); }
  void set_think(std::string word) {
    check_think(word);
    think_ = std::move(word);
  }

 private:
  Json request(const std::string& question) const;
  void show(const v1::ChatDelta& delta);
  // Reasoning is dim on a terminal, and left out elsewhere.
  void set_dim(bool dim) {
    if (std::exchange(is_dim_, dim) == dim) return;
    if (console_.out_is_terminal()) console_.out(dim ? "\033[2m" : "\033[0m");
  }

  const Client& client_;
  const ChatFlags& flags_;
  Console& console_;
  std::string system_, think_;
  Json tools_;
  std::vector<Turn> turns_;
  std::optional<std::size_t> current_;
  TurnStats last_;
  bool is_dim_ = false;
};

Json Chat::request(const std::string& question) const {
  Json request;
  if (!flags_.connection.model.empty()) request["model"] = flags_.connection.model;
  request["messages"] = messages();
  request["messages"].push_back({{"role", "user"}, {"content", question}});
  if (!tools_.is_null()) request["tools"] = tools_;
  if (think_ == "on") {
    request["chat_template_kwargs"] = {{"enable_thinking", true}, {"thinking", true}};
  } else if (think_ == "off") {
    request["reasoning_effort"] = "none";
  } else if (!think_.empty()) {
    request["reasoning_effort"] = think_;
  }
  if (flags_.seed) request["seed"] = *flags_.seed;
  if (flags_.max_tokens) request["max_completion_tokens"] = *flags_.max_tokens;
  return request;
}

void Chat::show(const v1::ChatDelta& delta) {
  if (!delta.reasoning().empty() && console_.out_is_terminal()) {
    set_dim(true);
    console_.out(delta.reasoning());
  }
  if (!delta.content().empty()) {
    if (is_dim_) console_.out("\n\n");
    set_dim(false);
    console_.out(delta.content());
  }
  if (delta.has_call()) {
    set_dim(false);
    if (!delta.call().name().empty()) console_.out("\n" + delta.call().name() + " ");
    console_.out(delta.call().arguments());
  }
}

void Chat::ask(const std::string& question, Cancellation& cancellation) {
  Turn turn{current_, question, {{"role", "assistant"}, {"content", ""}}};
  std::string content, reasoning;
  Json calls = Json::array();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  last_ = {};
  const Json body = request(question);
  client_.complete_chat(
      body.dump(-1, ' ', false, Json::error_handler_t::replace),
      [&](const v1::ChatResponse& message) {
        for (const v1::ChatDelta& delta : message.deltas()) {
          if (last_.seconds_to_first == 0) last_.seconds_to_first = seconds();
          content += delta.content();
          reasoning += delta.reasoning();
          if (delta.has_call() && !delta.call().id().empty()) {
            calls.push_back({{"id", delta.call().id()},
                             {"type", "function"},
                             {"function", {{"name", delta.call().name()}, {"arguments", ""}}}});
          }
          if (delta.has_call() && !calls.empty()) {
            auto& arguments = calls.back()["function"]["arguments"];
            arguments = arguments.get<std::string>() + delta.call().arguments();
          }
          if (!flags_.json) show(delta);
        }
        if (message.has_usage()) last_.usage = message.usage();
        if (!flags_.json) console_.flush();
      },
      &cancellation);
  last_.seconds = seconds();
  set_dim(false);
  turn.answer["content"] = content;
  if (!reasoning.empty()) turn.answer["reasoning_content"] = reasoning;
  if (!calls.empty()) turn.answer["tool_calls"] = calls;
  if (flags_.json) {
    const Json line = {{"message", turn.answer},
                       {"usage",
                        {{"prompt_tokens", last_.usage.prompt_tokens()},
                         {"cached_tokens", last_.usage.cached_tokens()},
                         {"completion_tokens", last_.usage.completion_tokens()},
                         {"reasoning_tokens", last_.usage.reasoning_tokens()}}}};
    console_.out(line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  console_.out("\n");
  console_.flush();
  turns_.push_back(std::move(turn));
  current_ = turns_.size() - 1;
}

// A line that begins with a slash. False: the conversation is over.
bool run_command(const std::string& line, Chat& chat, Console& console) {
  const std::size_t blank = line.find(' ');
  const std::string name = line.substr(1, blank == std::string::npos ? blank : blank - 1);
  const std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
  if (name == "exit" || name == "quit") return false;
  if (name == "undo") {
    chat.undo();
  } else if (name == "tree") {
    console.err(chat.tree());
  } else if (name == "branch") {
    std::size_t turn = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), turn);
    if (error != std::errc() || end != rest.data() + rest.size()) {
      throw UsageError("/branch: '" + rest + "' is no number of a turn");
    }
    chat.go_to(turn);
  } else if (name == "system") {
    chat.set_system(rest);
  } else if (name == "think") {
    chat.set_think(rest);
  } else if (name == "stats") {
    console.err(chat.stats());
  } else if (name == "save") {
    std::ofstream file(rest);
    file << chat.messages().dump(1, ' ', false, Json::error_handler_t::replace) << "\n";
    if (!file.flush()) throw Failure("/save " + rest + ": cannot be written");
  } else {
    throw UsageError("/" + name +
                     " is no command: /undo /tree /branch /system /think /stats "
                     "/save /exit");
  }
  return true;
}

int talk(Chat& chat, Console& console) {
  LineEditor editor(console);
  while (const std::optional<std::string> line = editor.read("> ")) {
    if (line->empty()) continue;
    try {
      if (line->front() == '/') {
        if (!run_command(*line, chat, console)) break;
        continue;
      }
      Console::Interruptible interruptible(console);
      try {
        chat.ask(*line, interruptible.cancellation());
      } catch (const CallError&) {
        console.out("\n");
        console.flush();
        if (!interruptible.cancellation().cancelled()) throw;
        console.err("lintel: stopped, the turn is not kept\n");
      }
    } catch (const UsageError& error) {
      console.err(std::string("lintel: ") + error.what() + "\n");
    } catch (const Failure& error) {
      console.err(std::string("lintel: ") + error.what() + "\n");
    } catch (const CallError& error) {
      if (console.cancellation().cancelled()) throw;
      console.err(std::string("lintel: ") + error.what() + "\n");
    }
  }
  return kOk;
}

int run_chat(const ChatFlags& flags, Console& console) {
  check_think(flags.think);
  const Client client = flags.connection.connect();
  if (!flags.render.empty()) {
    std::string body = console.read_file("--render", flags.render);
    if (!flags.connection.model.empty()) {
      Json request = parse(body, "--render " + flags.render);
      if (request.is_object() && !request.contains("model")) {
        // As text, so that members keep their form.
        const std::size_t brace = body.find('{');
        body.insert(brace + 1, "\"model\":" + Json(flags.connection.model).dump() +
                                   (request.empty() ? "" : ","));
      }
    }
    const v1::RenderChatResponse rendered = client.render_chat(body, &console.cancellation());
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
  if (flags.render_ids) throw UsageError("--render-ids goes with --render");
  Chat chat(client, flags, console);
  if (console.in_is_terminal()) return talk(chat, console);
  std::string question = console.read_all();
  if (question.ends_with('\n')) question.pop_back();
  chat.ask(question, console.cancellation());
  return kOk;
}

}  // namespace

void add_chat(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = app.add_subcommand("chat", "Talk to a model that has a chat template");
  chat->footer(kFooter);
  chat->add_option("--system", flags->system, "System message; @FILE: from a file")
      ->type_name("TEXT");
  chat->add_option("--think", flags->think,
                   "Reasoning: on, off, minimal, low, medium, high, xhigh or max; the model's own "
                   "way unless given")
      ->type_name("WORD");
  chat->add_option("--tools", flags->tools, "Tools, a JSON list as in requests")->type_name("FILE");
  chat->add_option("--max-tokens", flags->max_tokens, "Tokens of an answer, reasoning included")
      ->type_name("N");
  chat->add_option("--seed", flags->seed, "Of the random draws")->type_name("N");
  chat->add_flag("--json", flags->json, "Each answer as a line of JSON with its usage");
  chat->add_option("--render", flags->render,
                   "Print the prompt that this request becomes; -: standard input")
      ->type_name("REQUEST.json");
  chat->add_flag("--render-ids", flags->render_ids, "With --render: its token ids");
  flags->connection.add_to(*chat, /*with_model=*/true);
  on_chosen(*chat, command_line,
            [flags, &command_line] { return run_chat(*flags, command_line.console); });
}

}  // namespace lintel::cli
