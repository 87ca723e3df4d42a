(() => {
  'use strict';
  const live = document.querySelector('.live'), note = document.querySelector('.live-state');
  const say = text => { if (note && note.textContent !== text) note.textContent = text; };
  // get returns the document at a path, or null if there is none. X-Refresh marks requests that no person has made.
  const get = async path => {
    try {
      const answer = await fetch(path, { credentials: 'same-origin', headers: { 'X-Refresh': '1' } });
      if (answer.ok) return new DOMParser().parseFromString(await answer.text(), 'text/html');
      say(answer.status === 401 ? 'You are logged out. Load the page again.' : 'The page cannot be refreshed.');
    } catch {
      say('The sidecar does not answer. The page shows an earlier state.');
    }
    return null;
  };
  // A part that a person is using is not replaced, except those that are always current.
  const busy = part => !part.matches('.always') && (part.contains(document.activeElement) || part.querySelector('details[open]'));
  const replace = (fresh, selector) => {
    if (!fresh) return;
    for (const part of document.querySelectorAll(selector)) {
      const now = fresh.getElementById(part.id);
      if (now && !busy(part) && now.innerHTML !== part.innerHTML) part.replaceChildren(...now.childNodes);
    }
    say('');
  };

  const color = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  // Marks are vertical lines at reloads and adjustments.
  const drawMarks = marks => ({ hooks: { draw: plot => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = color('soft');
    ctx.setLineDash([4, 4]);
    for (const [at] of marks) {
      const x = plot.valToPos(at, 'x', true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  } } });
  const rate = (plot, value) => value == null ? '–' : value.toFixed(value < 10 ? 1 : 0) + '/s';
  const line = (label, name, dash) => ({ label, stroke: () => color(name), width: 2, dash, fill: dash ? undefined : color(name) + '22', value: rate, points: { show: false } });
  const axis = more => ({ stroke: () => color('soft'), grid: { stroke: () => color('line'), width: 1 }, ticks: { show: false }, font: '12px ' + color('numbers'), ...more });
  const chart = document.querySelector('.chart');
  let plot = null;
  const size = () => ({ width: chart.clientWidth, height: chart.clientWidth < 500 ? 150 : 190 });
  const draw = async () => {
    const answer = await fetch(chart.dataset.source, { credentials: 'same-origin', headers: { 'X-Refresh': '1' } }).catch(() => null);
    if (!answer || !answer.ok) return;
    const data = await answer.json(), columns = [data.time, data.allowed, data.denied, data.would];
    if (!data.time) return;
    chart.hidden = false;
    if (plot) return plot.setData(columns);
    const day = chart.dataset.source.includes('range=day');
    plot = new uPlot({
      ...size(), padding: [8, 20, 0, 0], plugins: [drawMarks(data.marks || [])],
      scales: { y: { range: (_, least, most) => [0, Math.max(1, most * 1.1)] } },
      tzDate: at => uPlot.tzDate(new Date(at * 1e3), 'UTC'),
      axes: [axis({ size: 30, values: (_, list) => list.map(at => uPlot.fmtDate('{HH}:{mm}')(uPlot.tzDate(new Date(at * 1e3), 'UTC'))) }), axis({ size: 56, values: (_, list) => list.map(v => v + '/s') })],
      series: [{ label: 'UTC', value: day ? '{HH}:{mm}' : '{HH}:{mm}:{ss}' }, line('allowed', 'allowed'), line('denied', 'denied'), line('would be denied', 'would', [6, 4])],
    }, columns, chart);
    addEventListener('resize', () => plot.setSize(size()));
  };
  if (chart) {
    const library = document.createElement('script');
    library.src = '/uplot.js';
    library.addEventListener('load', draw);
    document.head.append(library);
  }

  const filter = document.querySelector('[data-filter]');
  const slash = act => event => { if (event.key === '/' && filter && !event.target.matches('input, textarea, select')) act(event); };
  addEventListener('keydown', slash(event => event.preventDefault())); // some browsers search the page
  addEventListener('keyup', slash(() => filter.focus()));
  let waiting = 0;
  if (filter) filter.addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const to = '/limits?' + new URLSearchParams(new FormData(filter.form));
      history.replaceState(null, '', to);
      replace(await get(to), '#rows');
    }, 150);
  });

  if (!live) return;
  const box = live.querySelector('input');
  let stored = null;
  try { stored = sessionStorage.getItem('live'); } catch { /* storage is off */ }
  box.checked = stored !== 'off';
  live.hidden = false;
  box.addEventListener('change', () => {
    try { sessionStorage.setItem('live', box.checked ? 'on' : 'off'); } catch { /* storage is off */ }
  });
  const every = (seconds, refresh) => setInterval(() => { if (box.checked && !document.hidden) refresh(); }, 1000 * seconds);
  every(1, async () => replace(await get('/state'), '.always'));
  every(5, async () => {
    replace(await get(location.pathname + location.search), '.live-part');
    if (chart) draw();
  });
})();
