// SPDX-License-Identifier: Apache-2.0
#include "bench/load_counts.h"

#include <algorithm>
#include <utility>

#include "bench/measure.h"

namespace lintel::bench {
namespace {

// Statuses with rows of their own, at most: servers choose their names.
constexpr std::size_t kMostStatuses = 32;
// Turns with rows of their own, at most.
constexpr int kMostTurns = 16;

double seconds_to(LoadCounts::Clock::time_point from, LoadCounts::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Tokens that each message of an answer stands for.
double tokens_a_message(const ChatAnswer& answer) {
  if (!answer.generated_tokens || answer.arrivals.empty()) return 1;
  return static_cast<double>(*answer.generated_tokens) /
         static_cast<double>(answer.arrivals.size());
}

std::optional<double> seconds_per_token(const ChatAnswer& answer) {
  const double tokens = tokens_a_message(answer) * static_cast<double>(answer.arrivals.size());
  if (answer.arrivals.size() < 2 || tokens <= 1) return std::nullopt;
  return seconds_to(answer.arrivals.front(), answer.arrivals.back()) / (tokens - 1);
}

// The share of samples that are longer, at shares that are evenly apart on a logarithmic axis.
Series longer_share(const std::string& name, const SampleSet& samples) {
  Series series{name, {}};
  const std::vector<double> sorted = samples.sorted();
  const auto count = static_cast<double>(sorted.size());
  for (double share = 1; share * count >= 1; share *= 0.95) {
    const auto rank = static_cast<std::size_t>((1 - share) * count);
    const double milliseconds = 1000 * sorted[std::min(rank, sorted.size() - 1)];
    if (milliseconds > 0) series.points.emplace_back(milliseconds, share);
  }
  return series;
}

Cell share_in_percent(double part, double whole) {
  return whole > 0 ? Cell::number(100 * part / whole) : Cell::none();
}

}  // namespace

void SampleSet::add(double sample) {
  most_ = count_ == 0 ? sample : std::max(most_, sample);
  sum_ += sample;
  if (kept_.size() < kKept) {
    kept_.push_back(sample);
  } else if (const std::int64_t at = chosen_.below(count_ + 1);
             at < static_cast<std::int64_t>(kKept)) {
    kept_[static_cast<std::size_t>(at)] = sample;
  }
  ++count_;
}

double SampleSet::quantile_at(double share) const { return quantile(kept_, share); }

std::vector<double> SampleSet::sorted() const {
  std::vector<double> samples = kept_;
  std::ranges::sort(samples);
  return samples;
}

void LoadCounts::end_at(Clock::time_point time) { end_ = std::clamp(time, begin_, end_); }

double LoadCounts::seconds() const { return std::max(seconds_to(begin_, end_), 1e-9); }

void LoadCounts::add(const TurnRecord& record) {
  const ChatAnswer& answer = record.answer;
  const double weight = tokens_a_message(answer);
  for (const Clock::time_point arrival : answer.arrivals) {
    if (holds(arrival)) tokens_ += weight;
  }
  // An answer without a text, such as one that ends at once, may have tokens.
  if (answer.arrivals.empty() && holds(record.end)) {
    tokens_ += static_cast<double>(answer.generated_tokens.value_or(0));
  }
  const bool is_answered = answer.outcome == ChatAnswer::Outcome::kAnswered;
  const bool is_good = is_answered && is_within_bounds(record);
  if (is_answered && holds(record.end)) {
    ++answers_;
    if (is_good) ++good_answers_;
    prompt_tokens_ += static_cast<double>(answer.prompt_tokens.value_or(0));
    cached_tokens_ += static_cast<double>(answer.cached_tokens.value_or(0));
  }
  if (!holds(record.due)) return;
  if (is_good) ++within_bounds_;
  add_outcome(answer);
  add_times(record);
}

void LoadCounts::add_outcome(const ChatAnswer& answer) {
  switch (answer.outcome) {
    case ChatAnswer::Outcome::kAnswered:
      ++answered_;
      if (!answer.generated_tokens) ++uncounted_;
      if (!answer.cached_tokens) ++unknown_cached_;
      return;
    case ChatAnswer::Outcome::kUnfinished:
      ++unfinished_;
      return;
    case ChatAnswer::Outcome::kRefused:
      ++refused_;
      break;
    case ChatAnswer::Outcome::kFailed:
      ++failed_;
      break;
  }
  const bool has_room = statuses_.size() < kMostStatuses || statuses_.contains(answer.status);
  Status& status = statuses_[has_room ? answer.status : "others"];
  if (status.count++ > 0) return;
  status.is_refusal = answer.outcome == ChatAnswer::Outcome::kRefused;
  status.error = answer.error;
}

void LoadCounts::add_times(const TurnRecord& record) {
  const ChatAnswer& answer = record.answer;
  if (answer.outcome == ChatAnswer::Outcome::kRefused) return;
  late_.add(seconds_to(record.due, record.sent));
  OfTurn& of_turn = by_turn_[std::min(record.turn, kMostTurns)];
  if (!answer.arrivals.empty()) {
    const double first = seconds_to(record.due, answer.arrivals.front());
    first_token_.add(first);
    of_turn.first_token.add(first);
  }
  for (std::size_t i = 1; i < answer.arrivals.size(); ++i) {
    between_messages_.add(seconds_to(answer.arrivals[i - 1], answer.arrivals[i]));
  }
  if (answer.outcome != ChatAnswer::Outcome::kAnswered) return;
  whole_.add(seconds_to(record.due, record.end));
  if (const auto seconds = seconds_per_token(answer)) per_token_.add(*seconds);
  ++of_turn.count;
  of_turn.prompt_tokens += static_cast<double>(answer.prompt_tokens.value_or(0));
  of_turn.cached_tokens += static_cast<double>(answer.cached_tokens.value_or(0));
}

bool LoadCounts::is_within_bounds(const TurnRecord& record) const {
  const ChatAnswer& answer = record.answer;
  if (bounds_.first_token) {
    // An answer without a text is there when it ends.
    const Clock::time_point first = answer.arrivals.empty() ? record.end : answer.arrivals.front();
    if (seconds_to(record.due, first) > *bounds_.first_token) return false;
  }
  const auto per_token = seconds_per_token(answer);
  return !bounds_.per_token || !per_token || *per_token <= *bounds_.per_token;
}

bool LoadCounts::all_unreached() const {
  const auto connection = statuses_.find("connection");
  return connection != statuses_.end() && connection->second.count == turns();
}

std::string LoadCounts::first_error() const {
  const auto most =
      std::ranges::max_element(statuses_, {}, [](const auto& entry) { return entry.second.count; });
  return most == statuses_.end() ? "" : most->first + ": " + most->second.error;
}

Table LoadCounts::table_of_requests(const std::string& load, double cpu_seconds) const {
  Table table{.title = "Requests",
              .columns = {"load", "requests/s", "tokens/s", "prompt tokens/s", "of which cached, %",
                          "requests", "answered", "refused", "failed", "unfinished",
                          "CPU of the clients, cores"}};
  table.rows.push_back(
      {Cell::text(load), Cell::number(static_cast<double>(answers_) / seconds(), 4),
       Cell::number(tokens_per_second(), 4), Cell::number(prompt_tokens_ / seconds(), 4),
       share_in_percent(cached_tokens_, prompt_tokens_), Cell::count(turns()),
       Cell::count(answered_), Cell::count(refused_), Cell::count(failed_),
       Cell::count(unfinished_), Cell::number(cpu_seconds / seconds(), 2)});
  table.notes.push_back("Rates are of what came within a window of " + format_number(seconds(), 4) +
                        " s; requests are those that were due within it.");
  if (bounds_.any()) {
    std::string bounds;
    if (bounds_.first_token) {
      bounds = "the first token within " + format_number(1000 * *bounds_.first_token, 4) + " ms";
    }
    if (bounds_.per_token) {
      bounds += (bounds.empty() ? "" : ", ") + format_number(1000 * *bounds_.per_token, 4) +
                " ms a token after it";
    }
    table.columns.insert(table.columns.begin() + 2, {"goodput, requests/s", "within bounds, %"});
    auto& row = table.rows.front();
    row.insert(row.begin() + 2, {Cell::number(static_cast<double>(good_answers_) / seconds(), 4),
                                 share_in_percent(static_cast<double>(within_bounds_),
                                                  static_cast<double>(turns()))});
    table.notes.push_back("Goodput: answers with " + bounds +
                          ". Refused, failed and unfinished requests are not within bounds.");
  }
  if (unfinished_ > 0) {
    table.notes.push_back(
        "Unfinished requests had no end when the run ended. Their times until then are counted; "
        "those without a token have none, and would be the longest.");
  }
  if (uncounted_ > 0) {
    table.notes.push_back("Of " + std::to_string(uncounted_) +
                          " answers the server did not count the tokens: each message with text "
                          "counts as one.");
  }
  if (answered_ > 0 && unknown_cached_ == answered_) {
    table.notes.push_back("The server does not say which tokens of prompts were cached.");
  }
  return table;
}

std::array<LoadCounts::TimeRow, 5> LoadCounts::time_rows() const {
  return {{{"to the first token", "ttft_ms", first_token_},
           {"between messages", "itl_ms", between_messages_},
           {"a token", "tpot_ms", per_token_},
           {"request", "request_ms", whole_},
           {"sent late", "late_ms", late_}}};
}

Table LoadCounts::table_of_times() const {
  Table table{.title = "Times",
              .columns = {"ms", "p50", "p90", "p99", "mean", "most", "samples"},
              .notes = {"Times begin when a request is due. Between messages: those of one answer, "
                        "which may have several tokens; a token: the mean of an answer's tokens "
                        "after its first message. Sent late: what the client itself is late."}};
  for (const TimeRow& row : time_rows()) {
    std::vector<Cell> cells = {Cell::text(row.name)};
    for (const double share : {0.5, 0.9, 0.99}) {
      cells.push_back(row.samples.count() == 0
                          ? Cell::none()
                          : Cell::number(1000 * row.samples.quantile_at(share)));
    }
    for (const bool is_mean : {true, false}) {
      cells.push_back(
          row.samples.count() == 0
              ? Cell::none()
              : Cell::number(1000 * (is_mean ? row.samples.mean() : row.samples.most())));
    }
    cells.push_back(Cell::count(row.samples.count()));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table LoadCounts::table_of_turns() const {
  Table table{.title = "By turn",
              .columns = {"turn", "answered", "prompt tokens", "cached, %",
                          "ms to the first token: p50", "p90", "p99"}};
  for (const auto& [turn, of_turn] : by_turn_) {
    const std::string number = std::to_string(turn + 1);
    std::vector<Cell> row = {
        Cell::text(turn == kMostTurns ? number + " and later" : number), Cell::count(of_turn.count),
        of_turn.count == 0
            ? Cell::none()
            : Cell::number(of_turn.prompt_tokens / static_cast<double>(of_turn.count), 4),
        share_in_percent(of_turn.cached_tokens, of_turn.prompt_tokens)};
    for (const double share : {0.5, 0.9, 0.99}) {
      row.push_back(of_turn.first_token.count() == 0
                        ? Cell::none()
                        : Cell::number(1000 * of_turn.first_token.quantile_at(share)));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table LoadCounts::table_of_statuses() const {
  Table table{.title = "Refused and failed",
              .columns = {"status", "requests", "counted as", "the first"}};
  for (const auto& [name, status] : statuses_) {
    table.rows.push_back({Cell::text(name), Cell::count(status.count),
                          Cell::text(status.is_refusal ? "refused" : "failed"),
                          Cell::text(status.error)});
  }
  return table;
}

std::vector<Plot> LoadCounts::plots() const {
  std::vector<Plot> plots;
  const auto add = [&plots](const std::string& title, std::vector<Series> all) {
    std::erase_if(all, [](const Series& series) { return series.points.empty(); });
    if (all.empty()) return;
    plots.push_back({title, "ms", "share that takes longer", std::move(all)});
  };
  std::vector<Series> by_turn = {longer_share("all", first_token_)};
  constexpr std::size_t kDrawnTurns = 4;
  for (const auto& [turn, of_turn] : by_turn_) {
    if (by_turn_.size() < 2 || by_turn.size() > kDrawnTurns) break;
    by_turn.push_back(longer_share("turn " + std::to_string(turn + 1), of_turn.first_token));
  }
  add("Time to the first token", std::move(by_turn));
  add("Time between tokens",
      {longer_share("between messages", between_messages_), longer_share("a token", per_token_)});
  return plots;
}

void LoadCounts::add_to(Measurement& measurement, const std::string& load,
                        double cpu_seconds) const {
  measurement.add(table_of_requests(load, cpu_seconds));
  measurement.add(table_of_times());
  if (!by_turn_.empty()) measurement.add(table_of_turns());
  if (!statuses_.empty()) measurement.add(table_of_statuses());
  measurement.add(plots());

  const auto figure = [&](const char* name, auto number) {
    measurement.add(name, static_cast<double>(number));
  };
  figure("seconds", seconds());
  figure("requests", turns());
  figure("answered", answered_);
  figure("refused", refused_);
  figure("failed", failed_);
  figure("unfinished", unfinished_);
  figure("requests_per_s", static_cast<double>(answers_) / seconds());
  figure("tokens_per_s", tokens_per_second());
  figure("tokens", tokens_);
  figure("prompt_tokens", prompt_tokens_);
  figure("cached_tokens", cached_tokens_);
  figure("answers_without_usage", uncounted_);
  figure("client_cpu_s", cpu_seconds);
  if (bounds_.any()) {
    figure("goodput_requests_per_s", static_cast<double>(good_answers_) / seconds());
    figure("within_bounds", within_bounds_);
  }
  for (const TimeRow& row : time_rows()) {
    if (row.samples.count() == 0) continue;
    const std::string name = row.figure;
    measurement.add(name + ".p50", 1000 * row.samples.quantile_at(0.5));
    measurement.add(name + ".p90", 1000 * row.samples.quantile_at(0.9));
    measurement.add(name + ".p99", 1000 * row.samples.quantile_at(0.99));
    measurement.add(name + ".mean", 1000 * row.samples.mean());
    measurement.add(name + ".most", 1000 * row.samples.most());
  }
  for (const auto& [name, status] : statuses_) {
    measurement.add("statuses." + name, static_cast<double>(status.count));
  }
}

}  // namespace lintel::bench
