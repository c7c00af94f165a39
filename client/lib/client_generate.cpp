// Generate, once and until it has gone through.
#include <map>
#include <random>
#include <set>
#include <utility>

#include "client/lib/client_call.h"

namespace lintel {
namespace {

// For a connection between two tries: one that is slower is there for the next.
constexpr std::chrono::milliseconds kConnectPatience{200};

}  // namespace

void Client::read_samples(Call& call, const v1::GenerateRequest& request, const OnChunk& on_chunk,
                          const OnFinish& on_finish, Again again) const {
  const std::uint32_t num_samples = request.has_num_samples() ? request.num_samples() : 1;
  std::set<std::uint32_t> finished;
  const auto open = [&](Stubs& server, auto* context) {
    return server.generation.Generate(context, request);
  };
  call.stream<v1::GenerateResponse>(
      open,
      [&](const v1::GenerateResponse& response) {
        for (const v1::Chunk& chunk : response.chunks()) {
          if (chunk.sample() >= num_samples) {
            throw CallError(grpc::StatusCode::INTERNAL,
                            "the server sent a sample that was not requested");
          }
          if (on_chunk) on_chunk(chunk);
        }
        for (const v1::SampleFinish& finish : response.finished()) {
          if (finish.sample() >= num_samples) {
            throw CallError(grpc::StatusCode::INTERNAL,
                            "the server ended a sample that was not requested");
          }
          finished.insert(finish.sample());
          on_finish(finish);
        }
      },
      again);
  if (finished.size() != num_samples) {
    throw CallError(grpc::StatusCode::INTERNAL, "the stream ended before every sample had");
  }
}

bool Client::ask_durable(Call& call, const std::string& session_id) const {
  v1::GetSessionRequest request;
  request.set_id(session_id);
  v1::Session session;
  call.unary(
      [&](Stubs& server, auto* context) { return server.sessions.Get(context, request, &session); },
      Again::kSafe);
  known_->durability.note(session);
  return known_->durability.of(session_id).value_or(false);
}

void Client::generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                      const OnFinish& on_finish, const Repeat& repeat,
                      Cancellation* cancellation) const {
  Call call(*this, cancellation, request.session_id());
  const std::chrono::milliseconds patience = repeat.patience.value_or(retry_);
  std::optional<bool> durable = repeat.durable;
  if (!request.call_id().empty()) durable = true;  // only of such sessions do calls have names
  if (!durable) durable = known_->durability.of(request.session_id());
  if (request.session_id().empty() || patience.count() <= 0) durable = false;
  const auto once = [&] {
    read_samples(call, request, on_chunk, on_finish,
                 request.session_id().empty() ? Again::kSafe : Again::kUnsent);
  };
  // Nothing random is needed, which the system may take a tenth of a millisecond to begin with.
  if (durable == false) return once();

  v1::GenerateRequest again = request;
  if (again.call_id().empty()) {
    again.set_call_id(random_call_id());
    // A server that forgot the call draws all values again, some of which were seen: that takes the
    // same seed. A call that its caller named may have its seed from an earlier try.
    if (!again.sampling().has_seed()) again.mutable_sampling()->set_seed(std::random_device{}());
  }
  SeenPositions seen(request.from_position());
  RepeatPauses pauses(patience);
  bool sent = false, finished = false, with_caller = false;
  const auto tell = [&with_caller](const auto& callback, const auto& what) {
    with_caller = true;  // and stays so where it throws
    if (callback) callback(what);
    with_caller = false;
  };
  for (;;) {
    try {
      if (!durable) durable = ask_durable(call, request.session_id());
      if (!*durable) break;
      read_samples(
          call, again,
          [&](const v1::Chunk& chunk) {
            pauses.something_came();
            call.try_all_again();
            if (const v1::Chunk* news = seen.new_part(chunk)) tell(on_chunk, *news);
          },
          [&](const v1::SampleFinish& finish) {
            finished = true;
            tell(on_finish, finish);
          },
          Again::kNever);
      return;
    } catch (const CallError& error) {
      const bool cancelled = cancellation != nullptr && cancellation->cancelled();
      if (with_caller || cancelled || !worth_repeating(error, sent)) throw;
      if (finished) return;  // there is nothing more to come
      // The next server may continue it at once.
      if (!call.go_on()) {
        const auto pause = pauses.next(error);
        if (!pause) throw;
        if (repeat.on_pause) repeat.on_pause({error, pauses.left()});
        call.wait(*pause);
        call.try_all_again();
      }
      sent |= durable.value_or(false) && error.unreached().empty();
    }
    call.connect_again(kConnectPatience);
    again.set_from_position(seen.next());
  }
  once();
}

void Client::generate(const v1::GenerateRequest& request, const OnChunk& on_chunk,
                      const OnFinish& on_finish, Cancellation* cancellation) const {
  generate(request, on_chunk, on_finish, Repeat(), cancellation);
}

std::vector<v1::SampleFinish> Client::generate(const v1::GenerateRequest& request,
                                               const OnChunk& on_chunk,
                                               Cancellation* cancellation) const {
  std::map<std::uint32_t, v1::SampleFinish> finished;  // by sample index
  generate(
      request, on_chunk,
      [&finished](const v1::SampleFinish& finish) { finished[finish.sample()] = finish; },
      cancellation);
  std::vector<v1::SampleFinish> all;
  for (auto& [sample, finish] : finished) all.push_back(std::move(finish));
  return all;
}

std::vector<Sample> Client::generate(const v1::GenerateRequest& request,
                                     Cancellation* cancellation) const {
  SampleCollector collector;
  const auto finished = generate(
      request, [&collector](const v1::Chunk& chunk) { collector.add(chunk); }, cancellation);
  for (const v1::SampleFinish& finish : finished) collector.finish(finish);
  return collector.take();
}

}  // namespace lintel
