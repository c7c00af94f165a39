// SPDX-License-Identifier: Apache-2.0
#include "client/cli/generate_output.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>

#include "client/cli/output.h"

namespace lintel::cli {
namespace {

std::string counted(std::uint64_t number, const std::string& one) {
  return std::to_string(number) + " " + one + (number == 1 ? "" : "s");
}

// Three digits at least, as people read rates.
std::string rate_text(double rate) {
  char text[32];
  std::snprintf(text, sizeof text, rate < 1000 ? "%.1f" : "%.0f", rate);
  return std::string(text) + "/s";
}

std::string time_text(double seconds) {
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  }
  return text;
}

}  // namespace

void GenerationSpeed::on_chunk(const v1::Chunk& chunk) {
  if (first_ || chunk.source() == v1::VALUE_SOURCE_PROMPT || chunk.tokens_size() == 0) return;
  first_ = Clock::now();
}

std::string GenerationSpeed::prompt_text() const {
  // The samples of a call share its prompt: the first one read it.
  const v1::SampleFinish& finish = finishes_.front();
  if (finish.prompt_tokens() == 0 && finish.cached_tokens() == 0) return "";
  std::string text = "; prompt: " + counted(finish.prompt_tokens(), "token");
  const double seconds = seconds_of(finish.timings().prompt());
  if (finish.prompt_tokens() > 0 && seconds > 0) {
    text += " at " + rate_text(finish.prompt_tokens() / seconds);
  }
  if (finish.cached_tokens() > 0) {
    text += ", " + std::to_string(finish.cached_tokens()) + " more from the cache";
  }
  if (finish.skipped_tokens() > 0) {
    text += ", " + std::to_string(finish.skipped_tokens()) + " before its window not read";
  }
  return text;
}

std::string GenerationSpeed::text() const {
  if (finishes_.empty()) return "nothing was generated";
  std::uint64_t tokens = 0;
  double seconds = 0;  // of the sample that took longest; they run at the same time
  for (const v1::SampleFinish& finish : finishes_) {
    tokens += finish.generated_tokens();
    seconds = std::max(seconds, seconds_of(finish.timings().generation()));
  }
  std::string text = finishes_.size() > 1 ? counted(finishes_.size(), "sample") + ", " : "";
  text += counted(tokens, "token");
  // The time is from a sample's first token to its last.
  if (tokens > finishes_.size() && seconds > 0) {
    text += " at " + rate_text(static_cast<double>(tokens - finishes_.size()) / seconds);
  }
  if (first_) {
    text +=
        ", the first after " + time_text(std::chrono::duration<double>(*first_ - start_).count());
  }
  return text + prompt_text();
}

Waiting::Waiting(Console& console, std::string what, std::chrono::milliseconds period)
    : Waiting(
          console, [what = std::move(what)](Cancellation&) { return what; }, period) {}

Waiting::Waiting(Console& console, What what, std::chrono::milliseconds period)
    : console_(console), what_(std::move(what)), period_(period) {
  if (console_.err_is_terminal()) thread_ = std::thread([this] { draw_until_stopped(); });
}

void Waiting::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  cancellation_.cancel();
  thread_.join();
}

void Waiting::draw_until_stopped() {
  const auto start = std::chrono::steady_clock::now();
  bool drawn = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, period_, [this] { return stopping_; })) {
    lock.unlock();
    const std::string what = what_(cancellation_);
    lock.lock();
    if (stopping_) break;
    const auto elapsed =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start);
    console_.err("\r\x1b[K" + what + ", " + std::to_string(elapsed.count()) + " s");
    drawn = true;
  }
  if (drawn) console_.err("\r\x1b[K");
}

