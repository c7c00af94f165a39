// SPDX-License-Identifier: Apache-2.0
// The page: tabs, who calls, and whether the server answers. Each tab is a module that is started when it is first
// looked at: start() brings it to life and returns {open, leave}, both optional.
import { fittingTab, isLoaded, models } from './wire/models.js';
import { isReached, keepLooking, onReach } from './wire/reach.js';
import { hasToken, onUnauthenticated, useToken } from './wire/rpc.js';
import { startTabs } from './tabs.js';
import { start as chat } from './tabs/chat.js';
import { start as digits } from './tabs/digits.js';
import { start as race } from './tabs/race.js';
import { start as server } from './tabs/server.js';
import { start as text } from './tabs/text.js';

const starts = { digits, text, chat, race, server };
const started = {};

// One dialog for all calls that ask.
let asking;
onUnauthenticated(() => {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById('token');
    const value = document.getElementById('token-value');
    document.getElementById('token-why').textContent = hasToken()
      ? 'The server does not know this token.'
      : 'Who runs the server gives out tokens. Paste yours here.';
    value.value = '';
    dialog.returnValue = 'cancel';
    dialog.addEventListener(
      'close',
      () => {
        asking = undefined;
        const given = dialog.returnValue === 'use' && value.value.trim() !== '';
        if (given) useToken(value.value);
        value.value = '';
        resolve(given);
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
});

const connection = document.getElementById('connection');
async function connect() {
  try {
    const all = await models(true);
    const loaded = all.filter(isLoaded).length;
    const count = `${all.length} model${all.length === 1 ? '' : 's'}`;
    connection.dataset.state = 'good';
    connection.textContent = `${count}${loaded < all.length ? `, ${loaded} loaded,` : ''} at ${location.host}`;
  } catch (error) {
    if (isReached()) tellBad(error.message);
  }
}

function tellBad(text) {
  connection.dataset.state = 'bad';
  connection.textContent = text;
}

onReach((reached) => (reached ? connect() : tellBad(`the server at ${location.host} does not answer`)));
keepLooking();

const showFirst = startTabs(
  (name) => {
    started[name] ??= starts[name]();
    started[name].open?.();
  },
  (name) => started[name].leave?.(),
);
connect();
fittingTab().then(showFirst, () => showFirst('chat'));
