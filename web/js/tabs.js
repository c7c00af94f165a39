// SPDX-License-Identifier: Apache-2.0
// The tabs, as the ARIA Authoring Practices have them: arrow keys go from tab to tab, and the address names the one
// that is shown. https://www.w3.org/WAI/ARIA/apg/patterns/tabs/

// open(name): called whenever a tab comes into view; leave(name): when it goes.
export function startTabs(open, leave) {
  const list = document.querySelector('[role=tablist]');
  const tabs = [...list.querySelectorAll('[role=tab]')];
  const name = (tab) => tab.getAttribute('aria-controls');
  let shown;

  function show(tab) {
    if (tab === shown) return;
    if (shown) leave(name(shown));
    shown = tab;
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute('aria-selected', chosen);
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(name(other)).hidden = !chosen;
    }
    history.replaceState(null, '', `#${name(tab)}`);
    document.title = `${tab.textContent} · Lintel`;
    open(name(tab));
  }

  const named = () => tabs.find((tab) => `#${name(tab)}` === location.hash) ?? tabs[0];
  for (const tab of tabs) tab.addEventListener('click', () => show(tab));
  list.addEventListener('keydown', (event) => {
    const at = tabs.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const tab = tabs[(to + tabs.length) % tabs.length];
    tab.focus();
    show(tab);
  });
  addEventListener('hashchange', () => show(named()));
  show(named());
}
