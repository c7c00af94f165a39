// SPDX-License-Identifier: Apache-2.0
// lintel-bench load: conversations with a server, and the times, rates and refusals that its users
// see.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/chat_client.h"
#include "bench/commands.h"
#include "bench/conversations.h"
#include "bench/event_stream.h"
#include "bench/load_counts.h"
#include "bench/measure.h"
#include "bench/run_flags.h"
#include "client/cli/output.h"
#include "client/lib/channel.h"
#include "tools/describe/flags.h"

namespace lintel::bench {
namespace {

constexpr const char* kLoadFooter = R"(
--users N: N users, each with a connection of its own and one conversation after the other. --rate R: R conversations
begin in a second, at times of a Poisson process that are drawn before anything is sent; a conversation waits for
nothing that came before it, and what it waits counts. Either way a user sends the next turn of a conversation when the
answer has come and --think-time is over. A turn that is refused or fails ends its conversation; a user among N then
waits 0.1 s. Times begin when a turn is due.

Lengths: N, LEAST-MOST (each as likely), or lognormal:MEDIAN,SIGMA (cut at 16 times the median). Prompts are words
drawn from 256 common ones, mostly a token each, so that no two conversations begin alike and no server gains from
prompts that it has kept; --shared-prefix makes all begin with the same words. A run with the --seed of another one
sends the same prompts, which the server may have kept. Answers of the server become the past of the next turn.
--conversations FILE: JSON, a line each (or an array of all), in one of these forms:
  {"system": TEXT, "turns": [{"user": TEXT, "answer_tokens": N}, {"user_words": N}]}
  {"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]}
  {"conversations": [{"from": "human", "value": TEXT}, {"from": "gpt", "value": TEXT}]}      (ShareGPT)
Where it has answers, they say how long those of the server may be: a token for every 4 bytes.

Refused: 429, 503, 529, RESOURCE_EXHAUSTED. Failed: all else. Requests that are due between --warm-up and its end
--duration later are counted; they have --drain to end, then they are cancelled and counted as unfinished. Ctrl-C ends
the run at once, and what was measured is printed. Tokens are those of the server's usage, or messages with text where
it sends none.

Examples:
  lintel-bench load --users 64 --turns 8 --first-words 2000-20000 --duration 600
  lintel-bench load --rate 2.5 --ttft-bound 1 --itl-bound 0.1 --json load.json
  lintel-bench load --target http://127.0.0.1:8000 --model NAME --token @key --conversations sharegpt.json
  lintel-bench load --api grpc --target 127.0.0.1:50051 --users 16 --plot load.png

Exit status: 0 a request was answered, 1 none was, 2 the command line makes no sense, 3 no server.)";

// Wait of a user after a turn that was refused or failed.
constexpr std::chrono::milliseconds kAfterRefusal{100};
// Interval at which the run looks for Ctrl-C and draws its progress.
constexpr std::chrono::milliseconds kLookAround{100};
constexpr double kMostSeconds = 7 * 24 * 3600;
constexpr double kMostArrivals = 10e6;
constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;
// Think times have draws of their own: other lengths do not change them.
constexpr std::uint64_t kThinkSeed = 0x7468696e6b;

struct LoadFlags {
  RunFlags run;
  std::string target;  // empty: the usual port of the API on this machine
  ChatApi api = ChatApi::kOpenAi;
  std::string model;
  Tls tls;
  std::string token;
  std::optional<int> users;
  std::optional<double> rate;
  int max_concurrency = 512;
  double duration = 30, drain = 30, think_time = 0, timeout = 300;
  std::optional<double> warm_up;
  int count = 0;  // of conversations; 0: until the end
  Lengths turns = Lengths::parse("--turns", "4");
  std::optional<Lengths> first_words;
  Lengths words = Lengths::parse("--prompt-words", "lognormal:60,1");
  Lengths answer_tokens = Lengths::parse("--answer-tokens", "lognormal:150,0.8");
  int shared_words = 0;
  std::string conversations;
  std::optional<std::uint64_t> seed;
  bool ignore_eos = false;
  std::string members;
  LoadCounts::Bounds bounds;
};

ChatApi parse_api(std::string_view flag, std::string_view text) {
  for (const ChatApi api :
       {ChatApi::kOpenAi, ChatApi::kAnthropic, ChatApi::kGrpc, ChatApi::kGenerate}) {
    if (text == name_of(api)) return api;
  }
  refuse(flag, text, "openai, anthropic, grpc or generate");
}

// Parses 0 or more.
Parse<double> seconds_or_none() {
  return [](std::string_view flag, std::string_view text) {
    const double number = cli::parse_double(flag, text);
    if (number >= 0 && number <= kMostSeconds) return number;
    refuse(flag, text, "seconds from 0 to " + format_number(kMostSeconds, 6));
  };
}

// Checks the flags, and sets those that were left open.
LoadFlags completed(LoadFlags flags) {
  if (flags.users && flags.rate) throw cli::UsageError("--users and --rate exclude each other");
  if (!flags.users && !flags.rate) flags.users = 8;
  // A given number of conversations may end before a window begins.
  if (!flags.warm_up) flags.warm_up = flags.count > 0 ? 0 : 2;
  if (flags.rate && *flags.rate * (*flags.warm_up + flags.duration) > kMostArrivals) {
    throw cli::UsageError("--rate " + format_number(*flags.rate, 6) +
                          ": more than 10,000,000 conversations in --warm-up and --duration");
  }
  if (!flags.members.empty()) {
    if (flags.api == ChatApi::kGenerate) {
      throw cli::UsageError("--body goes with the APIs of chats, not with --api generate");
    }
    const auto members =
        nlohmann::ordered_json::parse(flags.members, nullptr, /*allow_exceptions=*/false);
    if (!members.is_object()) refuse("--body", flags.members, "a JSON object");
  }
  if (!flags.seed) flags.seed = std::random_device()();
  return flags;
}

ChatTarget target_of(const LoadFlags& flags) {
  ChatTarget target{.api = flags.api,
                    .tls = flags.tls,
                    .token = cli::read_token(flags.token),
                    .model = flags.model,
                    .members = flags.members,
                    .ignore_eos = flags.ignore_eos,
                    .timeout = std::chrono::milliseconds(std::llround(1000 * flags.timeout))};
  if (std::ranges::any_of(target.token, [](char c) { return c <= 0x20 || c >= 0x7F; })) {
    throw cli::UsageError("--token has blanks or other characters that no token has");
  }
  const bool over_grpc = flags.api == ChatApi::kGrpc || flags.api == ChatApi::kGenerate;
  try {
    if (over_grpc) {
      target.address = full_address(flags.target.empty() ? "127.0.0.1:50051" : flags.target);
    } else {
      const HttpBase base =
          HttpBase::parse(flags.target.empty() ? "http://127.0.0.1:8080" : flags.target);
      target.url = base.url;
      if (!target.token.empty() && !base.encrypted && !is_local_address(base.address)) {
        throw cli::UsageError("--token: the token would go to " + base.address +
                              " in plain text: use https");
      }
      if (flags.tls.certificate.empty() != flags.tls.key.empty()) {
        throw cli::UsageError("--tls-cert and --tls-key go together");
      }
    }
    target.model = ChatClient(target).find_model();
  } catch (const TlsFileError& error) {
    throw cli::Failure(error.what());
  } catch (const std::invalid_argument& error) {
    throw cli::UsageError("--target '" + flags.target + "': " + error.what());
  }
  return target;
}

ConversationSource::Options conversations_of(const LoadFlags& flags, cli::Console& console) {
  ConversationSource::Options options{.seed = *flags.seed,
                                      .turns = flags.turns,
                                      .first_words = flags.first_words.value_or(flags.words),
                                      .words = flags.words,
                                      .answer_tokens = flags.answer_tokens,
                                      .shared_words = flags.shared_words};
  if (flags.conversations.empty()) return options;
  const std::string text = console.read_file("--conversations", flags.conversations);
  if (text.size() > kMaxFileBytes) {
    throw cli::Failure("--conversations " + flags.conversations + ": " +
                       std::to_string(text.size()) + " bytes, at most " +
                       std::to_string(kMaxFileBytes) + " are read");
  }
  options.recorded = read_conversations(text, flags.conversations);
  return options;
}

std::string load_of(const LoadFlags& flags) {
  if (flags.rate) return format_number(*flags.rate, 4) + " conversations/s";
  return std::to_string(*flags.users) + (*flags.users == 1 ? " user" : " users");
}

std::string description_of(const LoadFlags& flags, const ChatTarget& target,
                           const ConversationSource& source) {
  std::string text = target.model + " at " + (target.url.empty() ? target.address : target.url) +
                     ", API " + std::string(name_of(target.api)) + "; " + load_of(flags) + ", ";
  if (source.recorded() > 0) {
    text += std::to_string(source.recorded()) + " conversations of " + flags.conversations;
  } else {
    text += "turns " + flags.turns.text() + ", words " +
            (flags.first_words ? flags.first_words->text() + " and then " : "") +
            flags.words.text() + ", answers of at most " + flags.answer_tokens.text() + " tokens";
  }
  if (flags.shared_words > 0) {
    text += ", the first " + std::to_string(flags.shared_words) + " words shared";
  }
  if (flags.think_time > 0) text += ", think time " + format_number(flags.think_time, 4) + " s";
  return text + ", seed " + std::to_string(*flags.seed) + "; the machine named is the clients'";
}

// Notes Ctrl-C while it lives; a second one ends the program. One object at a time.
class InterruptWatch {
 public:
  InterruptWatch() {
    interrupted_ = 0;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN) continue;
      struct sigaction noting {};
      noting.sa_handler = [](int) { interrupted_ = 1; };
      noting.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
      sigaction(kSignals[i], &noting, nullptr);
    }
  }
  ~InterruptWatch() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  static bool interrupted() { return interrupted_ != 0; }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM};
  static inline std::atomic<int> interrupted_{0};
  static_assert(std::atomic<int>::is_always_lock_free);

  struct sigaction before_[std::size(kSignals)] = {};
};