namespace {

void append_byte(std::string& text, std::int32_t token) {
  if (token < 0 || token > 255) {
    throw Failure("token " + std::to_string(token) + " is no byte; try --format tokens");
  }
  text += static_cast<char>(token);
}

// A sample's seed, where the request has one: the server says it as the sample ends only.
std::optional<std::uint64_t> known_seed(const v1::GenerateRequest& request, std::uint32_t sample) {
  if (!request.sampling().has_seed()) return std::nullopt;
  return request.sampling().seed() + sample;
}

// Prints one Generate call.
//
//   text    the bytes as they are, while they stream; several samples one after another under
//           a line "--- sample I, seed S". A newline ends them on a terminal.
//   tokens  ids separated by commas, a line per sample, while they stream when there is one sample
//   jsonl   one object per sample and line, keys as in `lintel generate --help`
//
// Ends with on_end() or, when the call failed, on_failure(), which prints what of the samples had
// come, if anything had.
class GenerationPrinter {
 public:
  virtual ~GenerationPrinter() = default;
  virtual void on_chunk(const v1::Chunk& chunk) = 0;
  virtual void on_finish(const v1::SampleFinish& finish) = 0;
  virtual void on_end() = 0;
  virtual void on_failure(grpc::StatusCode code) = 0;
};

// Streams a single sample, collects several to print them one after another.
class TextPrinter : public GenerationPrinter {
 public:
  TextPrinter(Console& console, std::uint32_t num_samples, const v1::GenerateRequest& request)
      : console_(console), request_(request), streams_(num_samples == 1), samples_(num_samples) {}

  void on_chunk(const v1::Chunk& chunk) override {
    std::string& text = samples_[chunk.sample()].text;
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      if (i < chunk.token_bytes_size()) {
        text += chunk.token_bytes(i);
      } else {
        append_byte(text, chunk.tokens(i));
      }
    }
    if (!streams_) return;
    console_.out(text);
    console_.flush();
    text.clear();
  }

  void on_finish(const v1::SampleFinish& finish) override {
    samples_[finish.sample()].seed = finish.seed();
    samples_[finish.sample()].finished = true;
    samples_[finish.sample()].limited = finish.reason() == v1::FINISH_REASON_DEADLINE;
  }

  void on_end() override {
    if (!streams_) return print();
    if (console_.out_is_terminal()) console_.out("\n");
  }

  void on_failure(grpc::StatusCode) override {
    if (!streams_) print();
  }

 private:
  struct OneSample {
    std::string text;
    std::optional<std::uint64_t> seed;
    bool finished = false;
    bool limited = false;  // the time limit ended it
  };

  void print() {
    for (std::uint32_t i = 0; i < samples_.size(); ++i) {
      const OneSample& sample = samples_[i];
      if (!sample.finished && sample.text.empty()) continue;  // nothing of it has come
      const auto seed = sample.seed ? sample.seed : known_seed(request_, i);
      console_.out("--- sample " + std::to_string(i) +
                   (seed ? ", seed " + std::to_string(*seed) : "") +
                   (sample.finished ? "" : ", cut short") +
                   (sample.limited ? ", ended by the time limit" : "") + "\n" + sample.text + "\n");
    }
  }

  Console& console_;
  const v1::GenerateRequest& request_;
  const bool streams_;
  std::vector<OneSample> samples_;
};

class TokensPrinter : public GenerationPrinter {
 public:
  TokensPrinter(Console& console, std::uint32_t num_samples, bool log_probs)
      : console_(console), streams_(num_samples == 1), log_probs_(log_probs), lines_(num_samples) {}

  void on_chunk(const v1::Chunk& chunk) override {
    Line& line = lines_[chunk.sample()];
    for (int i = 0; i < chunk.tokens_size(); ++i) {
      if (!line.empty) line.text += ',';
      line.empty = false;
      line.text += std::to_string(chunk.tokens(i));
      if (log_probs_ && i < chunk.log2_probs_size()) {
        line.text += ':' + JsonWriter().value(chunk.log2_probs(i)).take();
      }
    }
    if (!streams_) return;
    console_.out(line.text);
    console_.flush();
    line.text.clear();
  }

  void on_finish(const v1::SampleFinish&) override {}

  void on_end() override {
    for (const Line& line : lines_) console_.out(line.text + "\n");
  }

  // Line i is sample i: those of which nothing has come are empty.
  void on_failure(grpc::StatusCode) override {
    const bool any =
        std::any_of(lines_.begin(), lines_.end(), [](const Line& l) { return !l.empty; });
    if (any && !streams_) on_end();
  }

 private:
  struct Line {
    std::string text;
    bool empty = true;
  };
  Console& console_;
  const bool streams_;
  const bool log_probs_;
  std::vector<Line> lines_;
};

void write_tokens(JsonWriter& json, const std::vector<std::int32_t>& tokens) {
  json.begin_array();
  for (const std::int32_t token : tokens) json.value(token);
  json.end_array();
}

