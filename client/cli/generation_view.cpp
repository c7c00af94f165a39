#include "client/cli/generation_view.h"

#include <sstream>
#include <utility>

#include "client/cli/generation_speed.h"
#include "client/cli/waiting.h"

namespace lintel::cli {
namespace {

std::string reading_text(const v1::GenerateRequest& request) {
  const v1::Values& prompt = request.prompt();
  const std::size_t size = prompt.has_text() ? prompt.text().size()
                                             : static_cast<std::size_t>(prompt.tokens().ids_size());
  return size == 0 ? "waiting for the first value"
                   : "waiting for the first value after a prompt of " + std::to_string(size);
}

// Says why and for how long a call waits to be repeated: on a terminal in a line that is erased
// when the call resumes, elsewhere once.
class RepeatNote {
 public:
  explicit RepeatNote(Console& console) : console_(console) {}
  ~RepeatNote() { erase(); }

  void on_pause(const Client::Pause& pause) {
    const bool terminal = console_.err_is_terminal();
    if (said_ && !terminal) return;
    said_ = true;
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(pause.left).count();
    const std::string text =
        "lintel: " + reason(pause.error) + "; trying again for " + std::to_string(seconds) + " s";
    console_.err(terminal ? "\r\x1b[K" + text : text + "\n");
    drawn_ = terminal;
  }

  void erase() {
    if (std::exchange(drawn_, false)) console_.err("\r\x1b[K");
  }

  bool said() const { return said_; }

 private:
  static std::string reason(const CallError& error) {
    const grpc::StatusCode code = error.code();
    if (error.message().find("session store") != std::string::npos) {
      return code == grpc::StatusCode::RESOURCE_EXHAUSTED ? "the session store is full"
                                                          : "the session store is unavailable";
    }
    if (code == grpc::StatusCode::ABORTED) return "the session is still in use";
    if (code == grpc::StatusCode::RESOURCE_EXHAUSTED) return "the server is full";
    return "the server is away";
  }

  Console& console_;
  bool said_ = false;
  bool drawn_ = false;  // there is something to erase
};

// "the time limit of 0.5 s ended it after 120 values"; nothing where it ended no sample.
std::string time_limit_text(const v1::GenerateRequest& request,
                            const std::vector<v1::SampleFinish>& finishes) {
  std::size_t ended = 0;
  std::uint64_t values = 0;
  for (const v1::SampleFinish& finish : finishes) {
    if (finish.reason() != v1::FINISH_REASON_DEADLINE) continue;
    ++ended;
    values += finish.generated_tokens();
  }
  if (ended == 0) return "";
  std::string text = "the time limit";
  if (request.has_time_limit()) {
    std::ostringstream seconds;
    seconds << seconds_of(request.time_limit());
    text += " of " + seconds.str() + " s";
  }
  text += finishes.size() == 1 ? " ended it"
                               : " ended " + std::to_string(ended) + " of " +
                                     std::to_string(finishes.size()) + " samples";
  return text + " after " + std::to_string(values) + (values == 1 ? " value" : " values");
}

}  // namespace

std::vector<v1::SampleFinish> generate_in_view(const Client& client,
                                               const v1::GenerateRequest& request,
                                               const ViewOptions& options, Console& console,
                                               Cancellation& cancellation) {
  const auto printer = make_printer(options.print, console, request);
  std::vector<v1::SampleFinish> finishes;
  GenerationSpeed speed;
  std::optional<Waiting> waiting;
  if (!options.quiet) waiting.emplace(console, reading_text(request));
  RepeatNote note(console);
  const auto something_came = [&] {
    if (waiting) waiting->stop();
    note.erase();
  };
  std::int64_t position = 0;  // behind the last value that came
  Client::Repeat repeat;
  repeat.patience = options.patience;
  repeat.on_pause = [&](const Client::Pause& pause) {
    if (waiting) waiting->stop();
    note.on_pause(pause);
  };
  try {
    client.generate(
        request,
        [&](const v1::Chunk& chunk) {
          something_came();
          position = chunk.first_position() + chunk.tokens_size();
          speed.on_chunk(chunk);
          printer->on_chunk(chunk);
        },
        [&](const v1::SampleFinish& finish) {
          something_came();
          finishes.push_back(finish);
          speed.on_finish(finish);
          printer->on_finish(finish);
        },
        repeat, &cancellation);
  } catch (const CallError& error) {
    something_came();
    printer->on_failure(error.code());  // what came before is the user's
    if (note.said()) {
      console.flush();
      console.err(
          "lintel: gave up " +
          (position == 0 ? "before the first value" : "at position " + std::to_string(position)) +
          "; `lintel session get " + request.session_id() + "` says what is stored\n");
    }
    throw;
  }
  printer->on_end();
  console.flush();
  const std::string limited = time_limit_text(request, finishes);
  if (!limited.empty() && !options.quiet) console.err("lintel: " + limited + "\n");
  if (options.shows_speed) console.err("lintel: " + speed.text() + "\n");
  return finishes;
}

}  // namespace lintel::cli
