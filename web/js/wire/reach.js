// SPDX-License-Identifier: Apache-2.0
// Knows whether the server answers: by every call, and by a look now and then where none is made.

const EVERY = 5000; // ms between two looks at a server that answers
const AGAIN = 1000; // ms between two looks at one that does not
const PATIENCE = 5000; // ms that a look waits

const AWAY = [502, 503, 504]; // of something in between that does not reach the server, or of one that ends

let reached = true;
const listeners = new Set();

export const isReached = () => reached;

// listener(reached) is called at every change. Gives a function that ends that.
export function onReach(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// Records whether a call reached a server.
export function noteReach(now) {
  if (now === reached) return;
  reached = now;
  for (const listener of [...listeners]) listener(now);
}

// Records the status of an answer to a call: a server is reached, unless it is one of AWAY, which may come from
// elsewhere.
export function noteStatus(status) {
  if (!AWAY.includes(status)) noteReach(true);
}

// Asks for what every server answers, to whomever.
export async function look() {
  try {
    const { status } = await fetch('/v2/health/live', { cache: 'no-store', signal: AbortSignal.timeout(PATIENCE) });
    noteReach(!AWAY.includes(status));
  } catch {
    noteReach(false);
  }
}

// From now on, while the page is seen.
export function keepLooking() {
  let timer;
  const next = async () => {
    clearTimeout(timer);
    if (!document.hidden) await look();
    clearTimeout(timer);
    timer = setTimeout(next, reached ? EVERY : AGAIN);
  };
  timer = setTimeout(next, EVERY);
  document.addEventListener('visibilitychange', () => document.hidden || next());
  onReach((now) => {
    if (now) return;
    clearTimeout(timer);
    timer = setTimeout(next, AGAIN);
  });
}

const back = () =>
  new Promise((resolve) => {
    const end = onReach((now) => {
      if (!now) return;
      end();
      resolve();
    });
  });

// Returns the result of begin(), which is called again after a failure, whenever the server is back. failed(text):
// the reason, and '' before each further try.
export async function whenReached(begin, failed = () => {}) {
  for (;;) {
    try {
      return await begin();
    } catch (error) {
      failed(error.message);
      await look();
      // The server may have been away for a moment only.
      if (reached && error.code === 'unavailable') await new Promise((resolve) => setTimeout(resolve, AGAIN));
      else await back();
    }
    failed('');
  }
}