void write_log2_probs(JsonWriter& json, const std::vector<std::optional<float>>& log2_probs) {
  json.begin_array();
  for (const std::optional<float>& log2_prob : log2_probs) {
    log2_prob ? json.value(*log2_prob) : json.null();
  }
  json.end_array();
}

void write_top(JsonWriter& json, const std::vector<v1::TopValues>& top) {
  json.begin_array();
  for (const v1::TopValues& likely : top) {
    json.begin_array();
    for (int i = 0; i < std::min(likely.tokens_size(), likely.log2_probs_size()); ++i) {
      json.begin_object();
      json.field("token", likely.tokens(i)).field("log2_prob", likely.log2_probs(i));
      json.end_object();
    }
    json.end_array();
  }
  json.end_array();
}

// Optional parts of a sample in jsonl.
struct JsonParts {
  bool prompt = false;
  bool top = false;
  bool text = false;
  bool is_bytes = false;  // a token is a byte of the text
};

// Writes the positions of a sample's tokens, in any state of it.
void write_positions(JsonWriter& json, const Sample& sample, const JsonParts& parts) {
  json.field("first_position", sample.first_position);
  if (std::find(sample.given.begin(), sample.given.end(), true) != sample.given.end()) {
    json.key("given_positions").begin_array();
    for (std::size_t i = 0; i < sample.given.size(); ++i) {
      if (sample.given[i]) json.value(sample.first_position + static_cast<std::int64_t>(i));
    }
    json.end_array();
  }
  if (parts.top) {
    json.key("top");
    write_top(json, sample.top);
  }
  if (parts.prompt) {
    json.key("prompt");
    write_tokens(json, sample.prompt);
    json.key("prompt_log2_probs");
    write_log2_probs(json, sample.prompt_log2_probs);
  }
}

// Bytes as text: those that are no UTF-8, at a cut for one, are U+FFFD there.
std::string text_of(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) append_byte(text, token);
  return text;
}

void write_sample_tokens(JsonWriter& json, const Sample& sample, const JsonParts& parts) {
  json.key("tokens");
  write_tokens(json, sample.tokens);
  if (parts.text) json.field("text", parts.is_bytes ? text_of(sample.tokens) : sample.text);
  json.key("log2_probs");
  write_log2_probs(json, sample.log2_probs);
}

// A sample that a failure of the call cut short: the server's account of it is missing.
std::string cut_sample_json(const Sample& sample, std::uint32_t index,
                            std::optional<std::uint64_t> seed, grpc::StatusCode code,
                            const JsonParts& parts) {
  JsonWriter json;
  json.begin_object();
  json.field("sample", index);
  write_sample_tokens(json, sample, parts);
  json.key("finish_reason");
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED) {
    json.value(finish_reason_name(v1::FINISH_REASON_DEADLINE));
  } else if (code == grpc::StatusCode::CANCELLED) {
    json.value(finish_reason_name(v1::FINISH_REASON_CANCELLED));
  } else {
    json.null();
  }
  if (seed) json.field("seed", *seed);
  write_positions(json, sample, parts);
  json.end_object();
  return json.take();
}

// One sample as a line, without the newline.
std::string sample_json(const Sample& sample, const JsonParts& parts) {
  const v1::SampleFinish& finish = sample.finish;
  JsonWriter json;
  json.begin_object();
  json.field("sample", finish.sample());
  write_sample_tokens(json, sample, parts);
  json.field("finish_reason", finish_reason_name(finish.reason()));
  if (!finish.stop_string().empty()) json.field("stop_string", finish.stop_string());
  json.field("seed", finish.seed());
  write_positions(json, sample, parts);
  json.field("prompt_tokens", finish.prompt_tokens());
  json.field("reused_tokens", finish.reused_tokens());
  json.field("generated_tokens", finish.generated_tokens());
  json.field("given_tokens", finish.given_tokens());
  json.field("drafted_tokens", finish.drafted_tokens());
  json.field("accepted_tokens", finish.accepted_tokens());
  json.field("position", finish.position());
  if (finish.replayed_tokens() > 0) json.field("replayed_tokens", finish.replayed_tokens());
  if (finish.cached_tokens() > 0) json.field("cached_tokens", finish.cached_tokens());
  if (finish.skipped_tokens() > 0) json.field("skipped_tokens", finish.skipped_tokens());
  if (finish.window() > 0) {
    json.field("window", finish.window()).field("window_restarts", finish.window_restarts());
  }
  if (!finish.digest().empty()) json.field("digest", finish.digest());
  json.key("timings").begin_object();
  json.field("queued_seconds", seconds_of(finish.timings().queued()));
  json.field("prompt_seconds", seconds_of(finish.timings().prompt()));
  json.field("generation_seconds", seconds_of(finish.timings().generation()));
  json.field("per_token_seconds", seconds_of(finish.timings().per_token()));
  json.end_object();
  json.end_object();
  return json.take();
}

