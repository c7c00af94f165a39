#include "server/config/model_flags.h"

#include "model/config/kind_pages.h"

namespace lintel {
namespace {

ServerOptions& whole(ServerOptions& options) { return options; }
ModelOptions& models(ServerOptions& options) { return options.models; }
RequestLimits& limits(ServerOptions& options) { return options.models.limits; }

AttentionSpec parse_attention(const std::string& text) {
  try {
    return parse_attention_spec(text);
  } catch (const ModelError& error) {
    throw UsageError(error.what());
  }
}

std::string show_attention(const std::optional<AttentionSpec>& attention) {
  return attention ? attention->text : "";
}

}  // namespace

std::vector<Flag> model_flags() {
  using Options = ModelOptions;
  return {
      list_flag("--model", models, &Options::directories, "[NAME=]DIR", parse_model_directory,
                "Model directory to serve; repeat for several. NAME is the last component of DIR "
                "unless given. Without it, --model-repository and --config: the small models that "
                "come with the program"),
      path_flag("--model-repository", models, &Options::repository, "DIR",
                "Directory of models that can be loaded, reloaded and unloaded while the server "
                "runs (`lintel model load NAME`): DIR/NAME/, or DIR/NAME/1/, DIR/NAME/2/ ... for "
                "versions, of which the highest is taken"),
      list_flag(
          "--load-model", models, &Options::load, "NAME",
          [](const std::string& name) { return name; },
          "Model of the repository to load at the start; repeat for several, '*' for all"),
      list_flag(
          "--adapter", models, &Options::adapters, "[MODEL:]NAME=DIR", parse_adapter_directory,
          "LoRA adapter of a model, as PEFT writes it, in addition to those in adapters/NAME/ of "
          "the model's directory, which are loaded with it; repeat for several. MODEL may be left "
          "out where one model is served. Requests name it: `lintel generate --adapter NAME`"),
      bytes_flag(
          "--model-memory", models, &Options::memory_bytes, 0, kMostBytes,
          "Memory for the weights and tables of all models and adapters, and for what loading "
          "one takes in addition; computed from the files before any weight is read. 0: no "
          "bound"),
      choice_flag<Options, std::optional<WeightType>>(
          "--weight-type", models, &Options::weight_type, "TYPE",
          {{"auto", std::nullopt},
           {"f32", WeightType::kF32},
           {"bf16", WeightType::kBf16},
           {"int8", WeightType::kInt8}},
          "Type of the matrices in memory and in products, for any type in the file: f32, bf16, or "
          "int8 (a scale for each output, inputs quantised row by row). The predictor, the norms "
          "and the states stay in f32. auto: the fastest of them that loses at most 0.002 bits a "
          "value against f32, found while the model is loaded (`lintel model get` says what was "
          "found); "
          "f32 of small models"),
      choice_flag<Options, KernelChoice>(
          "--kernels", models, &Options::kernels, "WHOSE",
          {{"auto", KernelChoice::kAuto},
           {"own", KernelChoice::kOwn},
           {"onednn", KernelChoice::kOneDnn}},
          "Who multiplies the matrices: our own kernels, or oneDNN wherever a row has the same "
          "bits "
          "in any batch of it (else our own). auto: for each weight type what is faster on this "
          "machine, by a table. int8 has the same bits either way, f32 and bf16 have not. What "
          "runs "
          "is logged, and in `lintel model get`"),
      text_flag("--attention", models, &Options::attention, "SPEC", parse_attention, show_attention,
                "Runs the weights with another attention than they were trained for, to compare "
                "speed: TYPE or TYPE:KEY=VALUE,KEY=VALUE with keys as in config.json, e.g. "
                "softmax:scale=0.2 or lsh:rounds=4,bits=32,chunk_size=29,seed=7 (seed: of tensors "
                "that the weights have not). recompute=true keeps no state and runs the whole "
                "prefix for every token, as published baselines did. Types and their keys: " +
                    kinds_help()),
      switch_flag(
          "--print-numerics", whole, &ServerOptions::print_numerics,
          "Does not serve: prints a line for each model, its name, version, the hash of "
          "what this machine computes with it (`lintel model get`: numerics) and what "
          "computes it. Machines with equal hashes continue each other's sessions bit for bit"),
  };
}

std::vector<Flag> request_limit_flags() {
  using Limits = RequestLimits;
  constexpr std::int64_t kMost = 1'000'000'000;
  return {
      number_flag("--max-prompt-tokens", limits, &Limits::max_prompt_tokens, 1, kMost,
                  "Tokens of a prompt"),
      number_flag("--max-new-tokens", limits, &Limits::max_new_tokens, 1, kMost,
                  "Tokens a call produces for each sample"),
      number_flag("--max-samples", limits, &Limits::max_samples, 1, 4096,
                  "Samples of one prompt; also at most --max-batch-rows"),
      number_flag("--max-top-log2-probs", limits, &Limits::max_top_log2_probs, 0, 4096,
                  "Most likely values reported for each token"),
      number_flag("--max-stop-strings", limits, &Limits::max_stop_strings, 0, 1024,
                  "Stop strings of a call"),
      number_flag("--max-given-tokens", limits, &Limits::max_given_tokens, 0, kMost,
                  "Given tokens of a call"),
      number_flag("--max-score-tokens", limits, &Limits::max_score_tokens, 2, kMost,
                  "Tokens of a Score call, all sequences (65536 at most) together"),
  };
}

}  // namespace lintel
