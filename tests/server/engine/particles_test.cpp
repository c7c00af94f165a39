// SPDX-License-Identifier: Apache-2.0
// Requests with particles: their tokens are a function of the request alone.
#include "model/layers/attention/attention.h"
#include "tests/server/engine/naive_filter.h"
#include "tests/support/catch.h"

namespace lintel::testing {
namespace {

TEST_CASE("particles return the tokens of a naive filter, alone, in any batch and in any slices",
          "[promise]") {
  const std::string attention = GENERATE(from_range(attention_types()));
  const auto kind = GENERATE(TinyModel::kImage, TinyModel::kBytes);
  CAPTURE(attention, kind == TinyModel::kImage);
  const auto model = tiny_model(kind, attention);
  const std::vector<GenerationRequest> requests = particle_requests(*model);
  std::vector<Filtered> twins;
  for (const GenerationRequest& request : requests) {
    twins.push_back(filter_naively(*model, request));
    require_twin(*Core(model).generate(request), twins.back());
  }
  for (const auto& options : std::vector<Scheduler::Options>{
           {.workers = 0, .prefill_rows_per_step = 1},
           {.workers = 0, .max_batch_rows = 16, .prefill_rows_per_step = 7},
           {.workers = 0, .max_batch_rows = 64, .speculation = Speculation::kOn},
           {.workers = 2, .max_batch_rows = 32}}) {
    CAPTURE(options.workers, options.prefill_rows_per_step);
    Core core(model, options);
    std::vector<Core::Call> calls;
    for (const GenerationRequest& request : requests) {
      calls.push_back(core.submit(request));
      GenerationRequest plain = request;  // company of another sort
      plain.particles = 1;
      core.submit(plain);
      if (options.workers == 0) core.scheduler.run_one_step();
    }
    if (options.workers == 0) core.run();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      INFO("request " << i);
      calls[i].sink->wait_until_finished();
      require_twin(*calls[i].sink, twins[i]);
    }
  }
}

TEST_CASE("particles are resampled, and one of 8-bit weights is as its twin, too", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes, "linear", WeightType::kInt8);
  std::size_t changed = 0;
  for (GenerationRequest& request : particle_requests(*model)) {
    require_twin(*Core(model).generate(request), filter_naively(*model, request));
    const auto with = Core(model).generate(request)->recorded;
    request.particles = 1;
    changed += with != Core(model).generate(request)->recorded;
  }
  CHECK(changed >= 5);  // of 8, one of which knows nothing beforehand
}

TEST_CASE("one particle, or none, is a sample as ever, and has no evidence") {
  Core core(tiny_model(TinyModel::kImage));
  GenerationRequest request = particle_requests(*core.model)[0];
  request.particles = 1;
  const auto sink = core.generate(request);
  SequenceState sequence = core.model->new_sequence();
  CHECK(sink->recorded[0] == generate_naively(*core.model, request, 0, sequence).tokens);
  CHECK_FALSE(sink->result().log2_evidence);
}

TEST_CASE("tokens are sent as soon as all particles have them, the same to every sample") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request;
  request.prompt = {1, 2};
  request.max_new_tokens = 40;
  request.particles = 4;
  request.num_samples = 3;
  for (std::int64_t position = 2; position < 42; ++position) {
    if (position % 3 != 0) request.given.push_back({position, static_cast<std::int32_t>(position)});
  }
  const auto sink = std::make_shared<RecordingSink>(3);
  core.submit(request, "", sink);
  std::size_t early = 0;
  while (core.scheduler.run_one_step()) {
    if (!sink->finished()) early = sink->recorded[0].size();
    if (!sink->finished()) REQUIRE(sink->recorded[0] == sink->recorded[2]);
  }
  CHECK(early > 10);
  require_twin(*sink, filter_naively(*core.model, request));
}

TEST_CASE("a slow reader of particles gets the same tokens") {
  Core core(tiny_model(TinyModel::kBytes));
  GenerationRequest request = particle_requests(*core.model)[1];
  const auto sink = std::make_shared<RecordingSink>(request.num_samples);
  sink->room = 1;
  const auto call = core.submit(request, "", sink);
  while (!sink->finished()) {
    core.run();
    sink->room = 1;
    core.scheduler.resume(call.handle);
  }
  require_twin(*sink, filter_naively(*core.model, request));
}

TEST_CASE("penalties over a window count what a particle has become", "[promise]") {
  const auto model = tiny_model(TinyModel::kBytes);
  GenerationRequest request = particle_requests(*model)[1];
  request.sampling.frequency_penalty = 0.7f;
  request.sampling.penalty_window = 1000;  // all there are: as without a window, by other counts
  GenerationRequest twin = request;
  twin.sampling.penalty_window = 0;
  require_twin(*Core(model).generate(request), filter_naively(*model, twin));
}

}  // namespace
}  // namespace lintel::testing
