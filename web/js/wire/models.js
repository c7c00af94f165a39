// SPDX-License-Identifier: Apache-2.0
// The server's models: listed once, and again on request.
import { onReach } from './reach.js';
import { unary } from './rpc.js';

export const isLoaded = (model) => model.state === 'MODEL_STATE_READY';

// The server's models, those that take no requests included; unloaded ones have name, version, state and reason
// alone.
export async function listedModels() {
  return (await unary('ModelService/List', { all: true })).models ?? [];
}

// The models that requests may name, each once: of several versions the highest that is loaded, else one that a
// request loads.
export function namedModels(listed) {
  const named = new Map();
  for (const model of listed) {
    if (!isLoaded(model) && !model.loadsOnRequest) continue;
    if (isLoaded(model) || !isLoaded(named.get(model.name) ?? {})) named.set(model.name, model);
  }
  return [...named.values()];
}

let known;
// Another server need not have the models of one that went away.
onReach((reached) => {
  if (!reached) known = undefined;
});
export function models(again = false) {
  if (!known || again) {
    known = listedModels().then(namedModels);
    known.catch(() => (known = undefined));
  }
  return known;
}

// 'loaded', 'loading', 'failed' or 'loads on request'.
export function stateName(model) {
  if (isLoaded(model)) return 'loaded';
  if (model.state === 'MODEL_STATE_LOADING') return 'loading';
  if (model.state === 'MODEL_STATE_UNLOADING') return 'unloading';
  if (model.loadFailed) return 'failed';
  return model.loadsOnRequest ? 'loads on request' : 'not loaded';
}

// Models that this page can draw with: grey images of at most 256 levels. The paper's own kind first, the largest
// ahead.
export async function imageModels() {
  const fit = (await models()).filter((m) => m.modality === 'image' && m.image.channels === 1 && m.vocabSize <= 256);
  const own = (m) => Number(attentionName(m) === 'linear');
  return fit.sort(
    (a, b) => own(b) - own(a) || Number(b.parameters) - Number(a.parameters) || a.name.localeCompare(b.name),
  );
}

// Models of text, and those that are not loaded, of which nothing is known.
export async function textModels() {
  return (await models()).filter((m) => m.tokenizer || !isLoaded(m));
}

// Models with a chat template, and those that are not loaded.
export async function chatModels(again = false) {
  return (await models(again)).filter((m) => m.samplingDefaults || !isLoaded(m));
}

// The tab that is for most of what the server has: chats first.
export async function fittingTab() {
  if ((await chatModels()).length > 0) return 'chat';
  if ((await imageModels()).length > 0) return 'digits';
  return (await textModels()).length > 0 ? 'text' : 'server';
}

// The kind of attention, with its parameters: 'linear, favor', 'lsh, 4 rounds'.
export function attentionName(model) {
  if (!model.configJson) return model.attention ?? '';
  const { feature_map: map, rounds } = JSON.parse(model.configJson).attention ?? {};
  if (map && map !== 'elu_plus_one') return `${model.attention}, ${map}`;
  return rounds ? `${model.attention}, ${rounds} round${rounds === 1 ? '' : 's'}` : model.attention;
}

// The sessions that the server's memory has room for: '34 of 8192 tokens, or 1 of 262144'.
export function roomText(model) {
  if (!model.roomSessions) return '';
  const tokens = model.roomSessionTokens ? `${model.roomSessionTokens} tokens` : 'any length';
  return `${model.roomSessions} of ${tokens}, or 1 of ${model.roomTokens ?? 'any length'}`;
}

// Bytes of a state after so many tokens: linear between the points that the server reports; without a maximum,
// the bytes of each token.
export function stateBytes(model, position) {
  const points = (model.stateGrowth ?? []).map((p) => [Number(p.position ?? 0), Number(p.bytes ?? 0)]);
  if (points.length === 0) {
    if (model.stateBytesPerValue) return position * Number(model.stateBytesPerValue);
    const most = Number(model.stateBytes ?? 0);
    points.push(
      ...(model.constantState
        ? [[0, most]]
        : [
            [0, 0],
            [Number(model.maxLength ?? 1), most],
          ]),
    );
  }
  const next = points.findIndex(([at]) => at >= position);
  if (next < 0) return points.at(-1)[1];
  if (next === 0) return points[0][1];
  const [[x0, y0], [x1, y1]] = [points[next - 1], points[next]];
  return y0 + ((y1 - y0) * (position - x0)) / (x1 - x0);
}
