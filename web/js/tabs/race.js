// SPDX-License-Identifier: Apache-2.0
// Race: one image by every model of images that is loaded, with what a token takes and what the state has become
// by then.
import { byId, chosen, h, options, say, tell, tellError, tellFailure } from '../dom.js';
import { bytes, digits, seconds, whole } from '../format.js';
import { MASKS } from '../image/masks.js';
import { sample, sampleTray } from '../image/samples.js';
import { Chart } from '../race/chart.js';
import { Lane } from '../race/lane.js';
import { imageModels } from '../wire/models.js';
import { whenReached } from '../wire/reach.js';

const COLOURS = 8; // of style.css; the ninth lane has the first again

export function start() {
  const go = byId('race-go');
  const stop = byId('race-stop');
  const status = byId('race-status');
  const mask = byId('race-mask');
  const time = new Chart({ title: 'Microseconds a token', xTitle: 'position', format: digits });
  const memory = new Chart({ title: 'Bytes of state', xTitle: 'position', format: bytes });
  let all = []; // lanes
  let lanes = []; // the lanes that take part
  let image;
  let running; // an AbortController

  byId('charts').append(time.element, memory.element);
  options(
    mask,
    Object.entries(MASKS)
      .filter(([name]) => name !== 'none')
      .map(([name, [label]]) => [name, label]),
    'thirds',
  );
  sampleTray(byId('race-tray'), (levels) => ((image = levels), prepare()));
  mask.addEventListener('change', prepare);
  stop.addEventListener('click', () => running?.abort());
  byId('race-form').addEventListener('submit', (event) => (event.preventDefault(), run()));

  whenReached(
    async () => {
      image = await sample(8);
      const models = await imageModels();
      if (models.length === 0) throw new Error('this server has no model of grey images');
      const size = (model) => `${model.image.width}x${model.image.height}`;
      const raced = models.filter((model) => size(model) === size(models[0]));
      // Models of constant state come first.
      raced.sort((a, b) => Number(b.constantState ?? false) - Number(a.constantState ?? false));
      all = raced.map((model, i) => new Lane(model, i % COLOURS, prepare));
      byId('race-entrants').append(
        ...all.map((lane) => h('label', { class: 'inline' }, lane.enters, ` ${lane.model.name}`)),
      );
      prepare();
    },
    (text) => tellFailure(status, text),
  );

  // All lanes at the start.
  function prepare() {
    running?.abort();
    lanes = all.filter((lane) => lane.enters.checked);
    go.disabled = lanes.length === 0;
    const { width, height } = all[0].model.image;
    const hidden = MASKS[mask.value][1](width, height);
    for (const lane of lanes) lane.prepare(image, hidden);
    byId('lanes').replaceChildren(...lanes.map((lane) => lane.element));
    draw();
  }

  async function run() {
    if (running || go.disabled) return;
    prepare();
    running = new AbortController();
    const { signal } = running;
    [go.hidden, stop.hidden] = [true, false];
    try {
      const laps = Math.max(1, Number(byId('race-laps').value));
      for (let lap = 1; lap <= laps; ++lap) {
        tell(status, `lap ${lap} of ${laps}`);
        const runLap = (lane) => lane.run(lap, signal, animate);
        if (chosen(byId('race-order')) === 'together') await Promise.all(lanes.map(runLap));
        else for (const lane of lanes) await runLap(lane);
      }
      tell(status, verdict());
      say(status.textContent);
    } catch (error) {
      tellError(status, error);
      running.abort(); // the others stop, too
    } finally {
      running = undefined;
      [go.hidden, stop.hidden] = [false, true];
      draw();
    }
  }

  let frame;
  function animate() {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      draw();
    });
  }

  function draw() {
    for (const lane of lanes) lane.draw();
    time.set(
      lanes.map((lane) => ({ index: lane.index, points: lane.clock.curve() })),
      image.length,
    );
    memory.set(
      lanes.map((lane) => ({ index: lane.index, points: lane.stateCurve() })),
      image.length,
    );
    byId('race-table').replaceChildren(...lanes.filter((lane) => lane.laps > 0).map((lane) => lane.tableRow()));
    tellDrafts();
  }

  // A request cannot do without draft tokens: only the server has a switch.
  function tellDrafts() {
    const accepted = lanes.reduce((sum, lane) => sum + lane.accepted, 0);
    const drawn = lanes.reduce((sum, lane) => sum + lane.drawn, 0);
    byId('race-drafts').hidden = accepted === 0;
    byId('race-drafts-count').textContent = `${whole(accepted)} of ${whole(drawn)}`;
  }

  function verdict() {
    const [first] = [...lanes].sort((a, b) => a.clock.overall() - b.clock.overall());
    const sizes = lanes.map((lane) => lane.stateAt(image.length));
    const text = `${first.model.name} was first: ${seconds(first.clock.overall() / 1e6)} a token`;
    return lanes.length < 2
      ? text
      : `${text}. States at the end: ${bytes(Math.min(...sizes))} to ${bytes(Math.max(...sizes))}.`;
  }

  return { leave: () => running?.abort() };
}
