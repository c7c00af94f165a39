// SPDX-License-Identifier: Apache-2.0
// `lintel generate --interactive`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/generate.h"
#include "client/cli/generate_output.h"

namespace lintel::cli {

// Conversation: a session that is talked to, turn by turn.

// A turn is what was typed and what came of it. All that talks to the server throws CallError.
//
// Threads: one at a time.
class Conversation {
 public:
  // All of it outlives the conversation.
  struct Setting {
    const Client& client;
    const GenerateFlags& flags;
    const v1::Model& model;
    const ViewOptions& view;
  };

  // Continues the session of --session, or makes one. `request`: how each turn is generated;
  // its prompt is ignored.
  Conversation(const Setting& setting, v1::GenerateRequest request, Console& console);

  // Sends the prompt, which may be empty, and prints what the model generates. Ctrl-C ends the turn
  // and keeps what had come. Any other failure is thrown, once the session's position is known.
  void say(const v1::Values& prompt);

  // Continues in a copy of the session; the original stays as it is.
  void fork();
  // Takes back the last turns. Throws UsageError where fewer were made here.
  void take_back(std::uint64_t turns);
  // Takes back what came from this position on.
  void go_back_to(std::int64_t position);
  // Continues another session of the model.
  void change_to(const std::string& session);
  void save(const std::string& file) const;  // as a snapshot
  // Deletes the sessions that it made.
  void end();

  v1::Sampling& sampling() { return *request_.mutable_sampling(); }
  const std::string& session() const { return session_; }
  std::int64_t position() const { return position_; }
  // Whether the default limit of new tokens ended a turn.
  bool ended_by_default() const { return ended_by_default_; }
  std::uint32_t most_tokens() const { return request_.max_new_tokens(); }

 private:
  std::string new_session() const;
  void rewind(std::int64_t position);
  // Waits until the server is done with the last call, and looks where it ended.
  void look();

  const Setting setting_;
  Console& console_;
  v1::GenerateRequest request_;
  std::string session_;
  std::vector<std::string> made_;    // sessions
  std::int64_t position_ = 0;        // of the session
  std::vector<std::int64_t> turns_;  // where each began
  bool ended_by_default_ = false;
};

// Refuses flags that make no sense with it. Throws UsageError.
void check_interactive(const GenerateFlags& flags);

// Reads lines of a terminal or a pipe until /quit or their end: each is a session's prompt or a
// command. Returns an ExitCode: kFailed where a line of a pipe failed.
int run_interactive(const Conversation::Setting& setting, v1::GenerateRequest request,
                    Console& console);

}  // namespace lintel::cli