class JsonlPrinter : public GenerationPrinter {
 public:
  JsonlPrinter(Console& console, const v1::GenerateRequest& request, bool is_bytes)
      : console_(console),
        request_(request),
        parts_{.prompt = request.echo_prompt(),
               .top = request.top_log2_probs() > 0,
               .text = is_bytes || request.token_bytes(),
               .is_bytes = is_bytes} {}

  void on_chunk(const v1::Chunk& chunk) override { collector_.add(chunk); }
  void on_finish(const v1::SampleFinish& finish) override { collector_.finish(finish); }

  void on_end() override {
    for (const Sample& sample : collector_.samples()) print(sample);
  }

  void on_failure(grpc::StatusCode code) override {
    const std::vector<Sample>& samples = collector_.samples();
    for (std::uint32_t i = 0; i < samples.size(); ++i) {
      const Sample& sample = samples[i];
      if (sample.finish.reason() != v1::FINISH_REASON_UNSPECIFIED) {
        print(sample);
      } else if (!sample.tokens.empty() || !sample.prompt.empty()) {
        console_.out(cut_sample_json(sample, i, known_seed(request_, i), code, parts_) + "\n");
      }
    }
  }

 private:
  void print(const Sample& sample) { console_.out(sample_json(sample, parts_) + "\n"); }

  Console& console_;
  const v1::GenerateRequest& request_;
  const JsonParts parts_;
  SampleCollector collector_;
};

// Console and request must outlive the printer.
std::unique_ptr<GenerationPrinter> make_printer(const PrintOptions& options, Console& console,
                                                const v1::GenerateRequest& request) {
  const std::uint32_t num_samples = request.has_num_samples() ? request.num_samples() : 1;
  if (options.format == "jsonl") {
    return std::make_unique<JsonlPrinter>(console, request, options.is_bytes);
  }
  if (options.format == "tokens") {
    return std::make_unique<TokensPrinter>(console, num_samples, request.log2_probs());
  }
  return std::make_unique<TextPrinter>(console, num_samples, request);
}

}  // namespace

std::string finish_reason_name(v1::FinishReason reason) {
  std::string name = v1::FinishReason_Name(reason);
  const std::string prefix = "FINISH_REASON_";
  if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name.empty() ? std::to_string(static_cast<int>(reason)) : name;
}

double seconds_of(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

namespace {

std::string reading_text(const v1::GenerateRequest& request) {
  const v1::Values& prompt = request.prompt();
  const std::size_t size = prompt.has_text() ? prompt.text().size()
                                             : static_cast<std::size_t>(prompt.tokens().ids_size());
  return size == 0 ? "waiting for the first token"
                   : "waiting for the first token after a prompt of " + std::to_string(size);
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

// "the time limit of 0.5 s ended it after 120 tokens"; nothing where it ended no sample.
std::string time_limit_text(const v1::GenerateRequest& request,
                            const std::vector<v1::SampleFinish>& finishes) {
  std::size_t ended = 0;
  std::uint64_t tokens = 0;
  for (const v1::SampleFinish& finish : finishes) {
    if (finish.reason() != v1::FINISH_REASON_DEADLINE) continue;
    ++ended;
    tokens += finish.generated_tokens();
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
  return text + " after " + counted(tokens, "token");
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
  std::int64_t position = 0;  // after the last token that came
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
    printer->on_failure(error.code());  // output from before is the user's
    if (note.said()) {
      console.flush();
      console.err(
          "lintel: gave up " +
          (position == 0 ? "before the first token" : "at position " + std::to_string(position)) +
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