class LoadExperiment {
 public:
  LoadExperiment(const LoadFlags& flags, cli::Console& console)
      : flags_(completed(flags)),
        console_(console),
        source_(conversations_of(flags_, console)),
        target_(target_of(flags_)),
        measurement_(flags_.run, "load", description_of(flags_, target_, source_), console) {}

  int run() {
    const InterruptWatch watch;
    start_ = Clock::now();
    begin_ = start_ + duration_of(*flags_.warm_up);
    end_ = begin_ + duration_of(flags_.duration);
    counts_.emplace(begin_, end_, flags_.bounds);
    progress_.emplace(console_, std::llround(std::ceil(*flags_.warm_up + flags_.duration)), "s");
    std::exception_ptr error;
    try {
      flags_.rate ? let_arrive() : begin_users();
      wait_until(end_, [this] { return is_exhausted(); });
    } catch (...) {
      error = std::current_exception();
    }
    end_run(/*at_once=*/error != nullptr);
    progress_.reset();
    if (!error) error = error_;
    if (error) std::rethrow_exception(error);
    return report();
  }

 private:
  using Clock = LoadCounts::Clock;

  struct Arrival {
    std::int64_t index = 0;
    Clock::time_point due;
  };

  static Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // True if no conversation runs, and none will begin. REQUIRES: mutex_ is held.
  bool is_exhausted() const { return error_ != nullptr || (all_begun_ && running_ == 0); }

