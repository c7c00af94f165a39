// SPDX-License-Identifier: Apache-2.0
// A conversation of `lintel chat`.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/console.h"
#include "client/cli/flags.h"
#include "client/cli/generate_output.h"
#include "client/lib/client.h"
#include "proto/fields/request_fields.h"

namespace lintel::cli {

struct ChatFlags {
  ConnectionFlags connection;
  FieldFlags fields;   // of sampling
  std::string system;  // @FILE: from a file
  std::string think;
  std::string tools;  // a file
  std::string render;
  std::string resume;
  std::vector<std::string> stop_strings;
  std::optional<std::uint32_t> max_tokens;
  bool store = false;
  bool json = false;
  bool render_ids = false;
  const CLI::App* command = nullptr;  // the owner of these flags
};

// Input of a conversation that is read before a server is asked.
struct ChatInput {
  std::string system;
  nlohmann::ordered_json tools;         // null: none
  std::optional<std::string> question;  // the only one; nothing: they are typed on a terminal
};
// Checks flags and reads their files and, where standard input is no terminal and `question` has
// nothing, the question there. Throws UsageError and Failure.
ChatInput read_chat_input(const ChatFlags& flags, std::optional<std::string> question,
                          Console& console);

// Throws UsageError, which begins with `flag`, for a text that --think does not take.
void check_think(const std::string& flag, const std::string& word);
// Tools as a request of /v1/chat/completions has them, out of that form, of /v1/responses' or of a
// request that has either. `what` is for errors: throws Failure.
nlohmann::ordered_json tools_of(const nlohmann::ordered_json& json, const std::string& what);
// Throws Failure naming `what`.
nlohmann::ordered_json parse_json(const std::string& text, const std::string& what);

// A conversation with a model.

// A turn: a question and its answer. Turns form a tree.
struct ChatTurn {
  std::optional<std::size_t> before;  // nothing: it is the first
  std::string question;
  nlohmann::ordered_json answer;  // the message of the assistant
  std::string response;           // its id; empty: it is not stored
};

// The end of the last answer, and what it took.
struct ChatStats {
  v1::ChatUsage usage;
  bool has_usage = false;       // not of one that was stopped
  double seconds_to_first = 0;  // message
  double seconds_to_last = 0;   // likewise
  double seconds = 0;           // to the end
  std::size_t bytes = 0;        // of text that came
  std::size_t bytes_later = 0;  // of which came after the first message
  bool is_cut = false;          // by a limit
  bool was_stopped = false;     // by Ctrl-C
};

// All that talks to the server throws CallError.
//
// Threads: one at a time.
class Chat {
 public:
  // Reads the response of --resume. `flags` may change from turn to turn; they, the client and the
  // console outlive the object.
  Chat(const Client& client, const ChatFlags& flags, ChatInput input, Console& console);

  // The model that answers, which the flags name or the server chooses; asks the server, which
  // loads the model where it has to.
  v1::Model check();

  // Asks, and prints the answer as it comes. The turn is kept unless the call fails; where the
  // cancellation ended the answer, with what had come, if anything had.
  void ask(const std::string& question, Cancellation& cancellation);
  const ChatStats& last() const { return last_; }
  // Says that the last answer was cut, and what is done about it; empty: it was not.
  std::string cut_text() const;

  // Goes back to the turn before. Throws UsageError where there is none.
  void undo();
  void go_to(std::size_t turn);
  // The question of the turn that the next one follows; nothing: it is the first.
  std::optional<std::string> question() const;
  std::string tree() const;
  std::string stats() const;

  // The conversation up to here as the messages of a request.
  nlohmann::ordered_json messages() const;
  // Continues these in place of it. Throws Failure naming `what` and the message that no turn of
  // this program can have. Returns how many turns they are.
  std::size_t load(const nlohmann::ordered_json& messages, const std::string& what);

  const std::string& system() const { return system_; }
  void set_system(std::string text) { system_ = std::move(text); }
  // True if the prompt shows the system message.
  bool shows_system();
  void set_think(std::string word);

  // The response that the next turn continues; empty: there is none.
  std::string response() const;

 private:
  struct Answer {
    std::string content, reasoning;
    nlohmann::ordered_json calls = nlohmann::ordered_json::array();
    bool is_empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  };

  // From the first turn on, or from the one after the last that is stored.
  std::vector<std::size_t> path(bool from_stored) const;
  nlohmann::ordered_json request(const std::string& question) const;
  nlohmann::ordered_json stored_request(const std::string& question) const;
  void add_settings(nlohmann::ordered_json& request, FieldName RequestField::*api) const;
  // Sends the request and shows the answer as it comes.
  void complete(const std::string& question, Cancellation& cancellation, Answer& answer);
  // The same as a stored response; returns its id.
  std::string respond(const std::string& question, Cancellation& cancellation, Answer& answer);
  void come(std::size_t bytes);
  void take(const v1::ChatDelta& delta, Answer& answer);
  void show(const v1::ChatDelta& delta);
  // Reasoning is dim on a terminal, and left out elsewhere.
  void set_dim(bool dim);
  // The line that stands there until the first token: the state of the model while it is loaded,
  // else `text`.
  std::string waiting_text(const std::string& text, Cancellation& cancellation) const;

  const Client& client_;
  const ChatFlags& flags_;
  Console& console_;
  std::string model_;  // the model that answers; empty: the server chooses
  std::string system_, think_;
  nlohmann::ordered_json tools_;
  std::vector<ChatTurn> turns_;
  std::optional<std::size_t> current_;
  // The response that the first turn continues; none: without an id.
  nlohmann::ordered_json base_ = nlohmann::ordered_json::object();
  ChatStats last_;
  std::chrono::steady_clock::time_point begin_;
  bool is_dim_ = false;
  std::unique_ptr<Waiting> waiting_;  // for the first message
};

// A conversation as it is typed on a terminal: lines, and commands that begin with a slash. Returns
// an ExitCode.
int talk(Chat& chat, ChatFlags& flags, const ServerEnd& server_end, Console& console);

}  // namespace lintel::cli
