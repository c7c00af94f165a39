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

constexpr const char* kChatFooter = R"(
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
With --store each turn is a response that the server keeps. The conversation can be continued later,
also after the server was restarted: --resume with the id of any of its responses. /undo then goes
back beyond the turns of this run.
Ctrl-C ends an answer, and the program while nothing is answered. Without a terminal standard input is
one question, and standard output the answer.

--render prints the prompt that a request of /v1/chat/completions becomes, byte for byte, and
--render-ids its token ids as a JSON list. Nothing is generated.

Examples:
  lintel chat --model qwen --system "You are brief."
  echo "What is 17 * 3?" | lintel chat --think off
  lintel chat --store
  lintel chat --resume resp_0123456789abcdef0123456789abcdef
  lintel chat --render request.json)";

struct ChatFlags {
  ConnectionFlags connection;
  std::string system;
  std::string think;
  std::string tools;
  std::string render;
  std::string resume;
  std::optional<std::uint64_t> seed;
  std::optional<std::uint32_t> max_tokens;
  bool store = false;
  bool json = false;
  bool render_ids = false;
  std::optional<std::string> question;  // the only one, in place of standard input's
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

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A turn of a conversation: a question and its answer. Turns form a tree.
struct Turn {
  std::optional<std::size_t> before;  // nothing: it is the first
  std::string question;
  Json answer;           // the message of the assistant
  std::string response;  // its id; empty: it is not stored
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
    if (flags.resume.empty()) return;
    // Also says what is wrong with the id before anything is asked.
    base_ = parse(client.get_response(flags.resume, &console.cancellation()), flags.resume);
  }

  // Asks, and prints the answer as it comes. The turn is kept, unless the call fails.
  void ask(const std::string& question, Cancellation& cancellation);