  // Waits until `time`, for Ctrl-C, or until `is_over`, which is called with mutex_ held.
  template <typename IsOver>
  void wait_until(Clock::time_point time, IsOver is_over) {
    std::unique_lock lock(mutex_);
    while (!is_over() && !InterruptWatch::interrupted()) {
      const Clock::time_point now = Clock::now();
      if (!cpu_at_begin_ && now >= begin_) cpu_at_begin_ = process_cpu_seconds();
      if (now >= time) return;
      changed_.wait_until(lock, std::min(time, now + kLookAround));
      const std::string note = std::to_string(counts_->answered()) + " answered, " +
                               std::to_string(counts_->refused() + counts_->failed()) +
                               " refused or failed, " + std::to_string(running_) + " running";
      lock.unlock();
      const auto seconds = std::chrono::floor<std::chrono::seconds>(Clock::now() - start_).count();
      progress_->set_note(note);
      progress_->add(std::max<std::int64_t>(seconds - shown_seconds_, 0));
      shown_seconds_ = seconds;
      lock.lock();
    }
  }

  // Users (--users).

  void begin_users() {
    for (int i = 0; i < *flags_.users; ++i) {
      {
        const std::lock_guard lock(mutex_);
        ++running_;
      }
      begin_thread([this, i] { be_user(i); });
    }
    const std::lock_guard lock(mutex_);
    all_begun_ = true;
  }

