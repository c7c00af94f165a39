// Server: what is loaded, what runs, what waits, and which sessions there are, as the metrics have it.
import { h, svg } from '../dom.js';
import { bytes, digits, duration, seconds, whole } from '../format.js';
import { attentionName, models } from '../wire/models.js';
import { unary } from '../wire/rpc.js';

const EVERY = 1000; // ms between two looks
const KEPT = 90; // looks that the curve has
const SESSIONS = 50; // that are listed

export function start(panel) {
  let timer;
  let before; // {at, statistics} of the look before
  const rates = [];

  const status = h('p', { class: 'status', role: 'status' });
  const tiles = {};
  const tile = (name, label) => {
    tiles[name] = { value: h('strong', {}, '-'), note: h('small', {}, '\u00a0') };
    return h('div', { class: 'card tile' }, h('span', {}, label), tiles[name].value, tiles[name].note);
  };
  const curve = svg('svg', { class: 'spark', viewBox: `0 0 ${KEPT} 40`, preserveAspectRatio: 'none', role: 'img', 'aria-label': 'Values a second over the last minute and a half' });
  const modelRows = h('tbody');
  const sessionRows = h('tbody');
  const table = (caption, columns, body) => h('div', { class: 'card scroll' },
    h('table', {}, h('caption', {}, caption), h('thead', {}, h('tr', {}, columns.map((c) => h('th', { scope: 'col' }, c)))), body));

  panel.append(
    h('div', { class: 'tiles' }, tile('rate', 'Values a second'), tile('running', 'Running'), tile('waiting', 'Waiting'), tile('sessions', 'Sessions'), tile('memory', 'Memory of sessions'), tile('up', 'Up')),
    h('div', { class: 'card' }, h('h2', {}, 'Throughput'), curve),
    table('Models', ['Model', 'Attention', 'Weights', 'State', 'Running', 'Waiting', 'Read', 'Produced', 'Values/s', 'Workers'], modelRows),
    table('Sessions', ['Session', 'Model', 'Position', 'Memory', 'Used', 'Lasts'], sessionRows),
    status);

  async function look() {
    const at = performance.now();
    try {
      const [all, statistics, { sessions = [], nextPageToken }] = await Promise.all([
        models(true), unary('ModelService/Statistics'), unary('SessionService/List', { pageSize: SESSIONS }),
      ]);
      show(all, statistics, at);
      showSessions(sessions, nextPageToken);
      before = { at, statistics };
      status.textContent = '';
    } catch (error) {
      status.textContent = error.message;
    }
  }

  const produced = (m) => Number(m.generatedTokens ?? 0) + Number(m.promptTokens ?? 0);

  function show(all, statistics, at) {
    const now = statistics.models ?? [];
    const past = new Map((before?.statistics.models ?? []).map((m) => [m.name, m]));
    const elapsed = before ? (at - before.at) / 1000 : NaN;
    const rateOf = (m) => (past.has(m.name) && elapsed > 0 ? Math.max(0, produced(m) - produced(past.get(m.name))) / elapsed : 0);
    const sum = (of) => now.reduce((total, m) => total + Number(of(m) ?? 0), 0);
    const rate = sum(rateOf);
    rates.push(rate);
    if (rates.length > KEPT) rates.shift();

    put('rate', whole(rate), `${whole(sum(produced))} in all`);
    put('running', whole(sum((m) => m.running)), `${whole(statistics.streams ?? 0)} calls are open`);
    const waited = sum((m) => duration(m.queueTime)) / Math.max(1, sum((m) => m.requests));
    put('waiting', whole(sum((m) => m.waiting)), `${seconds(waited)} on the average`);
    put('sessions', whole(Number(statistics.idleSessions ?? 0) + Number(statistics.busySessions ?? 0)), `${whole(statistics.busySessions ?? 0)} of them in use`);
    put('memory', bytes(statistics.sessionBytes ?? 0), `of ${bytes(statistics.sessionMemory ?? 0)}`);
    put('up', seconds(duration(statistics.uptime)), `version ${statistics.version ?? ''}`);

    const most = Math.max(1, ...rates);
    const points = rates.map((r, i) => `${KEPT - rates.length + i},${(39 - (37 * r) / most).toFixed(1)}`);
    curve.replaceChildren(
      svg('polygon', { points: [`${KEPT - rates.length},40`, ...points, `${KEPT - 1},40`].join(' ') }),
      svg('polyline', { points: points.join(' '), 'vector-effect': 'non-scaling-stroke' }));

    modelRows.replaceChildren(...all.map((m) => {
      const live = now.find((s) => s.name === m.name) ?? {};
      const cells = [
        attentionName(m), `${bytes(m.weightBytes ?? 0)} ${m.weightType ?? ''}`, m.constantState ? `${bytes(m.stateBytes ?? 0)}, constant` : m.stateBytes ? `to ${bytes(m.stateBytes)}` : 'grows',
        whole(live.running ?? 0), whole(live.waiting ?? 0), whole(live.promptTokens ?? 0), whole(live.generatedTokens ?? 0), digits(rateOf(live)), m.workers ?? '',
      ];
      const warnings = (m.warnings ?? []).join('. ');
      return h('tr', {}, h('th', { scope: 'row', title: m.fingerprint ?? '' }, `${m.name} `, warnings && h('abbr', { title: warnings, 'aria-label': `warning: ${warnings}` }, '⚠')), cells.map((c) => h('td', {}, String(c))));
    }));
  }

  function put(name, value, note) {
    tiles[name].value.textContent = value;
    tiles[name].note.textContent = note;
  }

  function showSessions(sessions, more) {
    const used = (s) => (s.busy ? 'now' : s.lastUsedTime ? `${seconds(Math.max(0, (Date.now() - Date.parse(s.lastUsedTime)) / 1000))} ago` : '');
    const lasts = { DURABILITY_CALL: 'call', DURABILITY_INPUT: 'input', DURABILITY_TOKEN: 'token' };
    sessionRows.replaceChildren(...sessions.map((s) =>
      h('tr', {}, h('th', { scope: 'row', title: s.id }, `${s.id.slice(0, 8)}…`),
        [s.model, whole(s.position ?? 0), bytes(s.stateBytes ?? 0), used(s), lasts[s.durability] ?? 'in memory'].map((c) => h('td', {}, c)))));
    if (sessions.length === 0) sessionRows.append(h('tr', {}, h('td', { colSpan: 6, class: 'hint' }, 'None of yours.')));
    if (more) sessionRows.append(h('tr', {}, h('td', { colSpan: 6, class: 'hint' }, `These are the first ${SESSIONS}.`)));
  }

  async function keepLooking() {
    const mine = (timer = {});
    while (timer === mine) {
      if (!document.hidden) await look();
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  return { open: keepLooking, leave: () => (timer = undefined) };
}
