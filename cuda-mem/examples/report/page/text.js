// Numbers and elements.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];

/** Bytes with the largest unit that fits, and one decimal: 12.7 GiB. */
function bytesText(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  // What rounds to 1024 is one of the next unit.
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? String(value) : value.toFixed(1).replace(/\.0$/, '');
  return `${bytes < 0 ? '−' : ''}${digits} ${UNITS[unit]}`;
}

/** Also in bytes, where the unit hides digits. */
function exactText(bytes) {
  return bytes < 1024 ? bytesText(bytes) : `${bytesText(bytes)} (${countText(bytes)} B)`;
}

/** In groups of three digits: 71,623. */
function countText(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ',');
}

function plural(number, noun) {
  return `${countText(number)} ${noun}${number === 1 ? '' : 's'}`;
}

/** Nanoseconds as seconds, with as many decimals as this number needs. */
function exactSeconds(ns) {
  return secondsText(ns, ns % 1000 === 0 ? 6 : 9);
}

/** Nanoseconds as seconds. */
function secondsText(ns, decimals = 6) {
  return `${(ns / 1e9).toFixed(decimals)} s`;
}

/** How long, with the unit that leaves the fewest digits. */
function durationText(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(1)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(1)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

function percentText(part) {
  return `${(part * 100).toFixed(1)} %`;
}

function byId(id) {
  return document.getElementById(id);
}

/** An element with properties and children. Text becomes text, never HTML: it comes from a log. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** A list of facts. `value` is the exact number, for programs and as a tooltip. */
function tiles(list, facts) {
  list.replaceChildren(...facts.map(({ name, text, value, note }) => {
    const data = element('dd', {}, text);
    if (value !== undefined) {
      data.dataset.value = value;
      data.title = countText(value);
    }
    const children = [element('dt', {}, name), data];
    if (note) children.push(element('dd', { className: 'muted note' }, note));
    const tile = element('div', {}, ...children);
    tile.dataset.name = name;
    return tile;
  }));
}

function legend(list, entries) {
  list.replaceChildren(...entries.map(([kind, text]) =>
    element('li', {}, element('span', { className: `swatch ${kind}` }), text)));
}

/** The colours of the style sheet, which change with the system's preference. */
function colours() {
  const style = getComputedStyle(document.documentElement);
  const names = ['text', 'muted', 'line', 'back', 'asked', 'used', 'reserved', 'failure', 'block', 'pending',
    'free', 'unmapped', 'selected'];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Calls `draw` once before the next frame, however often it is asked for. */
function coalesced(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  };
}
