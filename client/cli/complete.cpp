#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>

#include "client/cli/commands.h"
#include "client/cli/complete_report.h"
#include "client/cli/progress.h"
#include "client/cli/watch.h"
#include "client/image/image_file.h"
#include "client/image/png.h"

namespace lintel::cli {
namespace {

constexpr const char* kFooter = R"(
Known pixels stay exactly as they are; the hidden ones are sampled in raster order, those before and
after them known. A hidden first pixel becomes the model's start token. A PNG may hold many images side
by side; like MNIST it is white on black.

Seeds: sample i of the image with index j is drawn with seed S + 65536 j + i; image i drawn from nothing
with S + i. `lintel generate` gives the same values for the same prompt and seed.

results.json: model, fingerprint, weight_type, occlusion, images [{index, seed, hidden_pixels, samples
[{seed, tokens (the whole image), log2_prob (of the sampled pixels), log2_prob_given, finish_reason,
counts, queued_seconds, seconds}]}], totals. The speed counts every completed image, and every value
produced after a prompt. It is the last line of standard output, which with --json - holds the results
alone.

Examples:
  lintel complete --images t10k-images-idx3-ubyte.gz --occlude bottom:14 --samples 4 --out grid.png --watch
  lintel complete --images digits.png --index 3,5,8 --occlude random:0.7 --json results.json
  lintel complete --unconditional 100 --out digits.png --scale 1 --gap 0)";

constexpr std::uint64_t kSeedsPerImage = 65536;
constexpr std::int64_t kMaxGridPixels = 64'000'000;

struct CompleteFlags {
  ConnectionFlags connection;
  SamplingFlags sampling;
  std::string images, index, occlude = "bottom:14", out, json;
  std::uint32_t samples = 1;
  std::optional<std::uint32_t> unconditional;
  std::uint32_t concurrency = 16;
  std::uint32_t scale = 3;
  std::uint32_t gap = 2;
  bool watch = false;
  bool invert = false;
};

auto in_range(std::uint32_t low, std::uint32_t high) {
  return [low, high](std::string_view flag, std::string_view text) {
    const std::uint32_t number = parse_uint32(flag, text);
    if (number < low || number > high) {
      throw UsageError(std::string(flag) + " '" + std::string(text) + "': expected " +
                       std::to_string(low) + " to " + std::to_string(high));
    }
    return number;
  };
}

Occlusion parse_occlusion(const std::string& text) {
  try {
    return Occlusion::parse(text);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

// The images chosen, with their masks.
std::vector<CompletedImage> choose_images(const CompleteFlags& flags, const ImageModel& model,
                                          const Occlusion& occlusion, std::uint64_t seed) {
  std::vector<GrayImage> file = read_images(flags.images, model.height, model.width);
  const auto count = static_cast<std::int64_t>(file.size());
  const std::string all = "0-" + std::to_string(std::min<std::int64_t>(count, 10) - 1);
  std::vector<CompletedImage> chosen;
  for (const std::int64_t index :
       parse_indices("--index", flags.index.empty() ? all : flags.index, count)) {
    CompletedImage image;
    image.index = index;
    image.seed = seed + kSeedsPerImage * static_cast<std::uint64_t>(index);
    image.original = file[static_cast<std::size_t>(index)];
    if (flags.invert) {
      for (std::uint8_t& pixel : image.original.pixels) pixel = static_cast<std::uint8_t>(~pixel);
    }
    try {
      image.hidden = occlusion.hidden(model.height, model.width, image.seed);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
    chosen.push_back(std::move(image));
  }
  return chosen;
}

// Everything hidden: what is drawn from nothing.
std::vector<CompletedImage> empty_images(std::uint32_t count, const ImageModel& model,
                                         std::uint64_t seed) {
  std::vector<CompletedImage> images(count);
  const auto size = static_cast<std::size_t>(model.height) * static_cast<std::size_t>(model.width);
  for (std::uint32_t i = 0; i < count; ++i) {
    images[i].seed = seed + i;
    images[i].hidden.assign(size, true);
  }
  return images;
}

std::vector<CompletionJob> make_jobs(const std::vector<CompletedImage>& images,
                                     const ImageModel& model, int samples) {
  std::vector<CompletionJob> jobs;
  for (const CompletedImage& image : images) {
    if (image.hidden[0] && !model.start_token) {
      throw UsageError("the first pixel is hidden and this model has no start token");
    }
    GrayImage known = image.original;
    known.pixels.resize(image.hidden.size());  // black where drawn from nothing
    jobs.push_back(
        {plan_completion(known, image.hidden, model.start_token.value_or(0)), image.seed, samples});
  }
  return jobs;
}

// What the terminal shows first: each image `samples` times, with the pixels that are known.
std::vector<Canvas> first_frames(const std::vector<CompletedImage>& images, const ImageModel& model,
                                 int samples) {
  std::vector<Canvas> frames;
  for (const CompletedImage& image : images) {
    GrayImage known{model.height, model.width, image.original.pixels};
    known.pixels.resize(image.hidden.size());
    Canvas frame = occluded_canvas(known, image.hidden);
    if (image.hidden[0]) frame.cells[0] = model.start_token.value_or(0);
    for (int i = 0; i < samples; ++i) frames.push_back(frame);
  }
  return frames;
}

// Runs the jobs while the terminal shows them, or a progress bar.
std::vector<std::vector<Completion>> complete_in_view(const CompleteFlags& flags,
                                                      const Client& client,
                                                      const std::vector<CompletedImage>& images,
                                                      const std::vector<CompletionJob>& jobs,
                                                      const ImageModel& model,
                                                      CompletionOptions options, Console& console) {
  const int samples = jobs.front().samples;
  std::unique_ptr<Watch> watch;
  if (flags.watch && console.err_is_terminal()) {
    const TerminalInfo terminal = terminal_info(console.err_fd());
    if (Watch::fits(terminal, model.height, model.width)) {
      watch = std::make_unique<Watch>(console, terminal, first_frames(images, model, samples));
      options.max_tokens_per_message = 1;
    }
  }
  Progress progress(console, static_cast<std::int64_t>(jobs.size()) * samples, "images", !watch);
  std::mutex progress_mutex;
  const auto frame_of = [samples](std::size_t job, int sample) {
    return job * static_cast<std::size_t>(samples) + static_cast<std::size_t>(sample);
  };
  CompletionObserver observer;
  if (watch) {
    observer.on_chunk = [&](std::size_t job, int sample, const v1::Chunk& chunk) {
      const std::vector<std::int16_t> pixels(chunk.tokens().begin(), chunk.tokens().end());
      watch->set(frame_of(job, sample), static_cast<std::size_t>(chunk.first_position()), pixels);
    };
  }
  observer.on_finish = [&](std::size_t job, int sample) {
    if (watch) watch->finish(frame_of(job, sample));
    const std::lock_guard lock(progress_mutex);
    progress.add(1);
  };
  return run_completions(client, jobs, options, observer, console.cancellation());
}

void write_results(const std::string& file, const std::string& json, Console& console) {
  if (file == "-") return console.out(json + "\n");
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << json << '\n';
  out.flush();
  if (!out) throw Failure(file + ": cannot be written: " + std::strerror(errno));
}

void check_flags(const CompleteFlags& flags) {
  if (flags.images.empty() == !flags.unconditional) {
    throw UsageError("complete: expected --images or --unconditional, one of them");
  }
  if (flags.unconditional && flags.samples != 1) {
    throw UsageError("--samples goes with --images; --unconditional N draws N");
  }
}

int run_complete(const CompleteFlags& flags, Console& console) {
  check_flags(flags);
  const Occlusion occlusion = parse_occlusion(flags.occlude);
  const Client client = flags.connection.connect();
  CompletionRun run;
  run.model = client.get_model(flags.connection.model, &console.cancellation());
  const ImageModel model = image_model(run.model);
  const std::uint64_t seed = flags.sampling.seed.value_or(0);
  if (!flags.unconditional) run.occlusion = occlusion.text();
  run.images = flags.unconditional ? empty_images(*flags.unconditional, model, seed)
                                   : choose_images(flags, model, occlusion, seed);
  const int samples = static_cast<int>(flags.samples);
  const GridStyle style{static_cast<int>(flags.scale), static_cast<int>(flags.gap)};
  if (!flags.out.empty() && grid_pixels(model, run.images.size(), samples,
                                        flags.unconditional.has_value(), style) > kMaxGridPixels) {
    throw UsageError(
        "--out: the picture would have more than 64 million pixels; take fewer images "
        "or a smaller --scale");
  }
  CompletionOptions options;
  options.model = run.model.name();
  options.sampling = flags.sampling;
  options.concurrency = static_cast<int>(flags.concurrency);
  options.max_samples_per_call = run.model.limits().max_samples();
  options.patience = std::chrono::milliseconds(
      static_cast<std::int64_t>(flags.connection.deadline_seconds * 1000));
  const std::vector<CompletionJob> jobs = make_jobs(run.images, model, samples);

  const auto start = std::chrono::steady_clock::now();
  auto results = complete_in_view(flags, client, run.images, jobs, model, options, console);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (std::size_t i = 0; i < run.images.size(); ++i) run.images[i].samples = std::move(results[i]);

  if (!flags.out.empty()) write_png(flags.out, draw_grid(run, model, style), style.scale);
  if (!flags.json.empty()) write_results(flags.json, results_json(run), console);
  const std::string speed = speed_line(run) + "\n";
  flags.json == "-" ? console.err(speed) : console.out(speed);
  return kOk;
}

void add_flags(CLI::App& command, CompleteFlags& flags) {
  add_text(command, "--images", flags.images, "FILE", "IDX (also .gz) or PNG");
  add_text(command, "--index", flags.index, "LIST",
           "Which images of the file, e.g. 0-9 or 3,5,8 [the first ten]");
  add_text(command, "--occlude", flags.occlude, "MASK",
           "What to hide: bottom:N, top:N, left:N, right:N (rows or columns), box:R,C,H,W (row and "
           "column of the corner, height, width), random:P (each pixel with probability P), none")
      ->capture_default_str();
  add_parsed(command, "--samples", flags.samples, in_range(1, kSeedsPerImage), "K",
             "Completions of each image [1]");
  add_parsed(command, "--unconditional", flags.unconditional, in_range(1, 1'000'000), "N",
             "Draw N images from nothing instead");
  add_text(command, "--out", flags.out, "FILE.png",
           "Picture to write: original, occluded and completions, a row for each image");
  add_text(command, "--json", flags.json, "FILE", "Results to write; - is standard output");
  command.add_flag("--watch", flags.watch,
                   "Paint the images in the terminal, on standard error, while they stream");
  add_parsed(command, "--concurrency", flags.concurrency, in_range(1, 1024), "C",
             "Streams at a time [16]");
  add_parsed(command, "--scale", flags.scale, in_range(1, 64), "N",
             "Size of a pixel in the picture [3]");
  add_parsed(command, "--gap", flags.gap, in_range(0, 64), "N",
             "Pixels between the images of the picture [2]");
  command.add_flag("--invert", flags.invert, "The file is black on white");
  flags.sampling.add_to(command, "S; the same one gives the same images [0]");
  flags.connection.add_to(command);
  command.footer(kFooter);
}

}  // namespace

void add_complete(CLI::App& app, CommandLine& command_line) {
  auto flags = std::make_shared<CompleteFlags>();
  CLI::App* command =
      app.add_subcommand("complete", "Complete images of which a part is hidden, or draw new ones");
  add_flags(*command, *flags);
  command->callback([flags, &command_line] {
    command_line.run = [flags, &command_line] {
      return run_complete(*flags, command_line.console);
    };
  });
}

}  // namespace lintel::cli
