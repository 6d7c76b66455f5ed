// Tables and details.

const ROWS = 25;

/**
 * A table that shows the first rows, and more on request. Columns are { name, cell, number }; a cell is text or an
 * element.
 */
class Table {
  constructor(table, more, columns) {
    Object.assign(this, { table, more, columns, rows: [], shown: ROWS });
    const heads = columns.map(({ name, number, sort }) => {
      const head = element('th', { scope: 'col', className: number ? 'number' : '' });
      if (sort) {
        head.append(element('button', { type: 'button', className: 'sort', onclick: () => this.sort(sort, head) }, name));
      } else {
        head.append(name);
      }
      return head;
    });
    this.body = element('tbody');
    table.replaceChildren(element('thead', {}, element('tr', {}, ...heads)), this.body);
    this.heads = heads;
    more?.addEventListener('click', () => {
      this.shown += 100;
      this.render();
    });
  }

  /** Calls `sort` with the direction; the same column again turns it round. */
  sort(sort, head) {
    const descends = head.getAttribute('aria-sort') !== 'descending';
    for (const other of this.heads) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', descends ? 'descending' : 'ascending');
    sort(descends);
  }

  fill(rows) {
    this.rows = rows;
    this.shown = ROWS;
    this.render();
  }

  render() {
    const shown = this.rows.slice(0, this.shown);
    this.body.replaceChildren(...shown.map((row) => {
      const cells = this.columns.map(({ cell, number }) =>
        element('td', { className: number ? 'number' : '' }, cell(row)));
      return element('tr', {}, ...cells);
    }));
    if (this.more) {
      this.more.hidden = this.rows.length <= this.shown;
      this.more.textContent = `Show more (${countText(this.rows.length - shown.length)} left)`;
    }
  }
}

function exactCell(bytes) {
  const cell = element('span', { title: `${countText(bytes)} B` }, bytesText(bytes));
  cell.dataset.value = bytes;
  return cell;
}

/** The innermost frame, and the number of the others. */
function originCell(origin) {
  if (!origin) return element('span', { className: 'muted' }, 'unknown');
  const frames = origin.split(';');
  const cell = element('span', { className: 'origin', title: frames.join('\n') }, frames[0]);
  if (frames.length > 1) cell.append(element('span', { className: 'muted' }, ` + ${plural(frames.length - 1, 'frame')}`));
  return cell;
}

/** The innermost frame, which opens to show the others. */
function framesCell(origin) {
  const [first, ...others] = origin.split(';');
  if (others.length === 0) return originCell(origin);
  return element('details', { className: 'origin' },
    element('summary', {}, first, element('span', { className: 'muted' }, ` + ${plural(others.length, 'frame')}`)),
    ...others.map((frame) => element('div', {}, frame)));
}

/** An origin, or a size in a log without origins. */
function groupCell(key, byOrigin) {
  return byOrigin ? framesCell(key) : element('span', {}, `blocks of ${bytesText(key)}`);
}

/** The blocks at a moment, largest first; the head of a column sorts. */
class BlockTable {
  constructor(view) {
    this.view = view;
    const { run } = view;
    const { blocks } = run;
    this.key = blocks.bytes;
    this.descends = true;
    const by = (key) => (descends) => {
      this.key = key;
      this.descends = descends;
      this.show();
    };
    const columns = [
      { name: 'address', cell: (block) => this.address(block), sort: by(blocks.place) },
      { name: 'size', number: true, cell: (block) => exactCell(blocks.bytes[block]), sort: by(blocks.bytes) },
      { name: 'since', number: true, cell: (block) => this.since(block), sort: by(blocks.allocated) },
      { name: 'stream', cell: (block) => run.streams[blocks.stream[block]], sort: by(blocks.stream) },
    ];
    if (run.hasOrigins) {
      columns.push({ name: 'origin', cell: (block) => originCell(run.origins[blocks.origin[block]]), sort: by(blocks.origin) });
    }
    this.table = new Table(byId('alive'), byId('alive-more'), columns);
    this.table.heads[1].setAttribute('aria-sort', 'descending');
  }

  address(block) {
    const { run, state } = this.view;
    const text = run.address(run.blocks.place[block]);
    const button = element('button', { type: 'button', className: 'link', onclick: () => this.view.select(block) }, text);
    button.dataset.block = block;
    if (run.blocks.requested[block] > state.event) return button;
    return element('span', {}, button, element('span', { className: 'muted' }, ' pending'));
  }

  since(block) {
    return secondsText(this.view.run.times[this.view.run.blocks.allocated[block]]);
  }

