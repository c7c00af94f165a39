// SPDX-License-Identifier: Apache-2.0
#include "server/core/task.h"

namespace lintel {
namespace {

// A task that this thread runs; those in whose midst it began are outside of it. The task itself
// may be on another thread already, or gone.
struct TaskRun {
  const TaskPromise* task;
  TaskRun* outer;
  bool is_resumed = false;
  bool has_ended = false;
};

thread_local TaskRun* innermost_run = nullptr;

}  // namespace

void TaskPromise::resume() noexcept {
  for (TaskRun* run = innermost_run; run != nullptr; run = run->outer) {
    if (run->task != this) continue;
    run->is_resumed = true;
    return;
  }
  run();
}

void TaskPromise::run() noexcept {
  const std::shared_ptr<const TaskScope> scope = scope_;
  const std::coroutine_handle<> coroutine = coroutine_;
  TaskRun run{.task = this, .outer = innermost_run};
  innermost_run = &run;
  do {
    run.is_resumed = false;
    scope->run(coroutine);
  } while (run.is_resumed);
  innermost_run = run.outer;
  if (run.has_ended) end();
}

void TaskPromise::note_end() const noexcept { innermost_run->has_ended = true; }

}  // namespace lintel
