// RequestHandle: what others may ask of a request while a worker owns it.
#pragma once

#include <atomic>
#include <memory>

namespace lintel {

// Shared by a request and its handles; freed with the last of them. Thread-safe.
struct RequestControl {
  std::atomic<bool> cancelled{false};  // stays set
  // The sink has room again. Cleared before every on_token of a step until one is refused, so that
  // a resume that comes between the refusal and the end of the step is not lost, and an old one
  // does not undo a later pause.
  std::atomic<bool> resumed{false};
};

// A request as its caller knows it: made first and given to Scheduler::submit, so that a sink has
// it from its first call on, and a request may be cancelled before it is submitted. Copies mean the
// same request, and outlive it safely.
class RequestHandle {
 public:
  RequestHandle() : control_(std::make_shared<RequestControl>()) {}

 private:
  friend class Scheduler;
  std::shared_ptr<RequestControl> control_;
};

}  // namespace lintel
