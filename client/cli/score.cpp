#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <numbers>
#include <span>

#include "client/cli/commands.h"
#include "client/cli/image_model.h"
#include "client/cli/json_writer.h"
#include "client/cli/progress.h"
#include "client/cli/score_input.h"
#include "client/image/image_file.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
Each input line is a JSON array of token ids, or an object with one under "tokens". Each output line
is {"bits_per_dim": X, "log2_probs": [...]}, with one log2-probability for every value after the
first, which is given and never scored; bits_per_dim is minus their mean. A summary goes to standard
error.

--text takes a file of any length: windows of --context bytes overlap by half, each byte is predicted
from at least half a window before it (but in the first one), and a line holds those it is first to
predict.

Examples:
  lintel score --input sequences.jsonl --output scores.jsonl
  lintel score --input - < sequences.jsonl | jq .bits_per_dim
  lintel score --images t10k-images-idx3-ubyte.gz --limit 100 --output /dev/null
  tail -c 111540 tinyshakespeare.txt | lintel score --text - --output /dev/null)";

// What goes into one Score call: enough to fill the server's batches, not too much to hold.
constexpr int kMaxSequences = 64;
constexpr std::int64_t kMaxTokens = 200'000;

constexpr std::int64_t kDefaultContext = 512;  // as training/lintel_training/evaluate.py

struct ScoreFlags {
  ConnectionFlags connection;
  std::string input, output = "-", images, index, text;
  std::optional<std::uint32_t> context;
  std::optional<std::uint32_t> limit;
};

// Standard output, or a file.
class LineOutput {
 public:
  LineOutput(const std::string& file, Console& console) : console_(console), name_(file) {
    if (file == "-") return;
    out_.open(file, std::ios::binary | std::ios::trunc);
    if (!out_) throw Failure(file + ": cannot be written: " + std::strerror(errno));
  }
  void write(const std::string& line) {
    if (name_ == "-") return console_.out(line + "\n");
    out_ << line << '\n';
    check();
  }
  void flush() {
    if (name_ == "-") return console_.flush();
    out_.flush();
    check();
  }

 private:
  void check() const {
    if (!out_) throw Failure(name_ + ": cannot be written: " + std::strerror(errno));
  }
  Console& console_;
  const std::string name_;
  std::ofstream out_;
};

struct Totals {
  std::int64_t sequences = 0;
  std::int64_t values = 0;  // scored ones
  std::int64_t tokens = 0;
  double bits = 0;
};

// What of a sequence's scores counts.
struct Counted {
  Counted(const v1::ScoreResponse& score, int num_context)
      : values(score.log2_probs_size() - num_context),
        bits_per_dim(score.bits_per_dim()),
        log2_probs(score.log2_probs().data() + num_context, static_cast<std::size_t>(values)) {
    if (num_context == 0) return;
    double sum = 0.0;
    for (const float log2_prob : log2_probs) sum += log2_prob;
    bits_per_dim = -sum / values;
  }
  int values;
  double bits_per_dim;
  std::span<const float> log2_probs;
};

std::string score_json(const Counted& score) {
  JsonWriter json;
  json.begin_object().field("bits_per_dim", score.bits_per_dim).key("log2_probs").begin_array();
  for (const float log2_prob : score.log2_probs) json.value(log2_prob);
  json.end_array().end_object();
  return json.take();
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

class Scorer {
 public:
  Scorer(const ScoreFlags& flags, const Client& client, LineOutput& output, Progress& progress,
         Cancellation& cancellation)
      : flags_(flags),
        client_(client),
        output_(output),
        progress_(progress),
        cancellation_(cancellation) {}

  void score(const std::vector<ScoreItem>& batch) {
    if (batch.empty()) return;
    v1::ScoreRequest request;
    request.set_model(flags_.connection.model);
    for (const ScoreItem& item : batch) *request.add_sequences() = token_values(item.tokens);
    const std::int64_t before = totals_.sequences;
    const auto patience = std::chrono::milliseconds(
        static_cast<std::int64_t>(flags_.connection.deadline_seconds * 1000));
    try {
      retry_when_full(
          cancellation_, patience,
          [&] {
            client_.score(
                request, [&](const v1::ScoreResponse& score) { take(score, batch); },
                &cancellation_);
          },
          [&] { return totals_.sequences == before; });
    } catch (const CallError& error) {
      const auto refused = refused_sequence(error, batch.size());
      if (!refused) throw;
      // The whole call was refused for it; those ahead of it are good.
      try {
        score({batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(*refused)});
      } catch (const CallError&) {  // the refusal at hand says more
      }
      throw Failure(batch[*refused].name + ": " + error.what());
    }
    output_.flush();
  }

  const Totals& totals() const { return totals_; }

 private:
  void take(const v1::ScoreResponse& score, const std::vector<ScoreItem>& batch) {
    const ScoreItem& item = batch.at(score.index());
    const Counted counted(score, item.num_context);
    output_.write(score_json(counted));
    totals_.sequences += 1;
    totals_.values += counted.values;
    totals_.tokens += static_cast<std::int64_t>(item.tokens.size());
    totals_.bits += counted.bits_per_dim * counted.values;
    progress_.add(1);
  }

  const ScoreFlags& flags_;
  const Client& client_;
  LineOutput& output_;
  Progress& progress_;
  Cancellation& cancellation_;
  Totals totals_;
};

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
    const auto size = static_cast<std::int64_t>(item->tokens.size());
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
                                        std::int64_t& total) {
  const ImageModel image = image_model(model);
  auto images = read_images(flags.images, image.height, image.width);
  const auto count = static_cast<std::int64_t>(images.size());
  auto indices = parse_indices(
      "--index", flags.index.empty() ? "0-" + std::to_string(count - 1) : flags.index, count);
  total = std::min(total, static_cast<std::int64_t>(indices.size()));
  return over_images(std::move(images), std::move(indices));
}

