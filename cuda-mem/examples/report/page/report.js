// The page of one run.

/** The summary at the top. */
function showSummary(run) {
  const at = ({ event }) => `at ${secondsText(run.times[event], 3)}`;
  const peak = (name, found) => (found
    ? { name, text: bytesText(found.bytes), value: found.bytes, note: at(found) }
    : { name, text: 'unknown', note: 'no maps in the log' });
  const facts = [peak('peak asked', run.asked), peak('peak used', run.used), peak('peak reserved', run.reserved)];
  if (run.reserved) {
    const ratio = run.reserved.bytes / Math.max(run.asked.bytes, 1);
    facts.push({ name: 'reserved / asked', text: ratio.toFixed(3), note: 'of the peaks' });
  }
  facts.push(
    { name: 'alive at the end', text: bytesText(run.asked_at_end), value: run.asked_at_end, note: plural(run.alive_at_end, 'block') },
    { name: 'allocations', text: countText(run.blocks.count), value: run.blocks.count },
    { name: 'failed requests', text: countText(run.failures), value: run.failures },
  );
  facts.push(run.driver_calls === null
    ? { name: 'driver calls', text: 'unknown', note: 'not in the log' }
    : { name: 'driver calls', text: countText(run.driver_calls), value: run.driver_calls,
      note: `${(run.driver_calls / run.events).toFixed(3)} an event` });
  tiles(byId('summary'), facts);
}

/** What the moment is, in numbers. */
function showMoment(view) {
  const { run, state, moment } = view;
  const block = run.blockOf(moment);
  const size = block < 0 ? '' : ` of ${bytesText(run.blocks.bytes[block])}`;
  byId('event').replaceChildren(`${exactSeconds(run.times[moment])}, after event ${countText(moment + 1)}: ` +
    `${ACTIONS[run.actions[moment]]}${size}`);
  byId('event').dataset.value = moment;
  const facts = [
    { name: 'asked', text: bytesText(state.asked), value: state.asked, note: plural(state.alive.length, 'block') },
    { name: 'used', text: bytesText(state.used), value: state.used, note: plural(state.pending.length, 'pending free') },
  ];
  if (run.hasReserved) facts.push({ name: 'reserved', text: bytesText(state.reserved), value: state.reserved });
  else facts.push({ name: 'reserved', text: 'unknown', note: 'not in the log' });
  if (run.hasMaps) {
    facts.push(
      { name: 'free but mapped', text: bytesText(state.freeBytes), value: state.freeBytes, note: plural(state.free.length, 'piece') },
      { name: 'largest free piece', text: bytesText(state.largestFree), value: state.largestFree,
        note: state.freeBytes > 0 ? `${percentText(state.largestFree / state.freeBytes)} of free` : '' },
    );
  }
  const calls = view.curves.calls?.at(moment) ?? null;
  if (calls !== null) facts.push({ name: 'driver calls so far', text: countText(calls), value: calls });
  tiles(byId('moment'), facts);
}

/** The state of the page: which moment and which block are shown, and everything that shows them. */
class View {
  constructor(run) {
    this.run = run;
    this.axis = new TimeAxis([run]);
    this.curves = curvesOf(run);
    this.selected = null;
    this.moment = null;
    this.key = (key) => this.onKey(key);
    this.makeCharts();
    this.map = new AddressMap(byId('map'), this, { readout: byId('map-readout'), onRange: () => this.showMapRange() });
    this.table = new BlockTable(this);
    this.axis.range.listeners.push(() => this.onRange());
    this.showMomentSoon = coalesced(() => this.showMoment());
  }

