// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>
#include <mutex>

#include "client/cli/commands.h"
#include "client/cli/complete_output.h"
#include "client/cli/completion.h"
#include "client/cli/model_choice.h"
#include "client/cli/output.h"

namespace lintel::cli {
namespace {

constexpr const char* kCompleteFooter = R"(
Known pixels stay exactly as they are; the hidden ones are sampled in raster order, row by row, each given
the pixels before it. Known pixels after a hidden one are fed in their places and do not influence it: with
top, left, box and random the model draws what fits the pixels above, and to the left in the row, not
those that follow. With --particles they do. A hidden first pixel becomes the model's start token. A PNG may hold many images of
the model's size side by side; like MNIST it is light on dark, or --invert. A photograph of one digit, of
any size, is put as MNIST's are by --fit. Of a model of colours each pixel is three tokens, and results have
all of them; what a grey one sees of colours is how light they are.

Seeds: sample i of the image with index j is drawn with seed S + 65536 j + i; image i drawn from nothing
with S + i. `lintel generate` gives the same tokens for the same prompt and seed. --best-of N draws N times
as many samples and keeps one of each N in a row; particle i draws with the seed of sample i.

results.json: model, fingerprint, weight_type, adapter (where there is one), occlusion, images [{index, seed, hidden_pixels, samples
[{seed, best_of or particles (above 1), log2_evidence (with particles: of all known pixels after the
first hidden one, summed over the hidden ones), tokens (the whole image), log2_prob (of the sampled pixels), log2_prob_given, finish_reason,
counts, queued_seconds, seconds}]}], totals. The speed counts every completed image, and every token
produced after a prompt. It is the last line of standard output, which with --json - holds the results
alone. A run that fails or is interrupted writes what was done by then, and its exit status is not 0.

Examples:
  lintel complete --images t10k-images-idx3-ubyte.gz --occlude bottom:14 --samples 4 --out grid.png --watch
  lintel complete --images digits.png --index 3,5,8 --occlude random:0.7 --json results.json
  lintel complete --images digits.png --occlude left:14 --best-of 32 --particles 1,8,32 --out ways.png --headings
  lintel complete --images photo.png --fit --samples 8 --animate digit.png --headings
  lintel complete --unconditional 100 --out digits.png --scale 1 --gap 0)";

constexpr std::uint64_t kSeedsPerImage = 65536;
constexpr std::int64_t kMaxGridPixels = 64'000'000;
constexpr std::int64_t kMaxAnimatedPixels = 4'000'000;  // each frame is drawn

struct CompleteFlags {
  ConnectionFlags connection;
  FieldFlags fields;
  ImageFileFlags images;
  std::string occlude = "bottom:14", out, animate, json, adapter;
  std::uint32_t samples = 1;
  std::vector<int> best_of, particles;
  std::optional<std::uint32_t> unconditional;
  std::uint32_t concurrency = 16;
  std::uint32_t scale = 3;
  std::uint32_t gap = 2;
  bool watch = false;
  bool headings = false;
  CLI::Option* occlude_option = nullptr;
};

auto in_range(std::uint32_t low, std::uint32_t high) {
  return [low, high](std::string_view flag, std::string_view text) {
    const std::uint32_t number = parse_uint32(flag, text);
    if (number < low || number > high) {
      refuse_flag(flag, text, "expected " + std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  };
}

// Returns the result of `call`, whose error becomes one of the flag.
template <typename Call>
auto of_occlude_flag(const Call& call) {
  try {
    return call();
  } catch (const std::invalid_argument& error) {
    throw UsageError(std::string("--occlude: ") + error.what());
  }
}

// A mask of pixels as one of their tokens.
std::vector<bool> of_tokens(const std::vector<bool>& pixels, int channels) {
  std::vector<bool> tokens;
  for (const bool pixel : pixels) {
    tokens.insert(tokens.end(), static_cast<std::size_t>(channels), pixel);
  }
  return tokens;
}

// The images chosen, with their masks.
std::vector<CompletedImage> choose_images(const CompleteFlags& flags, const ImageModel& model,
                                          const Occlusion& occlusion, std::uint64_t seed,
                                          Console& console) {
  std::vector<CompletedImage> chosen;
  for (IndexedImage& one : read_images_for(model, flags.images, /*most=*/10, console)) {
    CompletedImage image;
    image.index = one.index;
    image.seed = seed + kSeedsPerImage * static_cast<std::uint64_t>(one.index);
    image.original = std::move(one.image);
    image.hidden = of_tokens(
        of_occlude_flag([&] { return occlusion.hidden(model.height, model.width, image.seed); }),
        model.channels);
    chosen.push_back(std::move(image));
  }
  return chosen;
}

// Everything hidden: what is drawn from nothing.
std::vector<CompletedImage> empty_images(std::uint32_t count, const ImageModel& model,
                                         std::uint64_t seed) {
  std::vector<CompletedImage> images(count);
  const auto size = static_cast<std::size_t>(model.height * model.width) *
                    static_cast<std::size_t>(model.channels);
  for (std::uint32_t i = 0; i < count; ++i) {
    images[i].seed = seed + i;
    images[i].hidden.assign(size, true);
  }
  return images;
}

// A job for each image in each way, image by image.
std::vector<CompletionJob> make_jobs(const std::vector<CompletedImage>& images,
                                     const ImageModel& model, const std::vector<Way>& ways,
                                     int samples) {
  std::vector<CompletionJob> jobs;
  for (const CompletedImage& image : images) {
    if (image.hidden[0] && !model.start_token) {
      throw UsageError("the first pixel is hidden and this model has no start token");
    }
    GrayImage known = image.original;
    known.pixels.resize(image.hidden.size());  // black where drawn from nothing
    const CompletionPlan plan = plan_completion(known, image.hidden, model.start_token.value_or(0));
    for (const Way& way : ways) {
      jobs.push_back({plan, image.seed, samples * way.best_of, way.particles});
    }
  }
  return jobs;
}

// Pictures that the terminal shows of an image before its samples: the original and what is left of
// it.
int lead_frames(const CompletedImage& image) { return image.original.pixels.empty() ? 0 : 2; }

// The terminal's first frames: of each image the lead, then `samples` times the pixels known.
std::vector<Canvas> first_frames(const std::vector<CompletedImage>& images, const ImageModel& model,
                                 int samples) {
  std::vector<Canvas> frames;
  for (const CompletedImage& image : images) {
    GrayImage known{model.height, model.width * model.channels, image.original.pixels};
    known.pixels.resize(image.hidden.size());
    Canvas frame = occluded_canvas(known, image.hidden, model.channels);
    if (lead_frames(image) > 0) {
      frames.push_back(occluded_canvas(image.original, {}, model.channels));
      frames.push_back(frame);
    }
    if (image.hidden[0] && model.channels == 1) frame.cells[0] = model.start_token.value_or(0);
    for (int i = 0; i < samples; ++i) frames.push_back(frame);
  }
  return frames;
}

// Runs the jobs while the terminal shows them, or a progress bar.
CompletionOutcome complete_in_view(const CompleteFlags& flags, const Client& client,
                                   const std::vector<CompletedImage>& images,
                                   const std::vector<CompletionJob>& jobs, const ImageModel& model,
                                   CompletionOptions options, Console& console) {
  // The frames of an image: its lead, then the samples of its jobs.
  const std::size_t ways = jobs.size() / images.size();
  const int lead = lead_frames(images.front());
  int samples = 0;
  std::vector<int> first_of_way;
  for (std::size_t way = 0; way < ways; ++way) {
    first_of_way.push_back(lead + samples);
    samples += jobs[way].samples;
  }
  const int group = lead + samples;
  const auto frame_of = [&](std::size_t job, int sample) {
    return job / ways * static_cast<std::size_t>(group) +
           static_cast<std::size_t>(first_of_way[job % ways] + sample);
  };
  std::unique_ptr<Watch> watch;
  if (flags.watch && console.err_is_terminal()) {
    const TerminalInfo terminal = terminal_info(console.err_fd());
    if (Watch::fits(terminal, model.height, model.width)) {
      watch =
          std::make_unique<Watch>(console, terminal, first_frames(images, model, samples), group);
      for (std::size_t image = 0; image < images.size(); ++image) {
        for (int i = 0; i < lead; ++i) watch->finish(frame_of(image * ways, i - lead));
      }
      options.max_tokens_per_message = 1;
    }
  }
  Progress progress(console, static_cast<std::int64_t>(images.size()) * samples, "images", !watch);
  std::mutex progress_mutex;
  std::vector<std::vector<std::uint8_t>> colors(
      model.channels == 1 ? 0 : images.size() * static_cast<std::size_t>(group));
  CompletionObserver observer;
  if (watch) {
    observer.on_chunk = [&](std::size_t job, int sample, const v1::Chunk& chunk) {
      const std::size_t frame = frame_of(job, sample);
      const auto first = static_cast<std::size_t>(chunk.first_position());
      if (model.channels == 1) {
        watch->set(frame, first, std::vector<Cell>(chunk.tokens().begin(), chunk.tokens().end()));
        return;
      }
      // A pixel is shown with its last token. Each sample's are one thread's.
      std::vector<std::uint8_t>& tokens = colors[frame];
      if (tokens.empty()) {
        tokens = jobs[job].plan.prompt;
        tokens.resize(images[job / ways].hidden.size());
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(chunk.tokens_size()); ++i) {
        if (first + i >= tokens.size()) return;
        tokens[first + i] = static_cast<std::uint8_t>(chunk.tokens(static_cast<int>(i)));
        if ((first + i) % 3 != 2) continue;
        const std::uint8_t* const parts = &tokens[first + i - 2];
        watch->set(frame, (first + i) / 3, {rgb_cell({parts[0], parts[1], parts[2]})});
      }
    };
  }
  observer.on_finish = [&](std::size_t job, int sample) {
    if (watch) watch->finish(frame_of(job, sample));
    const std::lock_guard lock(progress_mutex);
    progress.add(1);
  };
  return run_completions(client, jobs, options, observer, console.cancellation());
}

// The files of --out, --animate and --json. Opened before there is anything to put into them.
struct Outputs {
  Outputs(const CompleteFlags& flags) {
    if (!flags.out.empty()) picture.emplace("--out", flags.out);
    if (!flags.animate.empty()) animation.emplace("--animate", flags.animate);
    if (!flags.json.empty() && flags.json != "-") results.emplace("--json", flags.json);
  }
  std::optional<OutputFile> picture, animation, results;
};

void write_outputs(const CompleteFlags& flags, const CompletionRun& run, const ImageModel& model,
                   const GridStyle& style, Outputs& outputs, Console& console) {
  if (outputs.picture) outputs.picture->write(picture_png(run, model, style));
  if (outputs.animation) outputs.animation->write(animation_png(run, model, style));
  if (flags.json.empty()) return;
  const std::string json = results_json(run) + "\n";
  outputs.results ? outputs.results->write(json) : console.out(json);
}

// Results from before a failure are the user's.
void write_part(const CompleteFlags& flags, CompletionRun run, const ImageModel& model,
                const GridStyle& style, Outputs& outputs, Console& console) {
  std::size_t wanted = 0;
  for (const CompletedImage& image : run.images) wanted += image.samples.size();
  std::erase_if(run.images, [](const CompletedImage& image) {
    return std::none_of(image.samples.begin(), image.samples.end(),
                        [](const Completion& sample) { return sample.done; });
  });
  if (run.images.empty()) return;
  write_outputs(flags, run, model, style, outputs, console);
  console.flush();
  console.err("lintel: " + std::to_string(num_done(run)) + " of " + std::to_string(wanted) +
              " images were done" +
              (flags.out.empty() && flags.animate.empty() && flags.json.empty()
                   ? "\n"
                   : " and are written\n"));
}

// A name that promises another kind of picture.
bool is_other_picture(const std::string& file) {
  std::string kind = std::filesystem::path(file).extension();
  std::transform(kind.begin(), kind.end(), kind.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  static constexpr const char* kOthers[] = {".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".avif",
                                            ".tif", ".tiff", ".svg", ".pdf", ".pgm",  ".ppm"};
  return std::find(std::begin(kOthers), std::end(kOthers), kind) != std::end(kOthers);
}

void check_picture(const std::string& flag, const std::string& file, const std::string& kind) {
  if (is_other_picture(file)) {
    throw UsageError(flag + ": what is written is " + kind + "; name it FILE.png");
  }
  if (file == "-") throw UsageError(flag + ": the picture goes into a file, FILE.png");
}

void check_flags(const CompleteFlags& flags) {
  if (flags.images.file.empty() == !flags.unconditional) {
    throw UsageError("complete: expected --images or --unconditional, one of them");
  }
  check_picture("--out " + flags.out, flags.out, "PNG");
  check_picture("--animate " + flags.animate, flags.animate, "an animated PNG");
  if (flags.headings && flags.out.empty() && flags.animate.empty()) {
    throw UsageError("--headings goes with --out or --animate");
  }
  if (flags.images.fit && flags.images.invert) {
    throw UsageError("--invert goes without --fit, which looks at the border itself");
  }
  if (!flags.unconditional) return;
  if (!flags.particles.empty()) {
    throw UsageError("--particles goes with --images; --unconditional knows no pixel beforehand");
  }
  if (!flags.best_of.empty()) {
    throw UsageError("--best-of goes with --images; --unconditional N draws N");
  }
  if (flags.samples != 1) {
    throw UsageError("--samples goes with --images; --unconditional N draws N");
  }
  if (flags.occlude_option->count() > 0) {
    throw UsageError("--occlude goes with --images; --unconditional draws every pixel");
  }
  flags.images.check_unused();
  if (flags.headings) throw UsageError("--headings goes with --images");
}

int run_complete(const CompleteFlags& flags, Console& console) {
  check_flags(flags);
  const Occlusion occlusion = of_occlude_flag([&] { return Occlusion::parse(flags.occlude); });
  const Client client = flags.connection.connect();
  Outputs outputs(flags);
  CompletionRun run;
  run.model = choose_model(client, flags.connection.model, "image", console.cancellation());
  const ImageModel model = image_model(run.model);
  const std::uint64_t seed = flags.fields.seed.value_or(0);
  if (!flags.unconditional) run.occlusion = occlusion.text();
  run.images = flags.unconditional ? empty_images(*flags.unconditional, model, seed)
                                   : choose_images(flags, model, occlusion, seed, console);
  const std::vector<Way> ways = ways_of(flags.best_of, flags.particles);
  const int samples = static_cast<int>(flags.samples);
  const int columns = samples * static_cast<int>(ways.size());
  const GridStyle style{static_cast<int>(flags.scale), static_cast<int>(flags.gap), flags.headings};
  const std::int64_t pixels =
      picture_pixels(model, run.images.size(), columns, flags.unconditional.has_value(), style);
  if (!flags.out.empty() && pixels > kMaxGridPixels) {
    throw UsageError(
        "--out: the picture would have more than 64 million pixels; take fewer images "
        "or a smaller --scale");
  }
  if (!flags.animate.empty() && pixels > kMaxAnimatedPixels) {
    throw UsageError(
        "--animate: the picture would have more than 4 million pixels; take fewer images "
        "or a smaller --scale");
  }
  CompletionOptions options;
  options.model = run.model.name();
  options.adapter = run.adapter = flags.adapter;
  flags.fields.fill(options.settings);
  options.concurrency = static_cast<int>(flags.concurrency);
  options.max_samples_per_call = run.model.limits().max_samples();
  options.patience = flags.connection.deadline();
  const std::vector<CompletionJob> jobs = make_jobs(run.images, model, ways, samples);

  const auto start = std::chrono::steady_clock::now();
  auto outcome = complete_in_view(flags, client, run.images, jobs, model, options, console);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::size_t i = 0; i < run.images.size(); ++i) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      for (Completion& sample :
           keep_best(std::move(outcome.results[i * ways.size() + way]), ways[way].best_of)) {
        run.images[i].samples.push_back(std::move(sample));
      }
    }
  }
  if (outcome.error) {
    write_part(flags, std::move(run), model, style, outputs, console);
    std::rethrow_exception(outcome.error);
  }
  write_outputs(flags, run, model, style, outputs, console);
  const std::string speed = speed_line(run) + "\n";
  flags.json == "-" ? console.err(speed) : console.out(speed);
  return kOk;
}

void add_flags(CLI::App& command, CompleteFlags& flags) {
  flags.images.add_to(command, "Images to complete: IDX (also .gz) or PNG", "the first ten");
  flags.occlude_option =
      add_text(command, "--occlude", flags.occlude, "MASK",
               "What to hide: bottom:N, top:N, left:N, right:N (rows or columns), box:R,C,H,W (row "
               "and column of the corner, height, width), random:P (each pixel with probability "
               "P), none. A hidden pixel is drawn from those before it, row by row: what is known "
               "after it does not count")
          ->capture_default_str();
  add_parsed(command, "--samples", flags.samples, in_range(1, kSeedsPerImage), "K",
             "Completions of each image [1]");
  add_parsed(
      command, "--particles", flags.particles, parse_counts, "N[,N...]",
      "Complete each image N times at once, each weighed by the known pixels as they come, and "
      "choose from those: known pixels then influence hidden ones before them. At most the "
      "model's rows of a step; 1: as without. Several N: in each of these ways, to compare");
  add_parsed(command, "--best-of", flags.best_of, parse_counts, "N[,N...]",
             "Complete each image N times and keep the one whose pixels, known and drawn, are the "
             "most probable together");
  add_parsed(command, "--unconditional", flags.unconditional, in_range(1, 1'000'000), "N",
             "Draw N images from nothing instead");
  add_text(command, "--out", flags.out, "FILE.png",
           "Picture to write, a PNG: original, occluded and completions, a row for each image");
  add_text(command, "--animate", flags.animate, "FILE.png",
           "Animated picture to write, an APNG: the completions come pixel by pixel");
  command.add_flag("--headings", flags.headings,
                   "Say in the pictures what their columns are, and which images of the file");
  add_text(command, "--json", flags.json, "FILE", "Results to write; - is standard output");
  command.add_flag("--watch", flags.watch,
                   "Paint original, occluded and completions in the terminal, on standard error, "
                   "while they stream");
  add_parsed(command, "--concurrency", flags.concurrency, in_range(1, 1024), "C",
             "Streams at a time [16]");
  add_parsed(command, "--scale", flags.scale, in_range(1, 64), "N",
             "Size of a pixel in the picture [3]");
  add_parsed(command, "--gap", flags.gap, in_range(0, 64), "N",
             "Pixels between the images of the picture [2]");
  add_adapter_flag(command, flags.adapter);
  flags.fields.add_sampling_to(command, "S; the same one gives the same images [0]");
  flags.connection.add_to(command);
  command.footer(kCompleteFooter);
}

}  // namespace

void add_complete(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<CompleteFlags>();
  CLI::App* command =
      app.add_subcommand("complete", "Complete images of which a part is hidden, or draw new ones");
  add_flags(*command, *flags);
  on_chosen(*command, command_line,
            [flags, &command_line] { return run_complete(*flags, command_line.console); });
}

}  // namespace lintel::cli
