// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/console.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"
#include "model/core/json_reader.h"

namespace lintel::cli {
namespace {

// Sequences for `lintel score`, one at a time.

struct ScoreItem {
  v1::Values values;
  std::string name;  // for messages: "sequences.jsonl:17" or "image 17"
  // Scored tokens before those that count: they are context of a window of a text.
  int num_context = 0;
};

class ScoreInput {
 public:
  virtual ~ScoreInput() = default;
  // Nothing at the end. Throws Failure naming the item when it makes no sense.
  virtual std::optional<ScoreItem> next() = 0;
};

constexpr std::size_t kMaxLineBytes = 64 * 1024 * 1024;

v1::Values parse_line(const std::string& line, const std::string& name) {
  // A file of the user's own: as large as a line may be.
  JsonFailure failure;
  auto read = read_json_tree(line, {.max_bytes = std::int64_t{4} << 30}, failure);
  if (!read) throw Failure(name + ": no JSON");
  nlohmann::json json = *std::move(read);
  if (json.is_object()) {
    if (json.contains("text") && json["text"].is_string()) {
      return text_values(json["text"].get_ref<const std::string&>());
    }
    if (!json.contains("tokens")) {
      throw Failure(name + ": an object without \"tokens\" or \"text\"");
    }
    json = nlohmann::json(std::move(json["tokens"]));
  }
  if (!json.is_array()) throw Failure(name + ": no array of token ids");
  std::vector<std::int32_t> tokens;
  tokens.reserve(json.size());
  for (const auto& id : json) {
    // Unsigned ones past int64 would turn negative in get().
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() &&
         id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) ||
        id.get<std::int64_t>() < std::numeric_limits<std::int32_t>::min()) {
      throw Failure(name + ": token " + std::to_string(tokens.size()) + " is " +
                    id.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                    ", which is no token id");
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  if (tokens.size() < 2) {
    throw Failure(name + ": " + std::to_string(tokens.size()) +
                  " token(s); the first is given and never scored, so at least 2 are needed");
  }
  return token_values(tokens);
}

// Lines of JSON: an array of token ids, or an object with such an array under "tokens" or with a
// text under "text". Lines with nothing but white space are refused like any other that is no JSON.
// `file` "-": standard input.
class JsonlInput : public ScoreInput {
 public:
  JsonlInput(const std::string& file, Console& console)
      : console_(console), from_console_(file == "-"), name_(from_console_ ? "line " : file + ":") {
    if (from_console_) return;
    in_.open(file, std::ios::binary);
    if (!in_) throw Failure("--input " + file + ": cannot be opened: " + std::strerror(errno));
  }

  std::optional<ScoreItem> next() override {
    const std::optional<std::string> line = next_line();
    if (!line) return std::nullopt;
    const std::string name = name_ + std::to_string(++line_number_);
    if (line->size() > kMaxLineBytes) throw Failure(name + ": longer than 64 MiB");
    return ScoreItem{parse_line(*line, name), name};
  }

 private:
  std::optional<std::string> next_line() {
    if (from_console_) return console_.read_line();
    std::string line;
    if (std::getline(in_, line)) return line;
    if (in_.bad()) throw Failure(name_ + std::to_string(line_number_ + 1) + ": cannot be read");
    return std::nullopt;
  }

  Console& console_;
  const bool from_console_;
  const std::string name_;
  std::ifstream in_;
  std::int64_t line_number_ = 0;
};

// The images, in this order.
class ImageInput : public ScoreInput {
 public:
  explicit ImageInput(std::vector<IndexedImage> images) : images_(std::move(images)) {}

  std::optional<ScoreItem> next() override {
    if (next_ == images_.size()) return std::nullopt;
    const auto& [index, image] = images_[next_++];
    const std::vector<std::int32_t> tokens(image.pixels.begin(), image.pixels.end());
    return ScoreItem{token_values(tokens), "image " + std::to_string(index)};
  }

