// SPDX-License-Identifier: Apache-2.0
// Chat: the turns of `lintel chat`, and the requests that continue them.
#include "client/cli/chat_turns.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "client/cli/model_choice.h"

namespace lintel::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The decimal that a float was written as.
double decimal(float value) {
  char text[32] = {};
  std::to_chars(text, text + sizeof text - 1, value);
  return std::strtod(text, nullptr);
}

// The fields of sampling that were given, as members of a request.
void add_sampling(const v1::Sampling& sampling, FieldName RequestField::*api, Json& request) {
  constexpr std::string_view kPrefix = "sampling.";
  const google::protobuf::Reflection& reflection = *sampling.GetReflection();
  for (const RequestField& row : kRequestFields) {
    const std::string_view member = (row.*api).text;
    if (!row.name.starts_with(kPrefix) || member.empty()) continue;
    const std::string name(row.name.substr(kPrefix.size()));
    const auto* const field = sampling.GetDescriptor()->FindFieldByName(name);
    if (row.type == FieldType::kBiases) {
      for (const auto& [id, bias] : sampling.logit_bias()) {
        request[std::string(member)][std::to_string(id)] = decimal(bias);
      }
    } else if (reflection.HasField(sampling, field)) {
      Json& value = request[std::string(member)];
      if (row.type == FieldType::kNumber) {
        value = decimal(reflection.GetFloat(sampling, field));
      } else if (row.type == FieldType::kSeed) {
        value = reflection.GetUInt64(sampling, field);
      } else {
        value = reflection.GetUInt32(sampling, field);
      }
    }
  }
}

// The items of a response's input that a turn is.
void add_items(const ChatTurn& turn, Json& input) {
  input.push_back({{"role", "user"}, {"content", turn.question}});
  const std::string content = turn.answer.value("content", "");
  const Json calls = turn.answer.value("tool_calls", Json::array());
  if (!content.empty() || calls.empty()) {
    input.push_back({{"role", "assistant"}, {"content", content}});
  }
  for (const Json& call : calls) {
    input.push_back({{"type", "function_call"},
                     {"call_id", call.at("id")},
                     {"name", call.at("function").at("name")},
                     {"arguments", call.at("function").at("arguments")}});
  }
}

// The text of a message: a text, or parts of text, each a line.
std::string text_of(const Json& message, const std::string& what) {
  const Json content = message.value("content", Json());
  if (content.is_null()) return "";
  if (content.is_string()) return content;
  std::string text;
  for (const Json& part : content) {
    if (!content.is_array() || !part.is_object() || !part.value("text", Json()).is_string()) {
      throw Failure(what + ": its content is not text");
    }
    text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
  }
  return text;
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kMost = 60;
  std::string line = text.substr(0, std::min(text.find('\n'), kMost));
  // A character that is cut is left out.
  while (line.size() < text.size() && !line.empty() && (text[line.size()] & 0xC0) == 0x80) {
    line.pop_back();
  }
  return line.size() < text.size() ? line + " ..." : line;
}

}  // namespace

Json parse_json(const std::string& text, const std::string& what) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Failure(what + ": no JSON");
  return json;
}

Json tools_of(const Json& json, const std::string& what) {
  const Json& list = json.is_object() && json.contains("tools") ? json["tools"] : json;
  Json tools = Json::array();
  for (const Json& tool : list.is_array() ? list : Json::array({list})) {
    const std::string place = what + ": tool " + std::to_string(tools.size() + 1);
    if (tool.is_object() && tool.value("function", Json()).is_object()) {
      tools.push_back(tool);
    } else if (tool.is_object() && tool.value("name", Json()).is_string()) {
      Json function = tool;
      function.erase("type");
      tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    } else {
      throw Failure(place + R"( is neither {"type": "function", "function": {"name": ...}} nor )"
                            R"({"type": "function", "name": ...})");
    }
  }
  return tools;
}