  void be_user(int number) {
    ChatClient client(target_);
    client.connect();
    DrawStream thinks(*flags_.seed ^ kThinkSeed, number);
    Clock::time_point due = Clock::now();
    for (std::int64_t index; (index = next_++) < count_limit();) {
      if (!sleep_until(due)) return;
      const bool went_well = converse(client, thinks, {index, due}, /*is_drawn=*/false);
      due = Clock::now() + (went_well ? think_time(thinks) : Clock::duration(kAfterRefusal));
    }
  }

  std::int64_t count_limit() const {
    return flags_.count > 0 ? flags_.count : std::numeric_limits<std::int64_t>::max();
  }

  // Arrivals (--rate).

  void let_arrive() {
    std::vector<double> times =
        poisson_arrivals(*flags_.rate, *flags_.warm_up + flags_.duration, *flags_.seed);
    const auto most = static_cast<std::size_t>(count_limit());
    const bool is_cut = times.size() >= most;
    if (is_cut) times.resize(most);
    for (std::size_t i = 0; i < times.size(); ++i) {
      const Clock::time_point due = start_ + duration_of(times[i]);
      wait_until(due, [this] { return error_ != nullptr; });
      std::unique_lock lock(mutex_);
      if (error_ || InterruptWatch::interrupted()) return;
      arrived_.push_back({static_cast<std::int64_t>(i), due});
      ++running_;
      const bool wants_thread = arrived_.size() > idle_ &&
                                threads_.size() < static_cast<std::size_t>(flags_.max_concurrency);
      lock.unlock();
      if (wants_thread) begin_thread([this] { serve_arrivals(); });
      arrival_.notify_one();
    }
    // A window whose arrivals --count did not end has its length, though no more arrive within it.
    const std::lock_guard lock(mutex_);
    all_begun_ = is_cut;
  }