 private:
  const std::vector<IndexedImage> images_;
  std::size_t next_ = 0;
};

// A text in windows of `context` predicted tokens that advance by half a window, each from position
// 0 on. A window counts its second half, the first one both: every token after the first is counted
// once, and all but the first `context` are predicted from at least context/2 tokens.
class TextInput : public ScoreInput {
 public:
  // unit: what tokens are, in messages.
  TextInput(std::vector<std::int32_t> tokens, std::int64_t context, std::string unit)
      : tokens_(std::move(tokens)),
        last_(static_cast<std::int64_t>(tokens_.size()) - 1),
        context_(context),
        unit_(std::move(unit)) {}

  std::optional<ScoreItem> next() override {
    if (counted_ >= last_) return std::nullopt;
    const std::int64_t end = std::min(begin_ + context_, last_);
    const std::span window = std::span(tokens_).subspan(static_cast<std::size_t>(begin_),
                                                        static_cast<std::size_t>(end - begin_ + 1));
    ScoreItem item{.values = token_values(window),
                   .name = unit_ + "s " + std::to_string(begin_) + " to " + std::to_string(end),
                   .num_context = static_cast<int>(counted_ - begin_)};
    counted_ = end;
    begin_ += half_window();
    return item;
  }

  std::int64_t num_windows() const {
    const std::int64_t half = half_window();
    return 1 + std::max<std::int64_t>(last_ - context_ + half - 1, 0) / half;
  }

 private:
  std::int64_t half_window() const { return std::max<std::int64_t>(context_ / 2, 1); }

  const std::vector<std::int32_t> tokens_;
  const std::int64_t last_;  // index of the last token
  const std::int64_t context_;
  const std::string unit_;
  std::int64_t begin_ = 0;    // of the next window
  std::int64_t counted_ = 0;  // tokens up to this one
};

constexpr const char* kScoreFooter = R"(
Each input line is a JSON array of token ids, an object with one under "tokens", or, of models with a
tokenizer, an object with a text under "text". Each output line is {"bits_per_dim": X, "log2_probs":
[...]}, with one log2-probability for every token after the first, which is given and never scored;
bits_per_dim is minus their mean. Of a text the line also has all its tokens, and what each adds to the
text, under "texts" (a part of a character is U+FFFD). A summary goes to standard error.

--text takes a file of any length: windows of --context tokens overlap by half, each token is predicted
from at least half a window before it (but in the first one), and a line holds those it is first to
predict.

Examples:
  lintel score --input sequences.jsonl --output scores.jsonl
  lintel score --input - < sequences.jsonl | jq .bits_per_dim
  echo '{"text": "Once upon a time"}' | lintel score --input -
  lintel score --images t10k-images-idx3-ubyte.gz --limit 100 --output /dev/null
  tail -c 111540 tinyshakespeare.txt | lintel score --text - --output /dev/null)";

// Limits of one Score call: enough to fill the server's batches, not too much to hold.
constexpr int kMaxSequences = 64;
constexpr std::int64_t kMaxTokens = 200'000;

constexpr std::int64_t kDefaultContext = 512;  // as training/lintel_training/evaluate.py

struct ScoreFlags {
  ConnectionFlags connection;
  std::string adapter;
  std::string input, output = "-", text;
  ImageFileFlags images;
  std::optional<std::uint32_t> context;
  std::optional<std::uint32_t> limit;
};

// Standard output, or a file.
class LineOutput {
 public:
  LineOutput(const std::string& file, Console& console) : console_(console) {
    if (file != "-") file_.emplace("--output", file);
  }
  void write(const std::string& line) {
    if (!file_) return console_.out(line + "\n");
    buffer_ += line + "\n";
    constexpr std::size_t kBufferBytes = 64 * 1024;
    if (buffer_.size() >= kBufferBytes) flush();
  }
  void flush() {
    if (!file_) return console_.flush();
    if (buffer_.empty()) return;  // write() empties the file
    file_->write(buffer_);
    buffer_.clear();
  }