ChatInput read_chat_input(const ChatFlags& flags, std::optional<std::string> question,
                          Console& console) {
  check_think("--think", flags.think);
  ChatInput input{.system = flags.system, .tools = {}, .question = std::move(question)};
  if (flags.system.starts_with('@')) {
    input.system = console.read_file("--system", flags.system.substr(1));
  }
  if (!flags.tools.empty()) {
    const std::string what = "--tools " + flags.tools;
    input.tools = tools_of(parse_json(console.read_file("--tools", flags.tools), what), what);
  }
  if (input.question || console.in_is_terminal()) return input;
  input.question = console.read_all();
  if (input.question->ends_with('\n')) input.question->pop_back();
  if (trimmed(*input.question).empty()) {
    throw UsageError("standard input is empty: a question is expected");
  }
  return input;
}

Chat::Chat(const Client& client, const ChatFlags& flags, ChatInput input, Console& console)
    : client_(client),
      flags_(flags),
      console_(console),
      model_(flags.connection.model),
      system_(std::move(input.system)),
      think_(flags.think),
      tools_(std::move(input.tools)) {
  if (flags.resume.empty()) return;
  // Also says what is wrong with the id before anything is asked.
  base_ = parse_json(client.get_response(flags.resume, &console.cancellation()), flags.resume);
}

v1::Model Chat::check() {
  Cancellation& cancellation = console_.cancellation();
  const Waiting waiting(console_, [this](Cancellation& asking) {
    return waiting_text("waiting for the server", asking);
  });
  return with_load_hint(client_, cancellation, [&] {
    Json request = {{"messages", Json::array({{{"role", "user"}, {"content", "?"}}})}};
    if (!model_.empty()) request["model"] = model_;
    model_ = client_.render_chat(dumped(request), &cancellation).model();
    return client_.get_model(model_, &cancellation);
  });
}

bool Chat::shows_system() {
  Json request = {{"messages", Json::array({{{"role", "system"}, {"content", system_}},
                                            {{"role", "user"}, {"content", "?"}}})}};
  if (!model_.empty()) request["model"] = model_;
  const v1::RenderChatResponse rendered =
      client_.render_chat(dumped(request), &console_.cancellation());
  return rendered.text().find(trimmed(system_)) != std::string::npos;
}

std::string Chat::waiting_text(const std::string& text, Cancellation& cancellation) const {
  try {
    for (const v1::Model& model : client_.list_all_models(&cancellation)) {
      if (model.state() != v1::MODEL_STATE_LOADING) continue;
      if (!model_.empty() && model.name() != model_) continue;
      return "loading " + model.name() + (model.reason().empty() ? "" : ": " + model.reason());
    }
  } catch (const CallError&) {  // the call that is waited for reports the error
  }
  return text;
}

void Chat::undo() {
  if (current_) {
    current_ = turns_[*current_].before;
  } else if (base_.contains("id")) {
    const Json before = base_.value("previous_response_id", Json());
    base_ = before.is_string() ? parse_json(client_.get_response(before, &console_.cancellation()),
                                            before.get<std::string>())
                               : Json::object();
  } else {
    throw UsageError("there is no turn to go back from");
  }
}

void Chat::go_to(std::size_t turn) {
  if (turn >= turns_.size()) {
    throw UsageError("/branch " + std::to_string(turn) +
                     (turns_.empty() ? ": there is no turn yet"
                                     : ": the last turn is " + std::to_string(turns_.size() - 1)));
  }
  current_ = turn;
}

std::optional<std::string> Chat::question() const {
  if (current_) return first_line(turns_[*current_].question);
  return std::nullopt;
}

std::string Chat::response() const {
  return current_ ? turns_[*current_].response : base_.value("id", "");
}

std::string Chat::tree() const {
  std::string lines;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    lines += std::to_string(i) + (current_ == i ? " *" : "  ");
    if (turns_[i].before) lines += " after " + std::to_string(*turns_[i].before);
    if (!turns_[i].response.empty()) lines += " " + turns_[i].response;
    lines += ": " + first_line(turns_[i].question) + "\n";
  }
  return lines.empty() ? "no turns\n" : lines;
}

