// SPDX-License-Identifier: Apache-2.0
#include "server/api/refusals.h"

#include <chrono>
#include <string>

#include "server/rpc/status.h"

namespace lintel {

grpc::Status stopped_status(const ServedModel& model) {
  return model.retired.load() ? model_unloaded(model.name) : shutting_down();
}

namespace {

// Times after which trying again may help.
constexpr std::chrono::milliseconds kQueueRetry{200};
constexpr std::chrono::milliseconds kMemoryRetry{1000};
constexpr std::chrono::milliseconds kModelMemoryRetry{10'000};
constexpr std::chrono::milliseconds kLoadsRetry{1000};
constexpr std::chrono::milliseconds kStoreRetry{500};
constexpr std::chrono::milliseconds kStoreBrokenRetry{10'000};

// The grammar, or the schema that it was made of, asks for a text that no tokens spell.
grpc::Status no_token(std::string_view model, int needed_byte) {
  std::string text = "cannot continue: no token of model " + clip(model) + " may come next";
  if (needed_byte >= 0) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned>(needed_byte);
    text += ", where byte 0x" + std::string{kDigits[byte / 16], kDigits[byte % 16]};
    if (needed_byte > ' ' && needed_byte < 0x7F) {
      text += " (" + std::string(1, static_cast<char>(needed_byte)) + ")";
    }
    text += " is needed";
  }
  return invalid_argument({{"grammar", text}}, "NO_TOKEN");
}

}  // namespace

grpc::Status outcome_status(RequestOutcome outcome, const ServedModel& model,
                            const std::string& session_id, bool is_stored) {
  switch (outcome) {
    case RequestOutcome::kDone:
      return grpc::Status::OK;
    case RequestOutcome::kCancelled:
      return cancelled();
    case RequestOutcome::kDeadline:
      return deadline_exceeded();
    case RequestOutcome::kShutdown:
      return stopped_status(model);
    case RequestOutcome::kSession:
      return stored_refusal({outcome.error()}, session_id);
    case RequestOutcome::kMoved:
      return call_moved(session_id);
    case RequestOutcome::kAdapterEnded:
      return adapter_unloaded(model.name);
    case RequestOutcome::kNonFinite:
      return non_finite(model.name, session_id, is_stored);
    case RequestOutcome::kInternal:
      return call_failed(model.name, session_id, is_stored);
    case RequestOutcome::kGrammarWork:
      return invalid_argument(
          {{"grammar", "is too ambiguous: a token takes more work than is served"}},
          "GRAMMAR_WORK");
    case RequestOutcome::kNoToken:
      return no_token(model.name, outcome.needed_byte());
    case RequestOutcome::kMemory:
      return resource_exhausted(
          "no session memory was free in time for the request (--max-queue-wait)", kMemoryRetry);
  }
  return grpc::Status::OK;
}

namespace {

// Says which tokens are lost, where the caller saw more than there is.
grpc::Status position_mismatch(const std::string& session, const SessionRefusal& refusal) {
  const std::string position = std::to_string(refusal.highest);
  const std::string expected = std::to_string(refusal.expected);
  std::string text = session + " stands at position " + position + ", not at " + expected;
  ErrorFacts facts = {{"position", position}, {"expected_position", expected}};
  if (refusal.lowest >= 0) {
    // An interrupted call, whose tokens can all be had again.
    facts.emplace_back("start_position", std::to_string(refusal.lowest));
    text += ", in a call that was interrupted: repeat it by its call_id";
  } else if (refusal.expected > refusal.highest) {
    text += ": the tokens at positions " + position + " to " +
            std::to_string(refusal.expected - 1) + " are lost";
  }
  return wrong_state("POSITION_MISMATCH", text, facts);
}

// The end of what is said of a session whose call failed.
std::string fate_of(std::string_view session_id, bool is_stored) {
  const std::string session = "; session " + clip(session_id);
  if (!is_stored) return session + " is gone";
  return session +
         " resumes from what is stored of it: give the call up by expected_position or Rewind";
}

// FAILED_PRECONDITION: names the tokens asked for, those that fit, and what changes that.
grpc::Status never_fits(const SessionRefusal& refusal, const SessionManager::Options& store) {
  std::string text = "the state needs " + std::to_string(refusal.bytes_needed) + " bytes";
  if (refusal.expected > 0) text += " for " + std::to_string(refusal.expected) + " tokens";
  text += ", more than the " + std::to_string(refusal.bytes_free) + " there are in all";
  if (refusal.highest > 0) text += ", enough for " + std::to_string(refusal.highest) + " tokens";
  const bool is_identitys =
      store.bytes_per_owner != 0 && store.bytes_per_owner < store.session_memory_bytes;
  const std::string flag = is_identitys ? "--identity-memory" : "--session-memory";
  const bool fits_none = refusal.expected > 0 && refusal.highest == 0;
  text += fits_none ? ", and for no number of tokens: ask for fewer samples or checkpoints"
                    : ": ask for fewer tokens (max_tokens)";
  text += ", raise " + flag + " or choose a smaller --kv-type";
  return failed_precondition("SESSION_MEMORY", "session", text);
}

}  // namespace

grpc::Status stored_refusal(const SessionRefusal& refusal, std::string_view session_id) {
  const std::string session = "session " + clip(session_id);
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  switch (refusal.error) {
    case SessionError::kModelMismatch:
      return wrong_state("MODEL_MISMATCH",
                         session + " is of a model that is not loaded, or of other weights", {});
    case SessionError::kCallInterrupted:
      return wrong_state(
          "CALL_INTERRUPTED",
          session +
              " has a call that was interrupted: repeat it by its call_id, or give it up by "
              "expected_position or Rewind",
          {{"start_position", number(refusal.lowest)},
           {"stored_position", number(refusal.highest)}});
    case SessionError::kPositionMismatch:
      return position_mismatch(session, refusal);
    case SessionError::kNumericsChanged:
      return wrong_state("NUMERICS_CHANGED",
                         "the call that was interrupted on " + session +
                             " would come to other tokens on this machine: give it up by "
                             "expected_position or Rewind",
                         {{"start_position", number(refusal.lowest)},
                          {"stored_position", number(refusal.highest)}});
    case SessionError::kNumericsRefused:
      return wrong_state("NUMERICS_CHANGED",
                         session +
                             " was computed with other numerics than this machine's, and this "
                             "server refuses such sessions (--session-numerics strict)",
                         {{"position", number(refusal.highest)}});
    case SessionError::kCallDiffers:
      return invalid_argument(
          {{"call_id", "was another call's on " + session + ": a repeat asks for the same"}});
    case SessionError::kNoProbabilities:
      return wrong_state("CALL_IS_PAST",
                         "a call that is not the last one of " + session +
                             " is repeated without log-probabilities",
                         {});
    case SessionError::kHeld:
      return session_held(session_id, refusal.holder, refusal.held_for);
    case SessionError::kFenced:
      return session_fenced(session_id);
    case SessionError::kDamaged:
      return data_loss("SESSION_DAMAGED", session + " is damaged in the store");
    case SessionError::kStoreFull:
      return resource_exhausted("the session store is full", kStoreRetry);
    case SessionError::kStoreBroken:
      return store_broken(kStoreBrokenRetry);
    default:
      return unavailable("the session store is busy or away", kStoreRetry);
  }
}

grpc::Status non_finite(std::string_view model, std::string_view session_id, bool is_stored) {
  const std::string cause = "model " + clip(model) + " produced a value that is not finite";
  if (session_id.empty()) return internal_error("model", model, cause);
  return internal_error("session", session_id, cause + fate_of(session_id, is_stored));
}

grpc::Status call_failed(std::string_view model, std::string_view session_id, bool is_stored) {
  const std::string cause = "the server failed while running model " + clip(model);
  if (session_id.empty()) return internal_error("model", model, cause);
  return internal_error("session", session_id, cause + fate_of(session_id, is_stored));
}

grpc::Status store_refusal(const SessionRefusal& refusal, const SessionManager::Options& store,
                           std::string_view session_id, std::string_view owner) {
  switch (refusal.error) {
    case SessionError::kNone:
      break;
    case SessionError::kNotFound:
      return not_found(
          "session", session_id,
          "no session " + clip(session_id) + ": unknown, deleted or evicted when idle");
    case SessionError::kUnloaded:
      return not_found("session", session_id,
                       "session " + clip(session_id) +
                           " was closed when its model was unloaded or another version took its "
                           "place, or its adapter was unloaded");
    case SessionError::kBusy:
      return session_busy(session_id);
    case SessionError::kTooManySessions:
      return resource_exhausted(
          "all " + std::to_string(store.max_sessions) + " sessions are in use", kMemoryRetry);
    case SessionError::kOutOfMemory:
      return resource_exhausted("the state needs " + std::to_string(refusal.bytes_needed) +
                                    " bytes and " + std::to_string(refusal.bytes_free) + " of " +
                                    std::to_string(store.session_memory_bytes) + " are free",
                                kMemoryRetry);
    case SessionError::kOwnerTooManySessions:
      return quota_exceeded(owner, std::to_string(store.max_sessions_per_owner) + " sessions",
                            kMemoryRetry);
    case SessionError::kOwnerOutOfMemory:
      return quota_exceeded(owner,
                            std::to_string(store.bytes_per_owner) + " bytes of state, " +
                                std::to_string(refusal.bytes_needed) + " more are needed",
                            kMemoryRetry);
    case SessionError::kTooLarge:
      return never_fits(refusal, store);
    case SessionError::kNeedsMaxTokens:
      return invalid_argument(
          {{"max_tokens", "is needed: the state of this model grows with the sequence"}});
    case SessionError::kOutOfRange:
      return out_of_range("session " + clip(session_id) + " can be had at positions " +
                              std::to_string(refusal.lowest) + " to " +
                              std::to_string(refusal.highest),
                          refusal.lowest, refusal.highest);
    case SessionError::kDigestMismatch:
      return wrong_state(
          "POSITION_MISMATCH",
          "the history of session " + clip(session_id) + " is not the one with the expected digest",
          {});
    default:
      return stored_refusal(refusal, session_id);
  }
  return grpc::Status::OK;
}

grpc::Status submit_status(Scheduler::SubmitError error, const ServedModel& model) {
  const Scheduler::Options& scheduling = model.scheduler->options();
  switch (error) {
    case Scheduler::SubmitError::kNone:
      break;
    case Scheduler::SubmitError::kQueueFull:
      return resource_exhausted(
          "the queue is full: " + std::to_string(scheduling.max_queued_requests) +
              " requests wait, or fewer that hold " + std::to_string(scheduling.max_queued_bytes) +
              " bytes",
          kQueueRetry);
    case Scheduler::SubmitError::kDraining:
      return stopped_status(model);
  }
  return grpc::Status::OK;
}

grpc::Status load_status(const std::optional<LoadRefusal>& refusal) {
  if (!refusal) return grpc::Status::OK;
  switch (refusal->kind) {
    case LoadRefusal::Kind::kNotFound:
      if (!refusal->adapter.empty()) return not_found("adapter", refusal->adapter, refusal->text);
      return not_found("model", refusal->model, refusal->text);
    case LoadRefusal::Kind::kUnusable:
      if (!refusal->adapter.empty()) {
        return failed_precondition("ADAPTER", refusal->adapter, refusal->text);
      }
      return failed_precondition("MODEL", refusal->model, refusal->text);
    case LoadRefusal::Kind::kOutOfModelMemory:
      return resource_exhausted(refusal->text, kModelMemoryRetry);
    case LoadRefusal::Kind::kTooManyLoads:
      return resource_exhausted(refusal->text, kLoadsRetry);
    case LoadRefusal::Kind::kStopping:
      return shutting_down();
    case LoadRefusal::Kind::kOutOfMemory:
      return out_of_memory();
    case LoadRefusal::Kind::kFailed:
      break;
  }
  return internal_error("server", "", refusal->text);
}

grpc::Status adapter_unloaded(std::string_view model) {
  return unavailable("the adapter of model " + clip(model) + " that the call used was unloaded",
                     kQueueRetry);
}

grpc::Status model_unloaded(std::string_view model) {
  return unavailable("model " + clip(model) + " was unloaded, or another version took its place",
                     kQueueRetry);
}

}  // namespace lintel