 private:
  Console& console_;
  std::optional<OutputFile> file_;
  std::string buffer_;
};

struct ScoreTotals {
  std::int64_t sequences = 0;
  std::int64_t scored = 0;  // tokens
  std::int64_t tokens = 0;  // all of them
  double bits = 0;
};

// The scores of a sequence that count: those after its context.
struct Counted {
  Counted(const v1::ScoreResponse& score, int num_context)
      : num_tokens(score.log2_probs_size() - num_context),
        bits_per_dim(score.bits_per_dim()),
        log2_probs(score.log2_probs().data() + num_context, static_cast<std::size_t>(num_tokens)) {
    if (num_context == 0) return;
    double sum = 0.0;
    for (const float log2_prob : log2_probs) sum += log2_prob;
    bits_per_dim = -sum / num_tokens;
  }
  int num_tokens;
  double bits_per_dim;
  std::span<const float> log2_probs;
};

// `response`: of a text, whose tokens are named; else null.
std::string score_json(const Counted& score, const v1::ScoreResponse* response) {
  JsonWriter json;
  json.begin_object().field("bits_per_dim", score.bits_per_dim).key("log2_probs").begin_array();
  for (const float log2_prob : score.log2_probs) json.value(log2_prob);
  json.end_array();
  if (response != nullptr) {
    json.key("tokens").begin_array();
    for (const std::int32_t token : response->tokens()) json.value(token);
    json.end_array().key("texts").begin_array();
    for (const std::string& bytes : response->token_bytes()) json.value(bytes);
    json.end_array();
  }
  return json.end_object().take();
}

// "sequences[3].tokens" is the field of a refusal that concerns batch[3].
std::optional<std::size_t> refused_sequence(const CallError& error, std::size_t batch_size) {
  static const std::string kPrefix = "sequences[";
  for (const FieldViolation& violation : error.violations()) {
    if (violation.field.rfind(kPrefix, 0) != 0) continue;
    const std::size_t index = std::strtoul(violation.field.c_str() + kPrefix.size(), nullptr, 10);
    if (index < batch_size) return index;
  }
  return std::nullopt;
}

// The server's reasons against one sequence.
std::string refusal_of(const CallError& error, std::size_t index) {
  const std::string path = "sequences[" + std::to_string(index) + "]";
  std::string text;
  for (const FieldViolation& violation : error.violations()) {
    if (violation.field.rfind(path, 0) != 0) continue;
    text += (text.empty() ? "" : "; ") + violation.description;
  }
  return text + " (" + status_code_name(error.code()) + ")";
}

class Scorer {
 public:
  Scorer(std::string model, std::string adapter, std::chrono::milliseconds patience,
         const Client& client, LineOutput& output, Progress& progress, Cancellation& cancellation)
      : model_(std::move(model)),
        adapter_(std::move(adapter)),
        patience_(patience),
        client_(client),
        output_(output),
        progress_(progress),
        cancellation_(cancellation) {}

  void score(const std::vector<ScoreItem>& batch) {
    if (batch.empty()) return;
    v1::ScoreRequest request;
    request.set_model(model_);
    request.set_adapter(adapter_);
    for (const ScoreItem& item : batch) {
      *request.add_sequences() = item.values;
      if (item.values.has_text()) request.set_token_bytes(true);
    }
    const std::int64_t before = totals_.sequences;
    try {
      retry_when_full(
          cancellation_, patience_,
          [&] {
            client_.score(
                request, [&](const v1::ScoreResponse& score) { take(score, batch); },
                &cancellation_);
          },
          [&] { return totals_.sequences == before; });
    } catch (const CallError& error) {
      const auto refused = refused_sequence(error, batch.size());
      if (!refused) {
        output_.flush();  // output from before is the user's
        throw;
      }
      // The whole call was refused for it; those ahead of it are good.
      try {
        score({batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(*refused)});
      } catch (const CallError&) {  // the refusal at hand says more
      }
      throw Failure(batch[*refused].name + ": " + refusal_of(error, *refused));
    }
    output_.flush();
  }

  const ScoreTotals& totals() const { return totals_; }

