// Race: one image by every model of images that is loaded, with what a value takes and what the state has become
// by then.
import { Chart } from '../race/chart.js';
import { Completion, completionRequest } from '../image/completion.js';
import { choice, field, h, options, say } from '../dom.js';
import { bytes, digits, seconds } from '../format.js';
import { LapClock } from '../race/laps.js';
import { MASKS } from '../image/masks.js';
import { attentionName, imageModels, stateBytes } from '../wire/models.js';
import { drawImage } from '../image/paint.js';
import { stream } from '../wire/rpc.js';
import { sample, sampleTray } from '../image/samples.js';

const STREAMED = 14; // values of a message: often enough for a curve, seldom enough not to be what is measured
const COLOURS = 8;

export function start(panel) {
  let lanes = [];
  let image;
  let order = 'turns';
  let running;

  const mask = h('select', { onchange: prepare });
  options(mask, Object.entries(MASKS).filter(([name]) => name !== 'none').map(([name, [label]]) => [name, label]), 'bottom');
  const laps = h('input', { type: 'number', min: 1, max: 100, value: 10 });
  const go = h('button', { class: 'primary', type: 'submit' }, 'Start the race');
  const stop = h('button', { type: 'button', hidden: true, onclick: () => running?.abort() }, 'Stop');
  const status = h('p', { class: 'status', role: 'status' });
  const entrants = h('fieldset', { class: 'entrants' }, h('legend', {}, 'Who takes part'));
  const track = h('div', { class: 'lanes' });
  const time = new Chart({ title: 'Microseconds a value', xTitle: 'position', format: (v) => digits(v) });
  const memory = new Chart({ title: 'Bytes of state', xTitle: 'position', format: bytes });
  const table = h('tbody');

  panel.append(
    h('form', { class: 'card', onsubmit: (e) => (e.preventDefault(), run()) },
      h('h2', {}, 'One image, every kind of attention'),
      h('p', { class: 'hint' }, 'Linear attention keeps sums: its state, and the time a value takes, are the same at the last pixel as at the first. What keeps keys and values grows.'),
      sampleTray((levels) => ((image = levels), prepare())),
      entrants,
      h('div', { class: 'fields' }, h('div', { class: 'wide' }, field('Hidden', mask)), field('Laps', laps, 'the fastest is drawn'),
        h('div', { class: 'field wide' }, h('span', {}, 'Clock'), choice('Order', [['turns', 'In turns'], ['together', 'All at once']], order, (value) => (order = value)),
          h('small', {}, 'in turns nobody shares the processor'))),
      h('div', { class: 'row' }, go, stop),
      status),
    track,
    h('div', { class: 'charts' }, time.element, memory.element),
    h('div', { class: 'card scroll' }, h('table', {},
      h('caption', {}, 'What it came to'),
      h('thead', {}, h('tr', {}, ['Model', 'Attention', 'µs a value', 'at the start', 'at the end', 'State at the start', 'State at the end', 'Laps'].map((t) => h('th', { scope: 'col' }, t)))),
      table)));

  const setUp = (async () => {
    const models = await imageModels();
    if (models.length === 0) throw new Error('this server has no model of grey images');
    image = await sample(8);
    const size = (m) => `${m.image.width}x${m.image.height}`;
    const raced = models.filter((m) => size(m) === size(models[0]));
    // Those of constant state first.
    raced.sort((a, b) => Number(b.constantState ?? false) - Number(a.constantState ?? false));
    lanes = raced.map((model, i) => makeLane(model, i % COLOURS));
    entrants.append(...lanes.map((lane) => h('label', { class: 'inline' }, lane.enters, ` ${lane.model.name}`)));
    prepare();
  })().catch((error) => {
    go.disabled = true;
    status.textContent = error.message;
  });

  function makeLane(model, index) {
    const canvas = h('canvas', { class: 'pixels', role: 'img', 'aria-label': `${model.name} draws` });
    const lane = {
      model, index, canvas,
      enters: h('input', { type: 'checkbox', checked: true, onchange: prepare }),
      micros: h('strong', {}, '-'),
      state: h('strong', {}, '-'),
      progress: h('progress', { max: 1, value: 0, 'aria-label': `${model.name}: progress` }),
    };
    lane.element = h('article', { class: `card lane series-${index}` },
      h('h3', { title: model.name }, model.name), h('p', { class: 'hint' }, `${attentionName(model)}, ${model.weightType}`),
      canvas, lane.progress,
      h('dl', {}, h('div', {}, h('dt', {}, 'µs a value'), h('dd', {}, lane.micros)), h('div', {}, h('dt', {}, 'state'), h('dd', {}, lane.state))));
    return lane;
  }

  // Everybody at the start.
  function prepare() {
    const taking = lanes.filter((lane) => lane.enters.checked);
    go.disabled = taking.length === 0;
    if (!image || lanes.length === 0) return;
    const { width, height } = lanes[0].model.image;
    for (const lane of taking) reset(lane, MASKS[mask.value][1](width, height));
    track.replaceChildren(...taking.map((lane) => lane.element));
    table.replaceChildren();
    draw();
  }

  function reset(lane, hidden) {
    lane.hidden = hidden;
    lane.clock = new LapClock(image.length);
    lane.laps = 0;
    newLap(lane);
  }

  function newLap(lane) {
    lane.request = completionRequest(image, lane.hidden, { startToken: lane.model.image.startToken ?? 0, wholeImage: true });
    lane.completion = new Completion(lane.request.image, lane.hidden, 1, lane.model.vocabSize);
    lane.position = 0;
  }

  async function run() {
    await setUp;
    if (running || go.disabled) return;
    prepare();
    running = new AbortController();
    [go.hidden, stop.hidden] = [true, false];
    const taking = lanes.filter((lane) => lane.enters.checked);
    const { signal } = running;
    try {
      const count = Math.max(1, Number(laps.value) || 1);
      for (let lap = 0; lap < count; ++lap) {
        status.textContent = `lap ${lap + 1} of ${count}`;
        if (order === 'together') await Promise.all(taking.map((lane) => runLap(lane, lap, signal)));
        else for (const lane of taking) await runLap(lane, lap, signal);
      }
      status.textContent = verdict(taking);
      say(status.textContent);
    } catch (error) {
      status.textContent = error.code === 'canceled' ? 'stopped' : error.message;
      running?.abort(); // the others need not go on
    } finally {
      running = undefined;
      [go.hidden, stop.hidden] = [false, true];
      draw();
    }
  }

  async function runLap(lane, lap, signal) {
    newLap(lane);
    const request = {
      model: lane.model.name,
      ...lane.request.fields,
      sampling: { seed: String(lap + 1) },
      maxTokensPerMessage: STREAMED,
    };
    lane.clock.begin(performance.now());
    for await (const messages of stream('GenerationService/Generate', request, { signal })) {
      const now = performance.now();
      const from = Math.max(lane.position, lane.request.first);
      for (const message of messages) {
        for (const { firstPosition = 0, tokens = [] } of message.chunks ?? []) {
          lane.position = Math.max(lane.position, Number(firstPosition) + tokens.length);
        }
        lane.completion.take(message);
      }
      lane.clock.came(from, lane.position, now);
      animate();
    }
    lane.clock.end(performance.now());
    ++lane.laps;
    animate();
  }

  let frame;
  function animate() {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      draw();
    });
  }

  function draw() {
    const taking = lanes.filter((lane) => lane.enters.checked && lane.clock);
    for (const lane of taking) {
      const [{ pixels, here }] = lane.completion.samples;
      drawImage(lane.canvas, lane.model.image, pixels, lane.hidden, here);
      lane.progress.value = lane.position / image.length;
      const micros = lane.clock.overall();
      lane.micros.textContent = Number.isNaN(micros) ? '-' : digits(micros);
      lane.state.textContent = bytes(stateBytes(lane.model, lane.position));
    }
    time.set(taking.map((lane) => ({ index: lane.index, points: lane.clock.curve() })), image?.length ?? 1);
    memory.set(taking.map((lane) => ({ index: lane.index, points: statePoints(lane) })), image?.length ?? 1);
    if (taking.some((lane) => lane.laps > 0)) {
      table.replaceChildren(...taking.map(tableRow));
    }
  }

  // As far as the lane has ever come.
  function statePoints(lane) {
    const reached = lane.laps > 0 ? image.length : lane.position;
    const points = [];
    for (let at = 0; at < reached; at += 8) points.push([at, stateBytes(lane.model, at)]);
    if (reached > 0) points.push([reached, stateBytes(lane.model, reached)]);
    return points;
  }

  function tableRow(lane) {
    const curve = lane.clock.curve();
    const cells = [
      attentionName(lane.model), digits(lane.clock.overall()), curve.length ? digits(curve[0][1]) : '-', curve.length ? digits(curve.at(-1)[1]) : '-',
      bytes(stateBytes(lane.model, 1)), bytes(stateBytes(lane.model, image.length)), lane.laps,
    ];
    return h('tr', {}, h('th', { scope: 'row' }, h('span', { class: `swatch series-${lane.index}` }), lane.model.name), cells.map((c) => h('td', {}, String(c))));
  }

  function verdict(taking) {
    const [first] = [...taking].sort((a, b) => a.clock.overall() - b.clock.overall());
    const sizes = taking.map((lane) => stateBytes(lane.model, image.length));
    const text = `${first.model.name} was first: ${seconds(first.clock.overall() / 1e6)} a value`;
    return taking.length < 2 ? text : `${text}. States at the end: ${bytes(Math.min(...sizes))} to ${bytes(Math.max(...sizes))}.`;
  }

  return { leave: () => running?.abort() };
}
