#include "client/cli/generate_output.h"

#include <algorithm>

#include "client/cli/json_writer.h"

namespace lintel::cli {
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

// Streams a single sample, collects several to print them one after another.
class TextPrinter : public GenerationPrinter {
 public:
  TextPrinter(Console& console, std::uint32_t num_samples, const v1::GenerateRequest& request)
      : console_(console), request_(request), streams_(num_samples == 1), samples_(num_samples) {}

  void on_chunk(const v1::Chunk& chunk) override {
    std::string& text = samples_[chunk.sample()].text;
    for (const std::int32_t token : chunk.tokens()) append_byte(text, token);
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
  for (const v1::TopValues& values : top) {
    json.begin_array();
    for (int i = 0; i < std::min(values.tokens_size(), values.log2_probs_size()); ++i) {
      json.begin_object();
      json.field("token", values.tokens(i)).field("log2_prob", values.log2_probs(i));
      json.end_object();
    }
    json.end_array();
  }
  json.end_array();
}

// What jsonl has of a sample beside what it always has.
struct JsonParts {
  bool prompt = false;
  bool top = false;
  bool text = false;
};

// What a sample's values are, in any state of it.
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

void write_values(JsonWriter& json, const Sample& sample, const JsonParts& parts) {
  json.key("tokens");
  write_tokens(json, sample.tokens);
  if (parts.text) json.field("text", text_of(sample.tokens));
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
  write_values(json, sample, parts);
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
  write_values(json, sample, parts);
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
               .text = is_bytes} {}

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

}  // namespace

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

}  // namespace lintel::cli
