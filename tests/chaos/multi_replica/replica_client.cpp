// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/multi_replica/replica_client.h"

#include <algorithm>
#include <thread>

namespace lintel::testing {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kDeadline{4};    // of one try of a call
constexpr std::chrono::seconds kPatience{120};  // of a call, all its tries
constexpr std::size_t kMostLines = 5000;        // of a trace

// True if the error says that another server is at work, or that one is away.
bool may_pass(const CallError& error) {
  switch (error.code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::CANCELLED:  // by a server that ends: no client here cancels
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return true;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return error.error_reason() == "CALL_INTERRUPTED";  // another client's, which repeats it
    default:
      return false;
  }
}

}  // namespace

void Faults::add(const std::string& text) {
  const auto at = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - began_);
  const std::lock_guard lock(mutex_);
  if (texts_.size() < 50) texts_.push_back(std::to_string(at.count()) + " ms: " + text);
}

void Faults::add(const std::optional<std::string>& text, const std::string& where) {
  if (text && !text->empty()) add(where + ": " + *text);
}

bool Faults::any() const {
  const std::lock_guard lock(mutex_);
  return !texts_.empty();
}

std::vector<std::string> Faults::texts() const {
  const std::lock_guard lock(mutex_);
  return texts_;
}

void Trace::add(const std::string& text) {
  const auto now =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  const std::lock_guard lock(mutex_);
  lines_.push_back(std::to_string(now.count() / 1000) + "." +
                   std::to_string(1000 + now.count() % 1000).substr(1) + " " + text);
  if (lines_.size() > kMostLines) lines_.pop_front();
}

std::string Trace::text() const {
  std::string all;
  const std::lock_guard lock(mutex_);
  for (const std::string& line : lines_) all += line + "\n";
  return all;
}

Client client_of(const std::string& address, milliseconds deadline) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return Client(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments),
                deadline);
}

ReplicaClient::ReplicaClient(int number, std::uint64_t seed,
                             const std::vector<std::string>& addresses,
                             std::vector<ReplicaSession>& sessions, Faults& faults,
                             ReplicaCounts& counts)
    : name_("client " + std::to_string(number)),
      random_(seed),
      sessions_(sessions),
      faults_(faults),
      counts_(counts) {
  for (const std::string& address : addresses) clients_.push_back(client_of(address, kDeadline));
}

void ReplicaClient::fight(const std::atomic<bool>& over) {
  while (!over) {
    ReplicaSession& session = sessions_[random_() % sessions_.size()];
    const auto begin = SteadyClock::now();
    if (!call(session, begin + kPatience)) return;
    const auto took = std::chrono::duration_cast<milliseconds>(SteadyClock::now() - begin);
    const std::lock_guard lock(counts_.mutex);
    counts_.longest = std::max(counts_.longest, took);
  }
}

bool ReplicaClient::call(ReplicaSession& session, TimePoint give_up) {
  const std::string call_name = name_ + " call " + std::to_string(++calls_);
  v1::GenerateRequest request;
  request.set_session_id(session.id);
  request.set_call_id(call_name);
  request.set_max_new_tokens(static_cast<std::uint32_t>(1 + random_() % 40));
  request.mutable_sampling()->set_seed(random_());
  for (std::uint64_t left = 1 + random_() % 3; left > 0; --left) {
    request.mutable_prompt()->mutable_tokens()->add_ids(static_cast<std::int32_t>(random_() % 50));
  }
  std::string last;
  std::int64_t next = -1;  // position to come
  bool was_given_up = false;
  for (std::size_t with = random_() % 2; is_worth_it(give_up); with ^= 1) {
    ++counts_.tries;
    const std::string at =
        call_name + " at " + std::to_string(with) + " from " + std::to_string(next);
    if (next >= 0) request.set_from_position(next);
    try {
      bool has_ended = false;
      clients_[with].generate(
          request, [&](const v1::Chunk& chunk) { take(session, request, chunk, next); },
          [&](const v1::SampleFinish& finish) {
            has_ended = true;
            session.trace.add(at + " ended at " + std::to_string(finish.position()));
            faults_.add(session.line.ended(call_name, finish.position()), session.id);
            // A try that its client gave up has ended the call where it was.
            if (!was_given_up && finish.reason() != v1::FINISH_REASON_LENGTH) {
              faults_.add(session.id + ", " + call_name + " ended for " +
                          v1::FinishReason_Name(finish.reason()));
            }
          },
          {.patience = milliseconds(0), .durable = true, .on_pause = {}});
      if (!has_ended) faults_.add(call_name + " ended without a finish");
      ++counts_.calls;
      return true;
    } catch (const CallError& error) {
      last = error.what();
      was_given_up |= error.code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                      error.code() == grpc::StatusCode::CANCELLED;
      session.trace.add(at + " has " + std::to_string(next) + ": " + last);
      counts_.cut_in_stream += next >= 0;
      {
        const std::lock_guard lock(counts_.mutex);
        ++counts_.refusals[std::to_string(error.code()) + " " + error.error_reason()];
      }
      if (!may_pass(error)) {
        faults_.add(session.id + ", " + call_name + ": " + last);
        return false;
      }
    }
    std::this_thread::sleep_for(milliseconds(20 + random_() % 100));
  }
  if (faults_.any()) return false;  // a client that gave up may have left it open
  faults_.add(session.id + ", " + call_name + " never ended: " + last);
  return false;
}

bool ReplicaClient::is_worth_it(TimePoint give_up) const {
  return SteadyClock::now() < give_up && !faults_.any();
}

void ReplicaClient::take(ReplicaSession& session, const v1::GenerateRequest& request,
                         const v1::Chunk& chunk, std::int64_t& next) {
  const std::string& call_name = request.call_id();
  if (next < 0) {  // before the first token the prompt was fed: once, however often it was sent
    std::int64_t position = chunk.first_position() - request.prompt().tokens().ids_size();
    for (const std::int32_t token : request.prompt().tokens().ids()) {
      faults_.add(session.line.received(call_name, position++, token), session.id);
    }
  }
  for (int i = 0; i < chunk.tokens_size(); ++i) {
    const std::int64_t position = chunk.first_position() + i;
    if (next >= 0 && position != next) {
      faults_.add(session.id + ", " + call_name + ": position " + std::to_string(position) +
                  " came, not " + std::to_string(next));
    }
    next = position + 1;
    ++counts_.tokens;
    faults_.add(session.line.received(call_name, position, chunk.tokens(i)), session.id);
  }
}

}  // namespace lintel::testing