std::unique_ptr<ScoreInput> open_text(const ScoreFlags& flags, std::string text,
                                      const v1::Model& model, std::int64_t& total) {
  if (model.modality() != "bytes") {
    throw Failure("--text: the values of model " + model.name() + " are no bytes");
  }
  std::int64_t context = flags.context.value_or(kDefaultContext);
  if (model.max_length() > 0 && context > model.max_length()) {
    if (flags.context) {
      throw UsageError("--context " + std::to_string(context) + ": model " + model.name() +
                       " takes at most " + std::to_string(model.max_length()));
    }
    context = model.max_length();
  }
  total = std::min(total, num_windows(static_cast<std::int64_t>(text.size()), context));
  return over_text(std::move(text), context);
}

void check_flags(const ScoreFlags& flags) {
  const int sources =
      (flags.input.empty() ? 0 : 1) + (flags.images.empty() ? 0 : 1) + (flags.text.empty() ? 0 : 1);
  if (sources != 1) throw UsageError("score: expected --input, --images or --text, one of them");
  if (!flags.index.empty() && flags.images.empty()) throw UsageError("--index goes with --images");
  if (!flags.context) return;
  if (flags.text.empty()) throw UsageError("--context goes with --text");
  if (*flags.context == 0) throw UsageError("--context 0: expected at least 1 byte");
}

int run_score(const ScoreFlags& flags, Console& console) {
  check_flags(flags);
  const Client client = flags.connection.connect();
  // Opened before the server is asked: what is wrong here needs no server to be said.
  std::unique_ptr<ScoreInput> input;
  if (!flags.input.empty()) input = open_jsonl(flags.input, console);
  std::string text;
  if (!flags.text.empty()) {
    text = console.read_file(flags.text);
    if (text.size() < 2) throw Failure(flags.text + ": at least 2 bytes are needed");
  }
  const v1::Model model = client.get_model(flags.connection.model, &console.cancellation());
  std::int64_t limit = flags.limit ? *flags.limit : std::numeric_limits<std::int64_t>::max();
  std::int64_t total = limit;
  if (!input) {
    input = flags.text.empty() ? open_images(flags, model, total)
                               : open_text(flags, std::move(text), model, total);
  }
  const std::int64_t served = model.limits().max_score_tokens();
  const std::int64_t max_tokens = served > 0 ? std::min(served, kMaxTokens) : kMaxTokens;

  LineOutput output(flags.output, console);
  const auto start = std::chrono::steady_clock::now();
  Totals totals;
  {
    Progress progress(console, total == std::numeric_limits<std::int64_t>::max() ? 0 : total,
                      "sequences");
    Scorer scorer(flags, client, output, progress, console.cancellation());
    score_all(*input, scorer, max_tokens, limit);
    totals = scorer.totals();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double bits = totals.values > 0 ? totals.bits / static_cast<double>(totals.values) : 0.0;
  char nats[40] = "";
  if (!flags.text.empty()) {
    std::snprintf(nats, sizeof nats, "%.4f nats/byte, ", bits * std::numbers::ln2);
  }
  char summary[240];
  std::snprintf(summary, sizeof summary, "%lld %s, %lld values: %.4f bits/dim, %s%.0f tokens/s\n",
                static_cast<long long>(totals.sequences),
                flags.text.empty() ? "sequences" : "windows", static_cast<long long>(totals.values),
                bits, nats, static_cast<double>(totals.tokens) / std::max(seconds.count(), 1e-9));
  console.err(summary);
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
  add_text(*command, "--images", flags->images, "FILE",
           "Score images instead: IDX (also .gz) or PNG");
  add_text(*command, "--text", flags->text, "FILE",
           "Score the bytes of a text instead; - is standard input");
  add_parsed(*command, "--context", flags->context, parse_uint32, "N",
             "Bytes of a text predicted in a window [512, or what the model takes]");
  add_text(*command, "--index", flags->index, "LIST", "Which images, e.g. 0-9 or 3,5,8 [all]");
  add_parsed(*command, "--limit", flags->limit, parse_uint32, "N", "Score the first N only [all]");
  flags->connection.add_to(*command);
  command->footer(kFooter);
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] { return run_score(*flags, command_line.console); };
  });
}

}  // namespace lintel::cli