std::string Chat::stats() const {
  if (last_.seconds == 0) return "no answer has come yet\n";
  char text[200];
  if (!last_.has_usage) {
    std::snprintf(text, sizeof text, "stopped after %.2f s, before the tokens were counted\n",
                  last_.seconds);
    return text;
  }
  const v1::ChatUsage& usage = last_.usage;
  const std::int64_t read = usage.prompt_tokens() - usage.cached_tokens();
  std::snprintf(text, sizeof text,
                "%lld tokens cached, %lld read, %lld written (%lld of reasoning) in %.2f s, the "
                "first after %.2f s",
                static_cast<long long>(usage.cached_tokens()), static_cast<long long>(read),
                static_cast<long long>(usage.completion_tokens()),
                static_cast<long long>(usage.reasoning_tokens()), last_.seconds,
                last_.seconds_to_first);
  std::string line = text;
  // A message has several tokens: of those that came with the first one no time is known, and their
  // share is that of their text.
  const double writing = last_.seconds_to_last - last_.seconds_to_first;
  if (last_.bytes_later > 0 && writing > 0) {
    const double share = static_cast<double>(last_.bytes_later) / static_cast<double>(last_.bytes);
    std::snprintf(text, sizeof text, ", %.1f a second",
                  static_cast<double>(usage.completion_tokens()) * share / writing);
    line += text;
  }
  return line + "\n";
}

std::string Chat::cut_text() const {
  if (!last_.is_cut) return "";
  const std::int64_t tokens = last_.usage.completion_tokens();
  const std::string after = std::to_string(tokens) + (tokens == 1 ? " token" : " tokens");
  return "the answer was cut after " + after +
         (flags_.max_tokens ? ": --max-tokens " + std::to_string(*flags_.max_tokens)
                            : " by a limit of the server, or the end of the context");
}

std::vector<std::size_t> Chat::path(bool from_stored) const {
  std::vector<std::size_t> path;
  for (std::optional<std::size_t> at = current_; at; at = turns_[*at].before) {
    if (from_stored && !turns_[*at].response.empty()) break;
    path.push_back(*at);
  }
  std::ranges::reverse(path);
  return path;
}

Json Chat::messages() const {
  Json messages = Json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const std::size_t turn : path(/*from_stored=*/false)) {
    messages.push_back({{"role", "user"}, {"content", turns_[turn].question}});
    messages.push_back(turns_[turn].answer);
  }
  return messages;
}

std::size_t Chat::load(const Json& json, const std::string& what) {
  const Json& messages = json.is_object() && json.contains("messages") ? json["messages"] : json;
  if (!messages.is_array()) throw Failure(what + ": no list of messages");
  std::string system;
  std::vector<ChatTurn> turns;
  bool is_asked = false;  // the last turn has no answer yet
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string place = what + ": message " + std::to_string(i + 1);
    const Json& message = messages[i];
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    if (role == "system" && i == 0) {
      system = text_of(message, place);
    } else if (role == "user" && !is_asked) {
      const auto before = turns.empty() ? std::nullopt : std::optional(turns.size() - 1);
      turns.push_back({before, text_of(message, place), Json(), ""});
      is_asked = true;
    } else if (role == "assistant" && is_asked) {
      turns.back().answer = message;
      turns.back().answer["content"] = text_of(message, place);
      is_asked = false;
    } else {
      throw Failure(place + " has role " + role.dump() +
                    ": a system message may be the first, and then user and assistant take turns");
    }
  }
  if (is_asked) throw Failure(what + ": the last message is not the assistant's");
  system_ = system;
  turns_ = std::move(turns);
  current_ = turns_.empty() ? std::nullopt : std::optional(turns_.size() - 1);
  base_ = Json::object();
  return turns_.size();
}

void Chat::set_think(std::string word) {
  check_think("/think", word);
  think_ = std::move(word);
}