  show() {
    const { state } = this.view;
    const { key } = this;
    const sign = this.descends ? -1 : 1;
    const sorted = [...state.alive, ...state.pending].sort((a, b) => sign * (key[a] - key[b]) || a - b);
    byId('alive-count').textContent = `${countText(state.alive.length)} alive, ${bytesText(state.asked)}; ` +
      `${countText(state.pending.length)} with a pending free, ${bytesText(state.used - state.asked)}`;
    this.table.fill(sorted);
  }
}

/** All that is known about one block. */
function showBlock(view) {
  const { run, selected } = view;
  const part = byId('block');
  if (selected === null) {
    part.replaceChildren(element('p', { className: 'muted' },
      'Click on a block in the map or on an address in the table.'));
    return;
  }
  const { blocks } = run;
  const { allocated, requested, freed } = blocks;
  const event = (index) => (index < run.events
    ? eventLink(view, index)
    : 'not in the log: alive at its end');
  const facts = [
    ['address', run.address(blocks.place[selected])],
    ['size', exactText(blocks.bytes[selected])],
    ['stream', run.streams[blocks.stream[selected]]],
    ['thread', run.threads[blocks.thread[selected]] || 'unknown'],
    ['allocated', event(allocated[selected])],
  ];
  if (requested[selected] !== freed[selected]) facts.push(['free requested', event(requested[selected])]);
  facts.push(['free', event(freed[selected])]);
  if (freed[selected] < run.events) {
    facts.push(['lifetime', durationText(run.times[freed[selected]] - run.times[allocated[selected]])]);
  }
  const list = element('dl', { className: 'facts' });
  for (const [name, value] of facts) {
    const data = element('dd', {}, value);
    data.dataset.name = name;
    list.append(element('dt', {}, name), data);
  }
  const frames = run.origins[blocks.origin[selected]];
  const origin = frames
    ? element('ol', { className: 'frames' }, ...frames.split(';').map((frame) => element('li', {}, frame)))
    : element('p', { className: 'muted' }, run.hasOrigins ? 'unknown' : 'The log has no origins.');
  part.replaceChildren(list, element('h3', {}, 'Origin, innermost frame first'), origin);
}

/** A time that goes to its event. */
function eventLink(view, index) {
  const text = `${secondsText(view.run.times[index])} (event ${countText(index + 1)})`;
  return element('button', { type: 'button', className: 'link', onclick: () => view.choose(index) }, text);
}

/** What was alive at the peak. */
function showGroups(view) {
  const { run } = view;
  const state = run.stateAt(run.asked.event);
  const rows = groups(run, state.alive, run.hasOrigins);
  for (const part of document.querySelectorAll('.group')) part.textContent = run.hasOrigins ? 'origin' : 'size';
  const reason = run.hasOrigins ? '' : ' The log has no origins, so blocks are grouped by size.';
  byId('origins-note').textContent = `${exactText(state.asked)} in ${plural(state.alive.length, 'block')} at ` +
    `${secondsText(run.times[run.asked.event])}.${reason}`;
  new Table(byId('origins'), byId('origins-more'), [
    { name: run.hasOrigins ? 'origin' : 'size', cell: ({ key }) => groupCell(key, run.hasOrigins) },
    { name: 'bytes', number: true, cell: ({ bytes }) => exactCell(bytes) },
    { name: 'part', number: true, cell: ({ bytes }) => partCell(bytes, state.asked) },
    { name: 'blocks', number: true, cell: ({ blocks }) => countText(blocks) },
  ]).fill(rows);
}

/** A percentage with a bar behind it. */
function partCell(bytes, all) {
  const part = all === 0 ? 0 : bytes / all;
  const cell = element('span', { className: 'part' }, percentText(part));
  cell.style.setProperty('--part', `${part * 100}%`);
  return cell;
}

function showFailures(view) {
  const { failed, streams, origins, times, hasOrigins } = view.run;
  byId('failures-part').hidden = failed.events.length === 0;
  const columns = [
    { name: 'when', cell: (i) => eventLink(view, failed.events[i]) },
    { name: 'size', number: true, cell: (i) => exactCell(failed.bytes[i]) },
    { name: 'stream', cell: (i) => streams[failed.stream[i]] },
  ];
  if (hasOrigins) columns.push({ name: 'origin', cell: (i) => originCell(origins[failed.origin[i]]) });
  new Table(byId('failures'), byId('failures-more'), columns).fill([...failed.events.keys()]);
}