  makeCharts() {
    const { asked, used, reserved, space, calls } = this.curves;
    const curves = [{ steps: asked, kind: 'asked', name: 'asked' }];
    if (this.run.hasPending) curves.unshift({ steps: used, kind: 'used', name: 'used' });
    if (reserved) curves.unshift({ steps: reserved, kind: 'reserved', name: 'reserved' });
    const marks = [
      { events: this.run.eventsOf(TRIM), kind: 'muted', name: 'trim' },
      { events: this.run.failed.events, kind: 'failure', name: 'failed request' },
      { events: this.run.eventsOf(DROPPED), kind: 'selected', name: 'dropped events' },
    ].filter(({ events }) => events.length > 0);
    this.charts = [new Chart(byId('bytes'), this, { curves, marks, form: 'bytes', label: 'Bytes over time', height: 300 })];
    const small = (id, steps, form, name) => {
      byId(`${id}-part`).hidden = !steps;
      if (!steps) return;
      this.charts.push(new Chart(byId(id), this, { curves: [{ steps, kind: 'asked', name }], form, label: name, height: 110 }));
    };
    small('space', space, 'part', 'largest free piece / free mapped bytes');
    small('calls', calls, 'count', 'driver calls since the beginning');
    const askedNote = this.run.hasPending ? 'asked: live allocations' : 'asked and used: live allocations, no pending frees in the log';
    const notes = { asked: askedNote, used: 'used: asked and pending frees', reserved: 'reserved: mapped, or held by pools' };
    legend(byId('legend'), [
      ...curves.map(({ kind }) => [`line ${kind}`, notes[kind]]).reverse(),
      ...marks.map(({ kind, name }) => [`mark ${kind}`, name]),
    ]);
    const nothing = this.run.hasMaps ? 'not mapped' : 'no block (mappings are not in the log)';
    const pending = this.run.hasPending ? [['pending', 'pending free']] : [];
    const free = this.run.hasMaps ? [['free', 'free but mapped']] : [];
    legend(byId('map-legend'), [['block', 'block'], ...pending, ...free, ['unmapped', nothing]]);
  }

  /** Charts and map again. */
  redraw() {
    for (const chart of this.charts) chart.redraw();
    this.map.redraw();
  }

  onRange() {
    byId('shown').textContent = this.axis.shownText;
    for (const chart of this.charts) chart.redraw();
  }

  showMapRange() {
    const { run, map } = this;
    if (!map) return;
    const { from, to } = map.range;
    byId('map-shown').textContent = `${run.address(from)} to ${run.address(to, true)}, ${bytesText(to - from)}`;
  }

  /** Shows the moment after this event. */
  choose(event) {
    this.moment = Math.min(Math.max(event, 0), this.run.events - 1);
    this.axis.range.reveal(this.axis.place(this.run, this.moment));
    this.showMomentSoon();
  }

  showMoment() {
    this.state = this.run.stateAt(this.moment);
    showMoment(this);
    this.table.show();
    this.map.tell(null);
    this.showMapRange();
    this.redraw();
  }

  select(block) {
    this.selected = block;
    showBlock(this);
    if (block !== null) byId('block-part').scrollIntoView({ block: 'nearest' });
    this.redraw();
  }

  onKey(key) {
    const actions = {
      ',': () => this.choose(this.moment - 1),
      '.': () => this.choose(this.moment + 1),
      p: () => this.goToPeak(),
      P: () => this.goToPeak(),
      Escape: () => this.select(null),
    };
    actions[key]?.();
    return key in actions;
  }

  goToPeak() {
    this.choose(this.run.asked.event);
  }
}

/** Buttons and the switch of the axis. */
function wire(axis, redraw) {
  byId('zoom-in').addEventListener('click', () => axis.range.zoom(0.5));
  byId('zoom-out').addEventListener('click', () => axis.range.zoom(2));
  byId('reset').addEventListener('click', () => axis.range.reset());
  const box = byId('by-event');
  box.checked = axis.byEvent;
  box.disabled = !axis.hasTimes;
  box.addEventListener('change', () => axis.use(box.checked));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
}

function listProblems(problems) {
  byId('problems').replaceChildren(...problems.map((problem) => element('li', {}, problem)));
  byId('problems').hidden = problems.length === 0;
}

function showReport(run) {
  byId('name').textContent = run.name;
  byId('about').textContent = run.about();
  listProblems(run.problems);
  showSummary(run);
  const view = new View(run);
  wire(view.axis, () => view.redraw());
  byId('peak').addEventListener('click', () => view.goToPeak());
  byId('before').addEventListener('click', () => view.choose(view.moment - 1));
  byId('after').addEventListener('click', () => view.choose(view.moment + 1));
  byId('map-in').addEventListener('click', () => view.map.range.zoom(0.5));
  byId('map-out').addEventListener('click', () => view.map.range.zoom(2));
  byId('map-reset').addEventListener('click', () => view.map.range.reset());
  view.onRange();
  showGroups(view);
  showFailures(view);
  showBlock(view);
  view.goToPeak();
}
