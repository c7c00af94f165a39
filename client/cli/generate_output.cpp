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

// Streams a single sample, collects several to print them one after another.
class TextPrinter : public GenerationPrinter {
 public:
  TextPrinter(Console& console, std::uint32_t num_samples)
      : console_(console), streams_(num_samples == 1), texts_(num_samples) {}

  void on_chunk(const v1::Chunk& chunk) override {
    std::string& text = texts_[chunk.sample()];
    for (const std::int32_t token : chunk.tokens()) append_byte(text, token);
    if (!streams_) return;
    console_.out(text);
    console_.flush();
    text.clear();
  }

  void on_end(const std::vector<v1::SampleFinish>& finished) override {
    if (streams_) {
      if (console_.out_is_terminal()) console_.out("\n");
      return;
    }
    for (const v1::SampleFinish& finish : finished) {
      console_.out("--- sample " + std::to_string(finish.sample()) + ", seed " +
                   std::to_string(finish.seed()) + "\n" + texts_[finish.sample()] + "\n");
    }
  }

 private:
  Console& console_;
  const bool streams_;
  std::vector<std::string> texts_;
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

  void on_end(const std::vector<v1::SampleFinish>&) override {
    for (const Line& line : lines_) console_.out(line.text + "\n");
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

class JsonlPrinter : public GenerationPrinter {
 public:
  JsonlPrinter(Console& console, const v1::GenerateRequest& request)
      : console_(console),
        with_prompt_(request.echo_prompt()),
        with_top_(request.top_log2_probs() > 0) {}

  void on_chunk(const v1::Chunk& chunk) override { collector_.add(chunk); }

  void on_end(const std::vector<v1::SampleFinish>& finished) override {
    for (const v1::SampleFinish& finish : finished) collector_.finish(finish);
    for (const Sample& sample : collector_.samples()) {
      console_.out(sample_json(sample, with_prompt_, with_top_) + "\n");
    }
  }

 private:
  Console& console_;
  const bool with_prompt_;
  const bool with_top_;
  SampleCollector collector_;
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

}  // namespace

std::unique_ptr<GenerationPrinter> make_printer(const std::string& format, Console& console,
                                                const v1::GenerateRequest& request) {
  const std::uint32_t num_samples = request.has_num_samples() ? request.num_samples() : 1;
  if (format == "jsonl") return std::make_unique<JsonlPrinter>(console, request);
  if (format == "tokens") {
    return std::make_unique<TokensPrinter>(console, num_samples, request.log2_probs());
  }
  return std::make_unique<TextPrinter>(console, num_samples);
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

std::string sample_json(const Sample& sample, bool with_prompt, bool with_top) {
  const v1::SampleFinish& finish = sample.finish;
  JsonWriter json;
  json.begin_object();
  json.field("sample", finish.sample());
  json.key("tokens");
  write_tokens(json, sample.tokens);
  json.key("log2_probs");
  write_log2_probs(json, sample.log2_probs);
  json.field("finish_reason", finish_reason_name(finish.reason()));
  if (!finish.stop_string().empty()) json.field("stop_string", finish.stop_string());
  json.field("seed", finish.seed());
  json.field("first_position", sample.first_position);
  if (std::find(sample.given.begin(), sample.given.end(), true) != sample.given.end()) {
    json.key("given_positions").begin_array();
    for (std::size_t i = 0; i < sample.given.size(); ++i) {
      if (sample.given[i]) json.value(sample.first_position + static_cast<std::int64_t>(i));
    }
    json.end_array();
  }
  if (with_top) {
    json.key("top");
    write_top(json, sample.top);
  }
  if (with_prompt) {
    json.key("prompt");
    write_tokens(json, sample.prompt);
    json.key("prompt_log2_probs");
    write_log2_probs(json, sample.prompt_log2_probs);
  }
  json.field("prompt_tokens", finish.prompt_tokens());
  json.field("reused_tokens", finish.reused_tokens());
  json.field("generated_tokens", finish.generated_tokens());
  json.field("given_tokens", finish.given_tokens());
  json.field("drafted_tokens", finish.drafted_tokens());
  json.field("accepted_tokens", finish.accepted_tokens());
  json.field("position", finish.position());
  json.key("timings").begin_object();
  json.field("queued_seconds", seconds_of(finish.timings().queued()));
  json.field("prompt_seconds", seconds_of(finish.timings().prompt()));
  json.field("generation_seconds", seconds_of(finish.timings().generation()));
  json.field("per_token_seconds", seconds_of(finish.timings().per_token()));
  json.end_object();
  json.end_object();
  return json.take();
}

}  // namespace lintel::cli
