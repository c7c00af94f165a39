// SPDX-License-Identifier: Apache-2.0
// Server: what is loaded, what runs, what waits, and which sessions there are, as the metrics have it.
import { byId, h, svg, tell, tellFailure } from '../dom.js';
import { bytes, digits, duration, seconds, whole } from '../format.js';
import { attentionName, isLoaded, listedModels, roomText, stateName } from '../wire/models.js';
import { unary } from '../wire/rpc.js';

const EVERY = 1000; // ms between two looks
const KEPT = 90; // looks that the curve has
const SESSIONS = 50; // listed at most
const LASTS = { DURABILITY_CALL: 'call', DURABILITY_INPUT: 'input', DURABILITY_TOKEN: 'token' };

const made = (model) => Number(model.generatedTokens ?? 0) + Number(model.promptTokens ?? 0);
const cells = (values) => values.map((value) => h('td', {}, String(value)));

export function start() {
  const status = byId('server-status');
  const rates = []; // tokens a second, a look each
  let before; // {at, statistics} of the look before
  let looking; // while the tab is shown

  async function look() {
    const at = performance.now();
    try {
      const [all, statistics, { sessions = [], nextPageToken }] = await Promise.all([
        listedModels(),
        unary('ModelService/Statistics'),
        unary('SessionService/List', { pageSize: SESSIONS }),
      ]);
      show(all, statistics, at);
      showSessions(sessions, nextPageToken);
      before = { at, statistics };
      tell(status, '');
    } catch (error) {
      tellFailure(status, error.message);
    }
  }

  function show(all, statistics, at) {
    const now = new Map((statistics.models ?? []).map((m) => [m.name, m]));
    const past = new Map((before?.statistics.models ?? []).map((m) => [m.name, m]));
    const rateOf = (m) => {
      const elapsed = past.has(m.name) ? (at - before.at) / 1000 : 0;
      return elapsed > 0 ? Math.max(0, made(m) - made(past.get(m.name))) / elapsed : 0;
    };
    const sum = (of) => [...now.values()].reduce((total, m) => total + Number(of(m) ?? 0), 0);
    const queued =
      sum((m) => duration(m.queueTime)) /
      Math.max(
        1,
        sum((m) => m.requests),
      );
    const { idleSessions = 0, busySessions = 0 } = statistics;

    rates.push(sum(rateOf));
    if (rates.length > KEPT) rates.shift();
    tile('rate', whole(rates.at(-1)), `${whole(sum(made))} in all`);
    tile('running', whole(sum((m) => m.running)), `${whole(statistics.streams ?? 0)} calls are open`);
    tile('waiting', whole(sum((m) => m.waiting)), `${seconds(queued)} on the average`);
    tile('sessions', whole(Number(idleSessions) + Number(busySessions)), `${whole(busySessions)} of them in use`);
    tile('memory', bytes(statistics.sessionBytes ?? 0), `of ${bytes(statistics.sessionMemory ?? 0)}`);
    tile('up', seconds(duration(statistics.uptime)), `version ${statistics.version}`);
    drawRates();
    byId('server-models').replaceChildren(...all.map((m) => modelRow(m, now.get(m.name) ?? {}, rateOf)));
  }

  function tile(name, value, note) {
    byId(`tile-${name}`).textContent = value;
    byId(`tile-${name}-note`).textContent = note;
  }

  function drawRates() {
    const most = Math.max(1, ...rates);
    const first = KEPT - rates.length;
    const points = rates.map((rate, i) => `${first + i},${(39 - (37 * rate) / most).toFixed(1)}`);
    const curve = byId('throughput');
    curve.setAttribute('viewBox', `0 0 ${KEPT - 1} 40`);
    curve.replaceChildren(
      svg('polygon', { points: [`${first},40`, ...points, `${KEPT - 1},40`].join(' ') }),
      svg('polyline', { points: points.join(' '), 'vector-effect': 'non-scaling-stroke' }),
    );
  }

  function modelRow(model, live, rateOf) {
    if (!isLoaded(model)) return idleRow(model);
    const warnings = (model.warnings ?? []).join('. ');
    const mark = warnings && h('abbr', { title: warnings, 'aria-label': `warning: ${warnings}` }, '⚠');
    const state = bytes(model.stateBytes ?? 0);
    const aToken = model.kvTokenBytes && `${bytes(model.kvTokenBytes)} a token`;
    const most = aToken ? `${aToken}, at most ${state}` : `to ${state}`;
    const growing = model.stateBytesPerValue ? `${bytes(model.stateBytesPerValue)} a token` : 'grows';
    return h(
      'tr',
      {},
      h('th', { scope: 'row' }, `${model.name} `, mark),
      cells([
        attentionName(model),
        `${bytes(model.weightBytes ?? 0)} ${model.weightType}`,
        model.constantState ? `${state}, constant` : model.stateBytes ? most : growing,
        roomText(model),
        whole(live.running ?? 0),
        whole(live.waiting ?? 0),
        whole(live.promptTokens ?? 0),
        whole(live.generatedTokens ?? 0),
        digits(rateOf(live)),
        model.workers,
      ]),
    );
  }

  // One that is not loaded: its state, and why.
  function idleRow(model) {
    const why = model.reason && model.reason !== 'not loaded' ? `: ${model.reason}` : '';
    return h(
      'tr',
      {},
      h('th', { scope: 'row' }, model.name),
      h('td', { colSpan: 10, class: model.loadFailed ? 'why bad' : 'why' }, `${stateName(model)}${why}`),
    );
  }

  function sessionRow(session) {
    const age = Math.max(0, (Date.now() - Date.parse(session.lastUsedTime)) / 1000);
    return h(
      'tr',
      {},
      h('th', { scope: 'row', title: session.id }, `${session.id.slice(0, 8)}…`),
      cells([
        session.model,
        whole(session.position ?? 0),
        bytes(session.stateBytes ?? 0),
        session.busy ? 'now' : `${seconds(age)} ago`,
        LASTS[session.durability] ?? 'in memory',
      ]),
    );
  }

  function showSessions(sessions, more) {
    const note = (text) => h('tr', {}, h('td', { colSpan: 6, class: 'hint' }, text));
    byId('server-sessions').replaceChildren(
      ...sessions.map(sessionRow),
      ...(sessions.length === 0 ? [note('None of yours.')] : []),
      ...(more ? [note(`These are the first ${SESSIONS}.`)] : []),
    );
  }

  async function keepLooking() {
    const mine = (looking = {});
    while (looking === mine) {
      if (!document.hidden) await look();
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  return { open: keepLooking, leave: () => (looking = undefined) };
}
