#include "client/cli/conversation.h"

#include <chrono>
#include <utility>

#include "client/cli/generation_defaults.h"
#include "client/cli/output_file.h"

namespace lintel::cli {

Conversation::Conversation(const Setting& setting, v1::GenerateRequest request, Console& console)
    : setting_(setting), console_(console), request_(std::move(request)) {
  // The session has them.
  request_.clear_model();
  request_.clear_adapter();
  request_.clear_initial_state();
  request_.clear_window();
  request_.clear_prompt();
  if (setting_.flags.session_id.empty()) {
    session_ = new_session();
    made_.push_back(session_);
  } else {
    session_ = setting_.flags.session_id;
  }
  look();
}

std::string Conversation::new_session() const {
  const GenerateFlags& flags = setting_.flags;
  v1::CreateSessionRequest create;
  create.set_model(setting_.model.name());
  create.set_adapter(flags.adapter);
  create.set_initial_state(flags.initial_state);
  if (flags.window) create.set_window(*flags.window);
  const v1::Session made = setting_.client.create_session(create, &console_.cancellation());
  if (!flags.window && made.window() > 0 && !flags.quiet) console_.err(window_note(made.window()));
  return made.id();
}

void Conversation::say(const v1::Values& prompt) {
  v1::GenerateRequest request = request_;
  request.set_session_id(session_);
  *request.mutable_prompt() = prompt;
  const std::int64_t begin = position_;
  ended_by_default_ = false;
  Console::Interruptible interruptible(console_);
  try {
    const auto finishes = generate_in_view(setting_.client, request, setting_.view, console_,
                                           interruptible.cancellation());
    // On a terminal, and of ids, the line is ended.
    if (setting_.view.print.format == "text" && !console_.out_is_terminal()) console_.out("\n");
    console_.flush();
    position_ = finishes.front().position();
    ended_by_default_ = !setting_.flags.max_new_tokens && request.has_max_new_tokens() &&
                        finishes.front().reason() == v1::FINISH_REASON_LENGTH;
  } catch (const CallError&) {
    console_.out("\n");
    console_.flush();
    if (console_.cancellation().cancelled()) throw;
    const bool interrupted = interruptible.cancellation().cancelled();
    try {
      look();
    } catch (const CallError&) {  // what failed first says more
    }
    if (position_ > begin) turns_.push_back(begin);
    if (!interrupted) throw;
    console_.err("lintel: stopped at position " + std::to_string(position_) + "\n");
    return;
  }
  turns_.push_back(begin);
}

void Conversation::look() {
  constexpr std::chrono::milliseconds kPause{20};
  constexpr int kMostPauses = 500;
  v1::Session session = setting_.client.get_session(session_, &console_.cancellation());
  for (int i = 0; i < kMostPauses && session.busy(); ++i) {
    console_.cancellation().wait_for(kPause);
    session = setting_.client.get_session(session_, &console_.cancellation());
  }
  if (session.model() != setting_.model.name()) {
    throw UsageError("session " + session_ + " is one of model " + session.model() + ", not of " +
                     setting_.model.name());
  }
  position_ = session.position();
}

void Conversation::fork() {
  v1::ForkSessionRequest request;
  request.set_id(session_);
  request.set_count(1);
  session_ = setting_.client.fork_session(request, &console_.cancellation()).front().id();
  made_.push_back(session_);
}

void Conversation::rewind(std::int64_t position) {
  v1::RewindSessionRequest request;
  request.set_id(session_);
  request.set_position(position);
  position_ = setting_.client.rewind_session(request, &console_.cancellation()).position();
  while (!turns_.empty() && turns_.back() >= position_) turns_.pop_back();
}

void Conversation::take_back(std::uint64_t turns) {
  if (turns == 0) return;
  if (turns > turns_.size()) {
    throw UsageError(std::to_string(turns_.size()) +
                     " turns were made here; /rewind @P takes back all from position P on");
  }
  rewind(turns_[turns_.size() - turns]);
}

void Conversation::go_back_to(std::int64_t position) { rewind(position); }

void Conversation::change_to(const std::string& session) {
  const std::string before = std::exchange(session_, session);
  try {
    look();
  } catch (...) {
    session_ = before;
    throw;
  }
  turns_.clear();
}

void Conversation::save(const std::string& file) const {
  OutputFile out("/save", file);
  v1::SnapshotSessionRequest request;
  request.set_id(session_);
  out.write(setting_.client.snapshot_session(request, &console_.cancellation()));
}

void Conversation::end() {
  for (const std::string& session : made_) {
    try {
      setting_.client.delete_session(session, &console_.cancellation());
    } catch (const CallError& error) {  // it may be gone already
      if (error.code() != grpc::StatusCode::NOT_FOUND) throw;
    }
  }
  made_.clear();
}

}  // namespace lintel::cli