  void serve_arrivals() {
    ChatClient client(target_);
    client.connect();
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      arrival_.wait(lock, [this] { return !arrived_.empty() || is_over_; });
      --idle_;
      if (arrived_.empty()) return;
      const Arrival arrival = arrived_.front();
      arrived_.pop_front();
      lock.unlock();
      DrawStream thinks(*flags_.seed ^ kThinkSeed, arrival.index);
      converse(client, thinks, arrival, /*is_drawn=*/true);
      lock.lock();
      --running_;
      changed_.notify_one();
    }
  }

  // Threads and conversations of both.

  // Runs `work` on a thread of its own. REQUIRES: running_ counts a user's work; arrivals count
  // their conversations themselves.
  template <typename Work>
  void begin_thread(Work work) {
    threads_.emplace_back([this, work] {
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      if (error && !error_) error_ = error;
      if (flags_.users) --running_;
      changed_.notify_one();
    });
  }

  Clock::duration think_time(DrawStream& thinks) const {
    if (flags_.think_time == 0) return Clock::duration::zero();
    return duration_of(std::min(thinks.exponential(flags_.think_time), kMostSeconds));
  }

  // Returns false when the run is over.
  bool sleep_until(Clock::time_point time) {
    std::unique_lock lock(mutex_);
    return !over_.wait_until(lock, time, [this] { return is_over_; });
  }

  // Asks one conversation. is_drawn: it has arrived by itself, though the run may be over since.
  // Returns true if all of it was answered.
  bool converse(ChatClient& client, DrawStream& thinks, const Arrival& arrival, bool is_drawn) {
    PlannedConversation planned = source_.at(arrival.index);
    ChatQuestion question{.system = std::move(planned.system)};
    Clock::time_point due = arrival.due;
    for (std::size_t turn = 0; turn < planned.turns.size(); ++turn) {
      if (turn > 0) due = Clock::now() + think_time(thinks);
      TurnRecord record{.due = due, .turn = static_cast<int>(turn)};
      // A conversation that has arrived is sent within --drain, too.
      const bool may_begin = sleep_until(due) || (is_drawn && turn == 0);
      if (!may_begin) return false;
      if (cancellation_.cancelled()) {
        record.sent = record.end = Clock::now();
        record.answer.outcome = ChatAnswer::Outcome::kUnfinished;
        add(record);
        return false;
      }
      question.text = std::move(planned.turns[turn].text);
      question.max_tokens = planned.turns[turn].answer_tokens;
      // Some servers want seeds of 31 bits.
      question.seed =
          (*flags_.seed + static_cast<std::uint64_t>(arrival.index) * 1009 + turn) & 0x7fffffff;
      record.sent = Clock::now();
      record.answer = client.ask(question, cancellation_);
      record.end = Clock::now();
      add(record);
      if (record.answer.outcome != ChatAnswer::Outcome::kAnswered) return false;
      question.past.push_back({std::move(question.text), std::move(record.answer.text)});
    }
    return true;
  }

  void add(const TurnRecord& record) {
    const std::lock_guard lock(mutex_);
    counts_->add(record);
  }

  // Waits --drain for conversations that run, cancels the others and joins all threads.
  void end_run(bool at_once) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      const Clock::time_point now = Clock::now();
      if (now < end_) counts_->end_at(now);
      cpu_seconds_ = cpu_at_begin_ ? process_cpu_seconds() - *cpu_at_begin_ : 0;
    }
    over_.notify_all();
    arrival_.notify_all();
    if (!at_once) {
      wait_until(Clock::now() + duration_of(flags_.drain),
                 [this] { return error_ != nullptr || running_ == 0; });
    }
    cancellation_.cancel();
    for (std::thread& thread : threads_) thread.join();
  }

  int report() {
    measurement_.add("seed", static_cast<double>(*flags_.seed));
    counts_->add_to(measurement_, load_of(flags_), cpu_seconds_);
    const int code = measurement_.publish();
    if (counts_->answered() > 0) return code;
    console_.flush();
    const std::string error = counts_->first_error();
    const std::string why = !error.empty()                  ? "; " + error
                            : InterruptWatch::interrupted() ? "; it was interrupted"
                                                            : "; --duration and --drain are over";
    console_.err("lintel-bench: no request was answered" + why + "\n");
    return counts_->all_unreached() ? cli::kUnavailable : cli::kFailed;
  }

  const LoadFlags flags_;
  cli::Console& console_;
  const ConversationSource source_;
  const ChatTarget target_;
  Measurement measurement_;
  std::optional<cli::Progress> progress_;
  std::int64_t shown_seconds_ = 0;
  Clock::time_point start_, begin_, end_;  // of the run; of the window
  Cancellation cancellation_;
  std::vector<std::thread> threads_;
  std::atomic<std::int64_t> next_{0};  // conversation of a user
  std::optional<double> cpu_at_begin_;
  double cpu_seconds_ = 0;  // of this process, in the window

  std::mutex mutex_;
  std::condition_variable changed_;  // for the thread of run()
  std::condition_variable arrival_;  // for threads without a conversation
  std::condition_variable over_;     // for users who think
  // Guarded by mutex_.
  std::optional<LoadCounts> counts_;
  std::deque<Arrival> arrived_;  // that no thread has taken
  std::size_t idle_ = 0;         // threads that wait for one
  std::int64_t running_ = 0;     // users; or conversations that have arrived and not ended
  bool all_begun_ = false;
  bool is_over_ = false;  // no turn begins any more
  std::exception_ptr error_;
};

}  // namespace