void Chat::add_settings(Json& request, FieldName RequestField::*api) const {
  const bool is_stored = api == &RequestField::responses;
  if (!model_.empty()) request["model"] = model_;
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
  v1::GenerateRequest fields;
  flags_.fields.fill(fields);
  add_sampling(fields.sampling(), api, request);
  if (!flags_.stop_strings.empty()) request["stop"] = flags_.stop_strings;
  if (flags_.max_tokens) {
    request[is_stored ? "max_output_tokens" : "max_completion_tokens"] = *flags_.max_tokens;
  }
}

Json Chat::request(const std::string& question) const {
  Json request = {{"messages", messages()}};
  request["messages"].push_back({{"role", "user"}, {"content", question}});
  if (!tools_.is_null()) request["tools"] = tools_;
  add_settings(request, &RequestField::chat);
  return request;
}

Json Chat::stored_request(const std::string& question) const {
  Json request = {{"store", true}, {"stream", true}};
  const std::vector<std::size_t> unstored = path(/*from_stored=*/true);
  if (unstored.empty()) {
    request["input"] = question;
  } else {
    Json& input = request["input"] = Json::array();
    for (const std::size_t turn : unstored) add_items(turns_[turn], input);
    input.push_back({{"role", "user"}, {"content", question}});
  }
  const std::optional<std::size_t> stored =
      unstored.empty() ? current_ : turns_[unstored.front()].before;
  const std::string id = stored ? turns_[*stored].response : base_.value("id", "");
  if (!id.empty()) request["previous_response_id"] = id;
  if (!system_.empty()) request["instructions"] = system_;
  // Without the object that a chat completion has around a function.
  for (const Json& tool : tools_) {
    Json flat = {{"type", "function"}};
    flat.update(tool.at("function"));
    request["tools"].push_back(std::move(flat));
  }
  add_settings(request, &RequestField::responses);
  return request;
}

