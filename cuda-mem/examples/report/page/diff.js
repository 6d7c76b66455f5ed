// The page of two runs, and the start of both pages.

/** Three columns: A, B and their difference. */
function compareTable(id, rows) {
  const missing = (value) => element('span', { className: 'muted' }, value);
  const cell = (of) => ({ form, ...row }) => {
    const value = row[of];
    if (value === null || value === undefined) return missing('unknown');
    const text = form(value);
    const made = element('span', { title: countText(value) }, of === 'difference' && value > 0 ? `+${text}` : text);
    made.dataset.value = value;
    return made;
  };
  const table = new Table(byId(id), null, [
    { name: '', cell: ({ name }) => name },
    { name: 'A', number: true, cell: cell('a') },
    { name: 'B', number: true, cell: cell('b') },
    { name: 'B − A', number: true, cell: cell('difference') },
  ]);
  table.fill(rows.map((row) => {
    const known = [row.a, row.b].every((value) => value !== null && value !== undefined);
    return { ...row, difference: known ? row.b - row.a : null };
  }));
}

function compareSummaries(a, b) {
  const of = (name, form, get) => ({ name, form, a: get(a), b: get(b) });
  compareTable('summary', [
    of('peak asked', bytesText, (run) => run.asked.bytes),
    of('peak used', bytesText, (run) => run.used.bytes),
    of('peak reserved', bytesText, (run) => run.reserved?.bytes),
    of('alive at the end', bytesText, (run) => run.asked_at_end),
    of('allocations', signedCount, (run) => run.blocks.count),
    of('failed requests', signedCount, (run) => run.failures),
    of('driver calls', signedCount, (run) => run.driver_calls),
    of('duration', (ns) => `${ns < 0 ? '−' : ''}${secondsText(Math.abs(ns), 3)}`, (run) => run.duration),
  ]);
}

function signedCount(number) {
  return number < 0 ? `−${countText(-number)}` : countText(number);
}

/** What was alive at both peaks, the largest difference first. */
function compareGroups(a, b) {
  const byOrigin = a.hasOrigins && b.hasOrigins;
  const merged = new Map();
  for (const [side, run] of [['a', a], ['b', b]]) {
    for (const { key, bytes } of groups(run, run.stateAt(run.asked.event).alive, byOrigin)) {
      const row = merged.get(key) ?? { key, a: 0, b: 0 };
      row[side] = bytes;
      merged.set(key, row);
    }
  }
  for (const part of document.querySelectorAll('.group')) part.textContent = byOrigin ? 'origin' : 'size';
  byId('origins-note').textContent = byOrigin
    ? 'The largest difference is first.'
    : 'At least one log has no origins, so blocks are grouped by size. The largest difference is first.';
  const rows = [...merged.values()].sort((x, y) => Math.abs(y.b - y.a) - Math.abs(x.b - x.a) || y.a - x.a);
  const signed = (bytes) => {
    const cell = exactCell(bytes);
    if (bytes > 0) cell.prepend('+');
    return cell;
  };
  new Table(byId('origins'), byId('origins-more'), [
    { name: byOrigin ? 'origin' : 'size', cell: ({ key }) => groupCell(key, byOrigin) },
    { name: 'A', number: true, cell: (row) => exactCell(row.a) },
    { name: 'B', number: true, cell: (row) => exactCell(row.b) },
    { name: 'B − A', number: true, cell: (row) => signed(row.b - row.a) },
  ]).fill(rows);
}

/** Both charts over the same axes; a click shows the same moment of both. */
class DiffView {
  constructor(runs) {
    this.axis = new TimeAxis(runs);
    this.sides = runs.map((run) => ({ run, axis: this.axis, curves: curvesOf(run), moment: null, selected: null }));
    this.charts = this.sides.map((side, i) => this.chart(side, byId(i === 0 ? 'bytes-a' : 'bytes-b'), 'AB'[i]));
    this.axis.range.listeners.push(() => this.redraw());
    const hasReserved = runs.some((run) => run.hasReserved);
    legend(byId('legend'), [['line asked', 'asked: live allocations'], ['line used', 'used: asked and pending frees'],
      ...(hasReserved ? [['line reserved', 'reserved: mapped, or held by pools']] : [])]);
  }

  chart(side, container, name) {
    const { asked, used, reserved } = side.curves;
    const curves = [{ steps: used, kind: 'used', name: 'used' }, { steps: asked, kind: 'asked', name: 'asked' }];
    if (reserved) curves.unshift({ steps: reserved, kind: 'reserved', name: 'reserved' });
    side.choose = (event) => this.choose(this.axis.place(side.run, event));
    return new Chart(container, side, {
      curves, form: 'bytes', label: `Bytes over time of ${name}`, height: 260, peaks: () => this.peaks(),
    });
  }

  /** The same vertical axis for both. */
  peaks() {
    const found = this.charts.map((chart) => chart.extremes());
    return { low: 0, high: Math.max(...found.map(({ high }) => high)) };
  }

  redraw() {
    byId('shown').textContent = this.axis.shownText;
    for (const chart of this.charts) chart.redraw();
  }

  /** Shows both runs at a place of the axis. */
  choose(place) {
    const [a, b] = this.sides.map((side) => {
      side.moment = this.axis.eventAt(side.run, place);
      return side.run.stateAt(side.moment);
    });
    const of = (name, form, get) => ({ name, form, a: get(a), b: get(b) });
    byId('event').textContent = this.axis.byEvent ? `After event ${countText(Math.floor(place) + 1)}` : `At ${secondsText(place)}`;
    compareTable('moment', [
      of('asked', bytesText, (state) => state.asked),
      of('used', bytesText, (state) => state.used),
      of('reserved', bytesText, (state) => state.reserved),
      of('blocks alive', signedCount, (state) => state.alive.length),
    ]);
    this.redraw();
  }
}

function showDiff(runs) {
  const [a, b] = runs;
  for (const [side, run] of [['a', a], ['b', b]]) {
    byId(`name-${side}`).textContent = run.name;
    byId(`about-${side}`).textContent = `${run.name}: ${run.about()}`;
  }
  listProblems([['A', a], ['B', b]].flatMap(([side, run]) => run.problems.map((problem) => `${side}: ${problem}`)));
  compareSummaries(a, b);
  compareGroups(a, b);
  const view = new DiffView(runs);
  wire(view.axis, () => view.redraw());
  view.choose(view.axis.place(a, a.asked.event));
}

async function start() {
  const runs = await readRuns();
  if (runs.length === 1) showReport(runs[0]);
  else showDiff(runs);
  // After the frame with all of it: what a reader waits for.
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = performance.now().toFixed(1);
  }));
}

start().catch((error) => {
  document.body.prepend(element('p', { className: 'problem' }, `This page cannot be shown: ${error.message}. ` +
    'It needs a browser of 2023 or newer, with DecompressionStream.'));
});