 private:
  void take(const v1::ScoreResponse& score, const std::vector<ScoreItem>& batch) {
    const ScoreItem& item = batch.at(score.index());
    const Counted counted(score, item.num_context);
    output_.write(score_json(counted, item.values.has_text() ? &score : nullptr));
    totals_.sequences += 1;
    totals_.scored += counted.num_tokens;
    totals_.tokens += score.log2_probs_size() + 1;
    totals_.bits += counted.bits_per_dim * counted.num_tokens;
    progress_.add(1);
  }

  const std::string model_, adapter_;
  const std::chrono::milliseconds patience_;
  const Client& client_;
  LineOutput& output_;
  Progress& progress_;
  Cancellation& cancellation_;
  ScoreTotals totals_;
};

// Tokens at most: a text has no more of them than bytes and the token before it.
std::int64_t size_of(const v1::Values& values) {
  return values.has_text() ? static_cast<std::int64_t>(values.text().size()) + 1
                           : values.tokens().ids_size();
}

// Everything in batches. What precedes an item that makes no sense is scored before that is said.
void score_all(ScoreInput& input, Scorer& scorer, std::int64_t max_tokens, std::int64_t limit) {
  std::vector<ScoreItem> batch;
  std::int64_t tokens = 0;
  std::exception_ptr defect;
  for (std::int64_t taken = 0; taken < limit; ++taken) {
    std::optional<ScoreItem> item;
    try {
      item = input.next();
    } catch (const Failure&) {
      defect = std::current_exception();
    }
    if (!item) break;
    const std::int64_t size = size_of(item->values);
    if (batch.size() == kMaxSequences || (!batch.empty() && tokens + size > max_tokens)) {
      scorer.score(batch);
      batch.clear();
      tokens = 0;
    }
    batch.push_back(std::move(*item));
    tokens += size;
  }
  scorer.score(batch);
  if (defect) std::rethrow_exception(defect);
}

std::unique_ptr<ScoreInput> open_images(const ScoreFlags& flags, const v1::Model& model,
                                        std::int64_t& total, Console& console) {
  std::vector<IndexedImage> images = read_images_for(
      image_model(model), flags.images, std::numeric_limits<std::int64_t>::max(), console);
  total = std::min(total, static_cast<std::int64_t>(images.size()));
  return std::make_unique<ImageInput>(std::move(images));
}

std::unique_ptr<ScoreInput> open_text(const ScoreFlags& flags, const std::string& text,
                                      const Client& client, const v1::Model& model,
                                      std::int64_t& total, Console& console) {
  const bool is_bytes = model.modality() == "bytes";
  if (!is_bytes && model.tokenizer().empty()) {
    throw Failure("--text: model " + model.name() + " has no tokenizer");
  }
  std::vector<std::int32_t> tokens;
  if (is_bytes) {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  } else {
    v1::TokenizeRequest request;
    request.set_model(model.name());
    request.set_text(text);
    request.set_add_special(true);
    tokens = client.tokenize(request, &console.cancellation());
  }
  std::int64_t context = flags.context.value_or(kDefaultContext);
  if (model.max_length() > 0 && context > model.max_length()) {
    if (flags.context) {
      throw UsageError("--context " + std::to_string(context) + ": model " + model.name() +
                       " takes at most " + std::to_string(model.max_length()));
    }
    context = model.max_length();
  }
  auto input = std::make_unique<TextInput>(std::move(tokens), context, is_bytes ? "byte" : "token");
  total = std::min(total, input->num_windows());
  return input;
}

void check_flags(const ScoreFlags& flags) {
  const int sources = (flags.input.empty() ? 0 : 1) + (flags.images.file.empty() ? 0 : 1) +
                      (flags.text.empty() ? 0 : 1);
  if (sources != 1) throw UsageError("score: expected --input, --images or --text, one of them");
  if (flags.images.file.empty()) flags.images.check_unused();
  std::error_code ignored;  // of files that are not there
  if (flags.input != "-" && std::filesystem::equivalent(flags.input, flags.output, ignored)) {
    throw UsageError("--output " + flags.output + ": is what --input reads");
  }
  if (!flags.context) return;
  if (flags.text.empty()) throw UsageError("--context goes with --text");
  if (*flags.context == 0) throw UsageError("--context 0: expected at least 1 token");
}

// "1 sequence"
std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// text_unit: "byte" or "token", of a text; else empty.
std::string summary(const ScoreTotals& totals, const std::string& text_unit, double seconds) {
  const double bits = totals.scored > 0 ? totals.bits / static_cast<double>(totals.scored) : 0.0;
  char nats[40] = "";
  if (!text_unit.empty()) {
    std::snprintf(nats, sizeof nats, "%.4f nats/%s, ", bits * std::numbers::ln2, text_unit.c_str());
  }
  char rest[160];
  std::snprintf(rest, sizeof rest, ": %.4f bits/dim, %s%.0f tokens/s\n", bits, nats,
                static_cast<double>(totals.tokens) / std::max(seconds, 1e-9));
  return counted(totals.sequences, text_unit.empty() ? "sequence" : "window") + ", " +
         counted(totals.scored, "token") + rest;
}

int run_score(const ScoreFlags& flags, Console& console) {
  check_flags(flags);
  const Client client = flags.connection.connect();
  const bool of_text = !flags.text.empty();
  // Opened before the server is asked: what is wrong here needs no server to be said.
  std::unique_ptr<ScoreInput> input;
  if (!flags.input.empty()) input = std::make_unique<JsonlInput>(flags.input, console);
  std::string text;
  if (of_text) {
    text = console.read_file("--text", flags.text);
    if (text.size() < 2) throw Failure("--text " + flags.text + ": at least 2 bytes are needed");
  }
  LineOutput output(flags.output, console);
  const char* const modality = of_text ? "bytes" : flags.images.file.empty() ? "" : "image";
  const v1::Model model =
      choose_model(client, flags.connection.model, modality, console.cancellation());
  constexpr auto kEverything = std::numeric_limits<std::int64_t>::max();
  const std::int64_t limit = flags.limit ? *flags.limit : kEverything;
  std::int64_t total = limit;
  if (!input) {
    input = of_text ? open_text(flags, text, client, model, total, console)
                    : open_images(flags, model, total, console);
  }
  const std::int64_t served = model.limits().max_score_tokens();
  const std::int64_t max_tokens = served > 0 ? std::min(served, kMaxTokens) : kMaxTokens;

  const auto start = std::chrono::steady_clock::now();
  ScoreTotals totals;
  std::exception_ptr failure;
  {
    Progress progress(console, total == kEverything ? 0 : total, "sequences");
    Scorer scorer(model.name(), flags.adapter, flags.connection.deadline(), client, output,
                  progress, console.cancellation());
    try {
      score_all(*input, scorer, max_tokens, limit);
    } catch (...) {
      failure = std::current_exception();
    }
    totals = scorer.totals();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string text_unit = !of_text ? "" : model.modality() == "bytes" ? "byte" : "token";
  if (totals.sequences > 0) console.err(summary(totals, text_unit, seconds.count()));
  if (failure) std::rethrow_exception(failure);
  if (totals.sequences == 0 && limit > 0) {
    throw Failure("--input " + flags.input + ": holds no sequence");
  }
  return kOk;
}

}  // namespace

void add_score(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand("score", "Probabilities of given sequences");
  add_text(*command, "--input", flags->input, "FILE",
           "Sequences, a line each; - is standard input");
  add_text(*command, "--output", flags->output, "FILE", "Scores, a line each; - is standard output")
      ->capture_default_str();
  flags->images.add_to(*command, "Score images instead: IDX (also .gz) or PNG", "all");
  add_text(*command, "--text", flags->text, "FILE",
           "Score the tokens of a text instead; - is standard input");
  add_parsed(*command, "--context", flags->context, parse_uint32, "N",
             "Tokens of a text predicted in a window [512, or what the model takes]");
  add_parsed(*command, "--limit", flags->limit, parse_uint32, "N", "Score the first N only [all]");
  add_adapter_flag(*command, flags->adapter);
  flags->connection.add_to(*command);
  command->footer(kScoreFooter);
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_score(*flags, command_line.console); });
}

}  // namespace lintel::cli