  void undo() {
    if (current_) {
      current_ = turns_[*current_].before;
    } else if (base_.contains("id")) {
      const Json before = base_.value("previous_response_id", Json());
      base_ = before.is_string() ? parse(client_.get_response(before, &console_.cancellation()),
                                         before.get<std::string>())
                                 : Json::object();
    } else {
      throw UsageError("there is no turn to go back from");
    }
  }
  // The response that the next turn continues; empty: there is none.
  std::string response() const {
    return current_ ? turns_[*current_].response : base_.value("id", "");
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
      if (!turns_[i].response.empty()) lines += " " + turns_[i].response;
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
  struct Answer {
    std::string content, reasoning;
    Json calls = Json::array();
  };

  Json request(const std::string& question) const;
  Json stored_request(const std::string& question) const;
  void add_thinking(Json& request, bool is_stored) const;
  // Sends the request and shows the answer as it comes.
  void complete(const std::string& question, Cancellation& cancellation, Answer& answer);
  // The same as a stored response; returns its id.
  std::string respond(const std::string& question, Cancellation& cancellation, Answer& answer);
  void take(const v1::ChatDelta& delta, Answer& answer);
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
  Json base_ = Json::object();  // the response that the first turn continues; none: without an id
  TurnStats last_;
  std::chrono::steady_clock::time_point begin_;
  bool is_dim_ = false;
};

Json Chat::request(const std::string& question) const {
  Json request;
  if (!flags_.connection.model.empty()) request["model"] = flags_.connection.model;
  request["messages"] = messages();
  request["messages"].push_back({{"role", "user"}, {"content", question}});
  if (!tools_.is_null()) request["tools"] = tools_;
  add_thinking(request, /*is_stored=*/false);
  if (flags_.seed) request["seed"] = *flags_.seed;
  if (flags_.max_tokens) request["max_completion_tokens"] = *flags_.max_tokens;
  return request;
}

void Chat::add_thinking(Json& request, bool is_stored) const {
  if (think_ == "on") {
    request["chat_template_kwargs"] = {{"enable_thinking", true}, {"thinking", true}};
  } else if (!think_.empty()) {
    const std::string effort = think_ == "off" ? "none" : think_;
    if (is_stored) {
      request["reasoning"] = {{"effort", effort}};
    } else {
      request["reasoning_effort"] = effort;
    }
  }
}

Json Chat::stored_request(const std::string& question) const {
  Json request = {{"input", question}, {"store", true}, {"stream", true}};
  if (!flags_.connection.model.empty()) request["model"] = flags_.connection.model;
  if (!system_.empty()) request["instructions"] = system_;
  if (const std::string id = response(); !id.empty()) request["previous_response_id"] = id;
  // Without the object that a chat completion has around a function.
  for (const Json& tool : tools_) {
    Json flat = {{"type", "function"}};
    flat.update(tool.value("function", Json::object()));
    request["tools"].push_back(std::move(flat));
  }
  add_thinking(request, /*is_stored=*/true);
  if (flags_.seed) request["seed"] = *flags_.seed;
  if (flags_.max_tokens) request["max_output_tokens"] = *flags_.max_tokens;
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

void Chat::take(const v1::ChatDelta& delta, Answer& answer) {
  if (last_.seconds_to_first == 0) {
    last_.seconds_to_first =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  answer.content += delta.content();
  answer.reasoning += delta.reasoning();
  if (delta.has_call() && !delta.call().id().empty()) {
    answer.calls.push_back({{"id", delta.call().id()},
                            {"type", "function"},
                            {"function", {{"name", delta.call().name()}, {"arguments", ""}}}});
  }
  if (delta.has_call() && !answer.calls.empty()) {
    auto& arguments = answer.calls.back()["function"]["arguments"];
    arguments = arguments.get<std::string>() + delta.call().arguments();
  }
  if (!flags_.json) show(delta);
}

void Chat::complete(const std::string& question, Cancellation& cancellation, Answer& answer) {
  client_.complete_chat(
      dumped(request(question)),
      [&](const v1::ChatResponse& message) {
        for (const v1::ChatDelta& delta : message.deltas()) take(delta, answer);
        if (message.has_usage()) last_.usage = message.usage();
        if (!flags_.json) console_.flush();
      },
      &cancellation);
}

std::string Chat::respond(const std::string& question, Cancellation& cancellation, Answer& answer) {
  Json response;
  client_.create_response(
      dumped(stored_request(question)),
      [&](const v1::ResponseEvents& message) {
        for (const v1::ResponseEvent& event : message.events()) {
          const Json body = parse(event.body(), event.type());
          v1::ChatDelta delta;
          if (event.type() == "response.reasoning.delta") {
            delta.set_reasoning(body.at("delta").get<std::string>());
          } else if (event.type() == "response.output_text.delta") {
            delta.set_content(body.at("delta").get<std::string>());
          } else if (event.type() == "response.function_call_arguments.delta") {
            delta.mutable_call()->set_arguments(body.at("delta").get<std::string>());
          } else if (event.type() == "response.output_item.added" &&
                     body.at("item").value("type", "") == "function_call") {
            delta.mutable_call()->set_id(body.at("item").at("call_id").get<std::string>());
            delta.mutable_call()->set_name(body.at("item").at("name").get<std::string>());
          } else {
            continue;
          }
          take(delta, answer);
        }
        if (!message.response().empty()) response = parse(message.response(), "the response");
        if (!flags_.json) console_.flush();
      },
      &cancellation);
  if (response.value("status", "") == "failed") {
    throw Failure("the response failed: " + response["error"].value("message", ""));
  }
  const Json& usage = response.at("usage");
  last_.usage.set_prompt_tokens(usage.at("input_tokens"));
  last_.usage.set_cached_tokens(usage.at("input_tokens_details").at("cached_tokens"));
  last_.usage.set_completion_tokens(usage.at("output_tokens"));
  last_.usage.set_reasoning_tokens(usage.at("output_tokens_details").at("reasoning_tokens"));
  return response.at("id");
}

void Chat::ask(const std::string& question, Cancellation& cancellation) {
  Turn turn{current_, question, {{"role", "assistant"}, {"content", ""}}, ""};
  Answer answer;
  last_ = {};
  begin_ = std::chrono::steady_clock::now();
  if (flags_.store) {
    turn.response = respond(question, cancellation, answer);
  } else {
    complete(question, cancellation, answer);
  }
  last_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  set_dim(false);
  turn.answer["content"] = answer.content;
  if (!answer.reasoning.empty()) turn.answer["reasoning_content"] = answer.reasoning;
  if (!answer.calls.empty()) turn.answer["tool_calls"] = answer.calls;
  if (flags_.json) {
    Json line = {{"message", turn.answer},
                 {"usage",
                  {{"prompt_tokens", last_.usage.prompt_tokens()},
                   {"cached_tokens", last_.usage.cached_tokens()},
                   {"completion_tokens", last_.usage.completion_tokens()},
                   {"reasoning_tokens", last_.usage.reasoning_tokens()}}}};
    if (!turn.response.empty()) line["response"] = turn.response;
    console_.out(dumped(line));
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
  int status = kOk;
  if (flags.question) {
    chat.ask(*flags.question, console.cancellation());
  } else if (console.in_is_terminal()) {
    status = talk(chat, console);
  } else {
    std::string question = console.read_all();
    if (question.ends_with('\n')) question.pop_back();
    chat.ask(question, console.cancellation());
  }
  const std::string id = chat.response();
  if (flags.store && !id.empty()) console.err("continue with: lintel chat --resume " + id + "\n");
  return status;
}

// The flags of a conversation.
void add_chat_flags(CLI::App* chat, const std::shared_ptr<ChatFlags>& flags) {
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
}

}  // namespace

TalkOver add_talk_flags(CLI::App& command, Console& console) {
  const auto flags = std::make_shared<ChatFlags>();
  add_chat_flags(&command, flags);
  command.add_flag("--json", flags->json, "Each answer as a line of JSON with its usage");
  return [flags, &console](const ConnectionFlags& connection,
                           const std::optional<std::string>& question) {
    flags->connection = connection;
    flags->question = question;
    return run_chat(*flags, console);
  };
}

void add_chat(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = app.add_subcommand("chat", "Talk to a model that has a chat template");
  chat->footer(kChatFooter);
  add_chat_flags(chat, flags);
  chat->add_flag("--store", flags->store, "The server keeps each turn as a response");
  chat->add_option("--resume", flags->resume,
                   "Continue after this stored response; implies --store")
      ->type_name("RESPONSE");
  chat->add_flag("--json", flags->json, "Each answer as a line of JSON with its usage");
  chat->add_option("--render", flags->render,
                   "Print the prompt that this request becomes; -: standard input")
      ->type_name("REQUEST.json");
  chat->add_flag("--render-ids", flags->render_ids, "With --render: its token ids");
  flags->connection.add_to(*chat, /*with_model=*/true);
  on_chosen(*chat, command_line, [flags, &command_line] {
    flags->store |= !flags->resume.empty();
    return run_chat(*flags, command_line.console);
  });
}

}  // namespace lintel::cli
