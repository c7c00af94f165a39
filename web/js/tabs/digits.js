// Digits: pick, upload or draw one, brush what is hidden, and have it completed.
import { Completion, completionRequest } from '../image/completion.js';
import { choice, field, h, options, say } from '../dom.js';
import { Editor } from '../image/editor.js';
import { fitDigit } from '../image/fit.js';
import { bytes, digits, duration, seconds, whole } from '../format.js';
import { MASKS } from '../image/masks.js';
import { attentionName, imageModels } from '../wire/models.js';
import { download, drawHeat, drawImage, heatColour } from '../image/paint.js';
import { stream } from '../wire/rpc.js';
import { sample, sampleTray } from '../image/samples.js';

const TOP = 16; // values of each distribution that the heat map's entropies are made of
const SLOW = 700; // pixels a second, of all samples

export function start(panel) {
  let shape = { width: 28, height: 28 };
  let models = [];
  let running; // an AbortController
  let shown; // {completion, image, hidden}
  let queue = []; // what came and is not shown yet: [sample, position]

  const model = h('select', { onchange: choose });
  const samples = h('input', { type: 'number', min: 1, max: 16, value: 4 });
  const temperature = h('input', { type: 'number', min: 0, max: 3, step: 0.05, value: 1 });
  const seed = h('input', { inputMode: 'numeric', placeholder: 'at random', pattern: '[0-9]*' });
  const particles = h('input', { type: 'number', min: 1, max: 1024, value: 1 });
  const tint = h('input', { type: 'checkbox', checked: true, onchange: paint });
  const slow = h('input', { type: 'checkbox' });
  const complete = h('button', { class: 'primary', type: 'submit' }, 'Complete');
  const stop = h('button', { type: 'button', hidden: true, onclick: () => running?.abort() }, 'Stop');
  const save = h('button', { type: 'button', disabled: true, onclick: savePicture }, 'Download PNG');
  const status = h('p', { class: 'status', role: 'status' });
  const results = h('div', { class: 'results' });
  const heat = h('canvas', { class: 'pixels', role: 'img', 'aria-label': 'Heat map: nothing yet', onpointermove: tellHeat, onpointerleave: () => (heatNote.textContent = heatSummary) });
  const heatLegend = h('canvas', { class: 'legend', width: 64, height: 1, 'aria-hidden': true });
  const heatMost = h('span', {}, '');
  const heatNote = h('p', { class: 'hint' }, 'What the model is unsure of lights up here.');
  let heatKind = 'entropy';
  const heatKinds = choice('Heat map of', [['entropy', 'Entropy'], ['spread', 'Spread']], heatKind, (kind) => ((heatKind = kind), paintHeat()));
  let heatSummary = heatNote.textContent;
  let heatValues;

  const editor = new Editor(shape, (hidden) => (complete.disabled = !hidden.some((one) => one)));
  const upload = h('input', {
    type: 'file', accept: 'image/*', class: 'unseen', id: 'digits-upload',
    onchange: () => upload.files[0] && take(upload.files[0]).finally(() => (upload.value = '')),
  });
  async function take(file) {
    try {
      const bitmap = await createImageBitmap(file);
      // Photographs are larger than any digit needs.
      const scale = Math.min(1, 512 / Math.max(bitmap.width, bitmap.height));
      const canvas = h('canvas', { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
      const context = canvas.getContext('2d');
      context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
      const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
      editor.setImage(fitDigit(data, canvas.width, canvas.height, shape));
      status.textContent = `${file.name}: centred and scaled as the model's digits are`;
    } catch (error) {
      status.textContent = `${file.name} is no picture that this browser reads (${error.message})`;
    }
  }

  const brushes = choice('Brush', [['hide', 'Hide'], ['show', 'Reveal'], ['draw', 'Draw'], ['erase', 'Erase']], 'hide', (mode) => (editor.mode = mode));
  const size = h('input', { type: 'range', min: 1, max: 6, value: 2, oninput: () => (editor.radius = Number(size.value)) });
  const mask = h('select', { onchange: () => mask.value && editor.setHidden(MASKS[mask.value][1](shape.width, shape.height)) });
  options(mask, [['', 'Hide ...'], ...Object.entries(MASKS).map(([name, [label]]) => [name, label])], '');

  panel.append(h('form', { class: 'split', onsubmit: (e) => (e.preventDefault(), run()) },
    h('div', { class: 'card board' },
      h('h2', {}, 'A digit'),
      sampleTray((levels) => editor.setImage(levels)),
      editor.canvas,
      h('p', { class: 'hint', id: 'editor-keys' }, 'Paint with the pointer. Keyboard: arrows move, space paints, shift and arrows paint along, ctrl+Z takes back.'),
      h('div', { class: 'row' }, brushes, h('label', { class: 'inline' }, 'Size ', size)),
      h('div', { class: 'row low' },
        field('Mask', mask),
        upload, h('label', { class: 'button', htmlFor: 'digits-upload' }, 'Upload'),
        h('button', { type: 'button', onclick: clear }, 'New drawing'),
        h('button', { type: 'button', onclick: () => editor.undo() }, 'Undo'))),
    h('div', { class: 'column' },
      h('div', { class: 'card' },
        h('div', { class: 'fields' },
          h('div', { class: 'wide' }, field('Model', model)), field('Completions', samples), field('Temperature', temperature), field('Seed', seed),
          field('Particles', particles, 'above 1: look ahead, so that heads fit their bodies')),
        h('div', { class: 'row' }, complete, stop, save,
          h('label', { class: 'inline' }, tint, ' Tint what was drawn'), h('label', { class: 'inline' }, slow, ' Slow motion')),
        status),
      h('div', { class: 'card' }, h('h2', {}, 'Completions'), results),
      h('div', { class: 'card' }, h('h2', {}, 'How unsure it was'),
        h('div', { class: 'heat' }, heat, h('div', {},
          heatKinds,
          h('p', { class: 'scale' }, h('span', {}, '0'), heatLegend, heatMost), heatNote))))));

  const context = heatLegend.getContext('2d');
  for (let i = 0; i < 64; ++i) {
    context.fillStyle = `rgb(${heatColour(i / 63)})`;
    context.fillRect(i, 0, 1, 1);
  }

  function clear() {
    editor.remember();
    editor.image = new Uint8Array(editor.image.length);
    editor.setHidden(new Uint8Array(editor.hidden.length));
    brushes.children[2].click();
    editor.canvas.focus();
  }

  function choose() {
    const chosen = models.find((m) => m.name === model.value);
    if (!chosen) return;
    samples.max = chosen.limits?.maxSamples ?? 16;
    particles.max = chosen.maxBatchRows ?? 64;
    if (chosen.image.width !== shape.width || chosen.image.height !== shape.height) {
      shape = { width: chosen.image.width, height: chosen.image.height };
      editor.reset(shape);
    }
  }

  const setUp = (async () => {
    models = await imageModels();
    options(model, models.map((m) => [m.name, `${m.name} (${attentionName(m)})`]), model.value);
    if (models.length === 0) throw new Error('this server has no model of grey images');
    choose();
    editor.image = await sample(3);
    editor.hidden = MASKS.bottom[1](shape.width, shape.height);
    editor.update();
  })().catch((error) => {
    complete.disabled = true;
    status.textContent = error.message;
  });

  async function run() {
    await setUp;
    if (running) return;
    const chosen = models.find((m) => m.name === model.value);
    if (!chosen) return;
    const count = Math.max(1, Number(samples.value) || 1);
    const { image, fields } = completionRequest(editor.image, editor.hidden, { startToken: chosen.image.startToken ?? 0 });
    const hidden = Uint8Array.from(editor.hidden);
    const completion = new Completion(image, hidden, count, chosen.vocabSize);
    shown = { completion, image, hidden };
    queue = [];
    heatValues = undefined;
    makeResults(count);
    const looksAhead = Number(particles.value) > 1;
    if (looksAhead && heatKind === 'entropy') heatKinds.children[1].click(); // whose distributions they were is not told
    const request = {
      model: chosen.name,
      ...fields,
      numSamples: count,
      log2Probs: true,
      sampling: { temperature: Number(temperature.value), ...(seed.value.trim() && { seed: seed.value.trim() }) },
      ...(looksAhead ? { particles: Number(particles.value) } : { topLog2Probs: Math.min(TOP, chosen.limits?.maxTopLog2Probs ?? 0) }),
    };

    running = new AbortController();
    [complete.hidden, stop.hidden] = [true, false];
    status.textContent = 'drawing';
    const begun = performance.now();
    try {
      for await (const messages of stream('GenerationService/Generate', request, { signal: running.signal })) {
        for (const message of messages) queue.push(...completion.take(message));
        animate();
      }
      const took = (performance.now() - begun) / 1000;
      status.textContent = summary(completion, took, chosen);
      say(status.textContent);
    } catch (error) {
      status.textContent = error.code === 'canceled' ? 'stopped' : error.message;
    } finally {
      running = undefined;
      [complete.hidden, stop.hidden] = [false, true];
      save.disabled = false;
      animate();
    }
  }

  function summary({ samples: all, tokens }, took, chosen) {
    const finish = all[0].finish ?? {};
    const parts = [`${whole(tokens)} pixels in ${seconds(took)} (${whole(tokens / took)} a second)`];
    if (finish.timings) parts.push(`${seconds(duration(finish.timings.perToken))} a step`);
    parts.push(`state ${bytes(chosen.stateBytes ?? 0)} each`, `seed ${finish.seed ?? 0}`);
    if (finish.log2Evidence !== undefined) parts.push(`evidence ${digits(Number(finish.log2Evidence))} bits`);
    return parts.join(' · ');
  }

  function makeResults(count) {
    shown.canvases = Array.from({ length: count }, (_, i) => h('canvas', { class: 'pixels', role: 'img', 'aria-label': `Completion ${i + 1}` }));
    shown.captions = shown.canvases.map(() => h('figcaption', {}, '\u00a0'));
    results.replaceChildren(...shown.canvases.map((canvas, i) => h('figure', {}, canvas, shown.captions[i])));
    shown.here = shown.completion.samples.map((s) => Uint8Array.from(s.here));
    paint();
  }

  // What came is shown at most once a frame; in slow motion a part of it.
  let frame;
  let budget = 0;
  let last;
  function animate() {
    frame ??= requestAnimationFrame((now) => {
      frame = undefined;
      const all = !slow.checked;
      budget += all ? 0 : (SLOW * Math.min(100, now - (last ?? now - 16))) / 1000;
      last = now;
      const due = all ? queue.length : Math.min(queue.length, Math.floor(budget));
      budget -= all ? budget : due;
      for (const [of, at] of queue.splice(0, due)) shown.here[of][at] = 1;
      paint();
      if (queue.length > 0) animate();
      else last = undefined;
    });
  }

  function paint() {
    if (!shown) return;
    const { completion, hidden, canvases, captions, here } = shown;
    const done = completion.samples.every((s) => s.finish);
    const best = done ? Math.min(...completion.samples.map((s) => s.bits)) : NaN;
    completion.samples.forEach((s, i) => {
      drawImage(canvases[i], shape, s.pixels, hidden, here[i], tint.checked);
      if (s.drawn === 0) return;
      const likeliest = s.bits === best && completion.samples.length > 1;
      captions[i].textContent = `${digits(s.bits)} bits${likeliest ? ' · likeliest' : ''}`;
      canvases[i].setAttribute('aria-label', `Completion ${i + 1}: ${digits(s.bits)} bits, ${digits(s.bits / s.drawn)} a pixel`);
      canvases[i].parentNode.classList.toggle('best', likeliest);
    });
    paintHeat();
  }

  function paintHeat() {
    if (!shown) return;
    const { completion } = shown;
    heatValues = heatKind === 'entropy' ? completion.entropies() : completion.spreads();
    const there = [...heatValues.keys()].filter((i) => !Number.isNaN(heatValues[i]));
    const highest = there.reduce((a, i) => (a < 0 || heatValues[i] > heatValues[a] ? i : a), -1);
    const most = heatKind === 'entropy' ? Math.max(1, heatValues[highest] ?? 1) : 127.5;
    drawHeat(heat, shape, heatValues, most);
    const unit = heatKind === 'entropy' ? 'bits' : 'levels';
    heatMost.textContent = `${digits(most)} ${unit}`;
    if (highest < 0) {
      heatNote.textContent = heatSummary = completion.tokens > 0 ? 'Not told of these.' : 'Nothing is drawn yet.';
      return;
    }
    const mean = there.reduce((sum, i) => sum + heatValues[i], 0) / there.length;
    heatSummary = `${digits(mean)} ${unit} on the average; least sure at row ${Math.floor(highest / shape.width) + 1}, column ${(highest % shape.width) + 1}: ${digits(heatValues[highest])} ${unit}.`;
    heatNote.textContent = heatSummary;
    heat.setAttribute('aria-label', `Heat map of ${heatKind}: ${heatSummary}`);
  }

  function tellHeat(event) {
    if (!heatValues) return;
    const box = heat.getBoundingClientRect();
    const x = Math.min(shape.width - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * shape.width)));
    const y = Math.min(shape.height - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * shape.height)));
    const i = y * shape.width + x;
    const levels = shown.completion.samples.map((s) => s.pixels[i]).join(', ');
    heatNote.textContent = Number.isNaN(heatValues[i])
      ? `row ${y + 1}, column ${x + 1}: was known`
      : `row ${y + 1}, column ${x + 1}: ${digits(heatValues[i])} ${heatKind === 'entropy' ? 'bits' : 'levels'}; drawn: ${levels}`;
  }

  function savePicture() {
    const { image, hidden } = shown;
    const whole = h('canvas');
    const occluded = h('canvas');
    drawImage(whole, shape, image, hidden, new Uint8Array(image.length).fill(1), false);
    drawImage(occluded, shape, image, hidden, Uint8Array.from(hidden, (v) => 1 - v));
    download([whole, occluded, ...shown.canvases, heat], 'lintel-digits.png');
  }

  return {};
}
