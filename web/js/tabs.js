// SPDX-License-Identifier: Apache-2.0
// The tabs, as the ARIA Authoring Practices have them: arrow keys go from tab to tab, and the address names the one
// that is shown. https://www.w3.org/WAI/ARIA/apg/patterns/tabs/

// open(name): called whenever a tab comes into view; leave(name): when it goes. Shows the tab that the address names.
// Gives show(name), which shows a tab where none is shown so far.
export function startTabs(open, leave) {
  const list = document.querySelector('[role=tablist]');
  const tabs = [...list.querySelectorAll('[role=tab]')];
  const name = (tab) => tab.getAttribute('aria-controls');
  const find = (wanted) => tabs.find((tab) => name(tab) === wanted);
  let shown;

  function show(tab) {
    if (shown && tab !== shown) leave(name(shown));
    const isOther = tab !== shown;
    shown = tab;
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute('aria-selected', chosen);
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(name(other)).hidden = !chosen;
    }
    // The slash: a browser scrolls to an element whose id is the fragment.
    history.replaceState(null, '', `#/${name(tab)}`);
    document.title = `${tab.textContent} · Lintel`;
    if (!isOther) return;
    scrollTo(0, 0);
    open(name(tab));
  }

  const named = () => find(location.hash.replace(/^#\/?/, ''));
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
  history.scrollRestoration = 'manual';
  addEventListener('hashchange', () => show(named() ?? shown ?? tabs[0]));
  if (named()) show(named());
  return (wanted) => {
    if (!shown) show(find(wanted));
  };
}