void Chat::set_dim(bool dim) {
  if (std::exchange(is_dim_, dim) == dim) return;
  if (console_.out_is_terminal()) console_.out(dim ? "\033[2m" : "\033[0m");
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

// A message brought so much text.
void Chat::come(std::size_t bytes) {
  if (bytes == 0) return;
  waiting_.reset();
  last_.seconds_to_last =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (last_.bytes == 0) {
    last_.seconds_to_first = last_.seconds_to_last;
  } else {
    last_.bytes_later += bytes;
  }
  last_.bytes += bytes;
}

void Chat::take(const v1::ChatDelta& delta, Answer& answer) {
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

namespace {

std::size_t text_bytes(const v1::ChatDelta& delta) {
  return delta.content().size() + delta.reasoning().size() + delta.call().arguments().size() +
         delta.call().name().size();
}

// The delta that an event of a response is; empty: it is none.
v1::ChatDelta delta_of(const std::string& type, const Json& body) {
  v1::ChatDelta delta;
  if (type == "response.reasoning.delta") {
    delta.set_reasoning(body.at("delta").get<std::string>());
  } else if (type == "response.output_text.delta") {
    delta.set_content(body.at("delta").get<std::string>());
  } else if (type == "response.function_call_arguments.delta") {
    delta.mutable_call()->set_arguments(body.at("delta").get<std::string>());
  } else if (type == "response.output_item.added" &&
             body.at("item").value("type", "") == "function_call") {
    delta.mutable_call()->set_id(body.at("item").at("call_id").get<std::string>());
    delta.mutable_call()->set_name(body.at("item").at("name").get<std::string>());
  }
  return delta;
}

}  // namespace

void Chat::complete(const std::string& question, Cancellation& cancellation, Answer& answer) {
  client_.complete_chat(
      dumped(request(question)),
      [&](const v1::ChatResponse& message) {
        std::size_t bytes = 0;
        for (const v1::ChatDelta& delta : message.deltas()) bytes += text_bytes(delta);
        come(bytes);
        for (const v1::ChatDelta& delta : message.deltas()) take(delta, answer);
        for (const v1::ChatFinish& finish : message.finished()) {
          if (finish.reason() == v1::CHAT_FINISH_REASON_LENGTH) last_.is_cut = true;
        }
        if (message.has_usage()) {
          last_.usage = message.usage();
          last_.has_usage = true;
        }
        if (!flags_.json) console_.flush();
      },
      &cancellation);
}

std::string Chat::respond(const std::string& question, Cancellation& cancellation, Answer& answer) {
  Json response;
  client_.create_response(
      dumped(stored_request(question)),
      [&](const v1::ResponseEvents& message) {
        std::vector<v1::ChatDelta> deltas;
        std::size_t bytes = 0;
        for (const v1::ResponseEvent& event : message.events()) {
          deltas.push_back(delta_of(event.type(), parse_json(event.body(), event.type())));
          bytes += text_bytes(deltas.back());
        }
        come(bytes);
        for (const v1::ChatDelta& delta : deltas) take(delta, answer);
        if (!message.response().empty()) response = parse_json(message.response(), "the response");
        if (!flags_.json) console_.flush();
      },
      &cancellation);
  const std::string status = response.value("status", "");
  if (status == "failed") {
    throw Failure("the response failed: " + response["error"].value("message", ""));
  }
  if (status == "incomplete") last_.is_cut = true;
  const Json& usage = response.at("usage");
  last_.usage.set_prompt_tokens(usage.at("input_tokens"));
  last_.usage.set_cached_tokens(usage.at("input_tokens_details").at("cached_tokens"));
  last_.usage.set_completion_tokens(usage.at("output_tokens"));
  last_.usage.set_reasoning_tokens(usage.at("output_tokens_details").at("reasoning_tokens"));
  last_.has_usage = true;
  return response.at("id");
}

void Chat::ask(const std::string& question, Cancellation& cancellation) {
  ChatTurn turn{current_, question, {{"role", "assistant"}, {"content", ""}}, ""};
  Answer answer;
  last_ = {};
  begin_ = std::chrono::steady_clock::now();
  waiting_ = std::make_unique<Waiting>(console_, [this](Cancellation& asking) {
    return waiting_text("waiting for the first token", asking);
  });
  try {
    with_load_hint(client_, cancellation, [&] {
      if (flags_.store) {
        turn.response = respond(question, cancellation, answer);
      } else {
        complete(question, cancellation, answer);
      }
    });
  } catch (const CallError&) {
    waiting_.reset();
    set_dim(false);
    if (!answer.is_empty() && !flags_.json) console_.out("\n");
    console_.flush();
    if (!cancellation.cancelled() || console_.cancellation().cancelled()) throw;
    last_.was_stopped = true;
  }
  waiting_.reset();
  last_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  set_dim(false);
  // A call that broke off cannot be run.
  for (std::size_t i = answer.calls.size(); i-- > 0;) {
    const std::string arguments = answer.calls[i]["function"]["arguments"];
    if (!Json::accept(arguments)) answer.calls.erase(i);
  }
  if (last_.was_stopped && answer.is_empty()) return;
  turn.answer["content"] = answer.content;
  if (!answer.reasoning.empty()) turn.answer["reasoning_content"] = answer.reasoning;
  if (!answer.calls.empty()) turn.answer["tool_calls"] = answer.calls;
  if (flags_.json) {
    Json line = {{"message", turn.answer},
                 {"finish_reason", last_.is_cut           ? "length"
                                   : answer.calls.empty() ? "stop"
                                                          : "tool_calls"},
                 {"usage",
                  {{"prompt_tokens", last_.usage.prompt_tokens()},
                   {"cached_tokens", last_.usage.cached_tokens()},
                   {"completion_tokens", last_.usage.completion_tokens()},
                   {"reasoning_tokens", last_.usage.reasoning_tokens()}}}};
    if (!turn.response.empty()) line["response"] = turn.response;
    console_.out(dumped(line));
  }
  if (flags_.json || !last_.was_stopped) console_.out("\n");
  console_.flush();
  turns_.push_back(std::move(turn));
  current_ = turns_.size() - 1;
}

}  // namespace lintel::cli
