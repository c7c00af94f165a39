// SPDX-License-Identifier: Apache-2.0
// Digits: pick, upload or draw one, brush what is hidden, and have it completed.
import { byId, chosen, h, options, say, tell, tellError, tellFailure } from '../dom.js';
import { bytes, digits, duration, seconds, whole } from '../format.js';
import { Completion, completionRequest, firstKnown } from '../image/completion.js';
import { Editor } from '../image/editor.js';
import { fitDigit } from '../image/fit.js';
import { HeatMap } from '../image/heat.js';
import { MASKS } from '../image/masks.js';
import { download, drawImage } from '../image/paint.js';
import { Results } from '../image/results.js';
import { sample, sampleTray } from '../image/samples.js';
import { attentionName, imageModels } from '../wire/models.js';
import { whenReached } from '../wire/reach.js';
import { stream } from '../wire/rpc.js';

const TOP = 16; // tokens of each distribution that the heat map's entropies are made of
const LARGEST = 512; // pixels a side of an upload: photographs have more than any digit needs

export function start() {
  const complete = byId('digits-complete');
  const stop = byId('digits-stop');
  const status = byId('digits-status');
  let shape = { width: 28, height: 28 };
  let models = [];
  let running; // an AbortController
  let shown; // {completion, image}: the last request's

  const editor = new Editor(byId('digits-editor'), shape, (hidden) => {
    complete.disabled = models.length === 0 || !hidden.some((one) => one);
  });
  const heat = new HeatMap();
  const results = new Results(() => heat.show(shown.completion, shape));

  const model = byId('digits-model');
  const mask = byId('digits-mask');
  const brush = byId('digits-brush');
  const upload = byId('digits-upload');
  mask.append(...Object.entries(MASKS).map(([name, [label]]) => h('option', { value: name }, label)));
  sampleTray(byId('digits-tray'), (levels) => editor.setImage(levels));
  byId('digits-form').addEventListener('submit', (event) => (event.preventDefault(), run()));
  model.addEventListener('change', choose);
  mask.addEventListener(
    'change',
    () => mask.value && editor.setHidden(MASKS[mask.value][1](shape.width, shape.height)),
  );
  brush.addEventListener('change', () => (editor.mode = chosen(brush)));
  byId('digits-size').addEventListener('input', (event) => (editor.radius = Number(event.target.value)));
  upload.addEventListener('change', () => upload.files[0] && take(upload.files[0]));
  byId('digits-clear').addEventListener('click', clear);
  byId('digits-undo').addEventListener('click', () => editor.undo());
  byId('digits-save').addEventListener('click', savePicture);
  stop.addEventListener('click', () => running?.abort());

  whenReached(begin, (text) => tellFailure(status, text));

  async function begin() {
    editor.image = await sample(3);
    editor.hidden = MASKS.bottom[1](shape.width, shape.height);
    models = await imageModels();
    options(
      model,
      models.map((m) => [m.name, `${m.name} (${attentionName(m)})`]),
      model.value,
    );
    if (models.length === 0) throw new Error('this server has no model of grey images');
    choose();
    editor.update();
  }

  // The model is another one.
  function choose() {
    const { image, limits, maxBatchRows } = models.find((m) => m.name === model.value);
    byId('digits-samples').max = limits.maxSamples;
    byId('digits-particles').max = maxBatchRows;
    if (image.width === shape.width && image.height === shape.height) return;
    shape = { width: image.width, height: image.height };
    editor.reset(shape);
  }

  function clear() {
    editor.clear();
    brush.querySelector('[value=draw]').click();
    editor.canvas.focus();
  }

  async function take(file) {
    try {
      const bitmap = await createImageBitmap(file);
      const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
      const [width, height] = [bitmap.width, bitmap.height].map((size) => Math.max(1, Math.round(size * scale)));
      const context = h('canvas', { width, height }).getContext('2d');
      context.drawImage(bitmap, 0, 0, width, height);
      const digit = fitDigit(context.getImageData(0, 0, width, height).data, width, height, shape);
      editor.setImage(digit);
      const what = digit.some((level) => level > 0) ? "centred and scaled as the model's digits are" : 'a blank picture';
      tell(status, `${file.name}: ${what}`);
    } catch (error) {
      tellFailure(status, `${file.name} is no picture that this browser reads (${error.message})`);
    }
    upload.value = ''; // the same file may come again
  }

  async function run() {
    if (running || complete.disabled) return;
    const asked = models.find((m) => m.name === model.value);
    const count = Math.max(1, Number(byId('digits-samples').value));
    const particles = Number(byId('digits-particles').value);
    const seed = byId('digits-seed').value.trim();
    const image = firstKnown(editor.image, editor.hidden, asked.image.startToken ?? 0);
    const completion = new Completion(image, Uint8Array.from(editor.hidden), count, asked.vocabSize);
    const request = {
      model: asked.name,
      ...completionRequest(image, editor.hidden),
      numSamples: count,
      log2Probs: true,
      sampling: { temperature: Number(byId('digits-temperature').value), ...(seed && { seed }) },
      // With particles there is no one distribution that a token was sampled from.
      ...(particles > 1 ? { particles } : { topLog2Probs: Math.min(TOP, asked.limits.maxTopLog2Probs) }),
    };
    if (particles > 1) heat.useSpread();
    shown = { completion, image };
    results.begin(completion, shape);

    running = new AbortController();
    [complete.hidden, stop.hidden] = [true, false];
    tell(status, 'drawing');
    const startedAt = performance.now();
    try {
      for await (const messages of stream('GenerationService/Generate', request, { signal: running.signal })) {
        for (const message of messages) results.came(completion.take(message));
      }
      tell(status, summary(completion, (performance.now() - startedAt) / 1000, asked));
      say(status.textContent);
    } catch (error) {
      tellError(status, error);
    } finally {
      running = undefined;
      [complete.hidden, stop.hidden] = [false, true];
      byId('digits-save').disabled = false;
      results.animate();
    }
  }

  function summary({ samples, tokens }, took, asked) {
    const finish = samples[0].finish ?? {};
    const parts = [`${whole(tokens)} pixels in ${seconds(took)} (${whole(tokens / took)} a second)`];
    if (finish.timings) parts.push(`${seconds(duration(finish.timings.perToken))} a step`);
    parts.push(`state ${bytes(asked.stateBytes ?? 0)} each`, `seed ${finish.seed ?? 0}`);
    if (finish.log2Evidence !== undefined) parts.push(`evidence ${digits(Number(finish.log2Evidence))} bits`);
    return parts.join(' · ');
  }

  function savePicture() {
    const { image, completion } = shown;
    const known = Uint8Array.from(completion.hidden, (hidden) => 1 - hidden);
    const original = h('canvas');
    const occluded = h('canvas');
    drawImage(original, shape, image, completion.hidden, new Uint8Array(image.length).fill(1), false);
    drawImage(occluded, shape, image, completion.hidden, known);
    download([original, occluded, ...results.canvases, heat.canvas], 'lintel-digits.png');
  }

  return {};
}