void add_load(CLI::App& app, cli::CommandLine& command_line) {
  const auto [command, flags] = add_command<LoadExperiment, LoadFlags>(
      app, command_line, "load",
      "Conversations with any server, and the times, rates and refusals that its users see",
      kLoadFooter);
  const std::string load = "Load", conversations = "Conversations", connection = "Connection";
  cli::add_text(command, "--target", flags->target, "ADDRESS",
                "URL of a server with OpenAI's or Anthropic's API, or HOST:PORT of gRPC "
                "[http://127.0.0.1:8080, 127.0.0.1:50051]")
      ->group(connection);
  cli::add_parsed(command, "--api", flags->api, parse_api, "API",
                  "openai: chat completions; anthropic: messages; grpc: ChatService; generate: "
                  "GenerationService, of texts without a chat template [openai]")
      ->check(describe::offers({"openai", "anthropic", "grpc", "generate"}))
      ->group(connection);
  cli::add_text(command, "--model", flags->model, "NAME", "[the first that the server lists]")
      ->group(connection);
  cli::add_parsed(command, "--timeout", flags->timeout, positive_number(kMostSeconds), "SECONDS",
                  "Of a request [300]")
      ->group(connection);
  cli::add_security_flags(command, flags->tls, flags->token);

  cli::add_parsed(command, "--users", flags->users, whole_number(1, 10'000), "N",
                  "Users, each with one conversation after the other [8]")
      ->group(load);
  cli::add_parsed(command, "--rate", flags->rate, positive_number(100'000), "R",
                  "Conversations that begin in a second, in place of --users")
      ->group(load);
  cli::add_parsed(command, "--max-concurrency", flags->max_concurrency, whole_number(1, 10'000),
                  "N", "With --rate: conversations at a time; others wait, which counts [512]")
      ->group(load);
  cli::add_parsed(command, "--duration", flags->duration, positive_number(kMostSeconds), "SECONDS",
                  "Of the window that is counted [30]")
      ->group(load);
  cli::add_parsed(command, "--warm-up", flags->warm_up, seconds_or_none(), "SECONDS",
                  "Before the window [2; with --count 0]")
      ->group(load);
  cli::add_parsed(command, "--drain", flags->drain, seconds_or_none(), "SECONDS",
                  "After the window, for requests to end [30]")
      ->group(load);
  cli::add_parsed(command, "--count", flags->count, whole_number(), "N",
                  "Conversations at most: the run ends with them [until the window's end]")
      ->group(load);
  cli::add_parsed(command, "--ttft-bound", flags->bounds.first_token, positive_number(kMostSeconds),
                  "SECONDS", "Goodput: answers whose first token comes within this")
      ->group(load);
  cli::add_parsed(command, "--itl-bound", flags->bounds.per_token, positive_number(kMostSeconds),
                  "SECONDS", "Goodput: answers whose further tokens take this on average, or less")
      ->group(load);

  cli::add_text(command, "--conversations", flags->conversations, "FILE",
                "Of a file, in turn, in place of drawn ones; -: standard input")
      ->group(conversations);
  const auto add_lengths = [&app = command, &conversations](const char* name, auto& lengths,
                                                            const char* help) {
    cli::add_parsed(app, name, lengths, Lengths::parse, "LENGTHS", help)->group(conversations);
  };
  add_lengths("--turns", flags->turns, "Turns of a conversation [4]");
  add_lengths("--prompt-words", flags->words, "Words of a turn of the user [lognormal:60,1]");
  add_lengths("--first-words", flags->first_words, "Of the first turn [as --prompt-words]");
  add_lengths("--answer-tokens", flags->answer_tokens,
              "Tokens of an answer at most [lognormal:150,0.8]");
  cli::add_parsed(command, "--shared-prefix", flags->shared_words,
                  whole_number(0, static_cast<int>(Lengths::kMost)), "N",
                  "Words with which all conversations begin [0]")
      ->group(conversations);
  cli::add_parsed(command, "--think-time", flags->think_time, seconds_or_none(), "SECONDS",
                  "Of a user before the next turn, on average: exponential [0]")
      ->group(conversations);
  cli::add_parsed(command, "--seed", flags->seed, cli::parse_uint64, "N",
                  "Of all that is drawn [by chance, named in the report]")
      ->group(conversations);
  command
      .add_flag("--ignore-eos", flags->ignore_eos,
                "Answers do not end before --answer-tokens, by the member ignore_eos")
      ->group(conversations);
  cli::add_text(command, "--body", flags->members, "JSON",
                "More members of each request, e.g. '{\"temperature\": 0}'")
      ->group(conversations);

  flags->run.repeats = 0;
  flags->run.add_plot_to(command);
  flags->run.add_output_to(command);
}

}  // namespace lintel::bench
