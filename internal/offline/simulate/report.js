'use strict';
(function () {
  const data = JSON.parse(document.getElementById('data').textContent);
  const height = 220, top = 10, bottom = 24, left = 48;

  function node(name, attributes, text) {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function canvas(host, label) {
    const width = Math.max(200, host.clientWidth);
    const svg = node('svg', {viewBox: '0 0 ' + width + ' ' + height, role: 'img', 'aria-label': label});
    host.replaceChildren(svg);
    svg.append(node('line', {class: 'axis', x1: left, x2: width, y1: height - bottom, y2: height - bottom}));
    return {svg, width, inner: width - left - 4};
  }

  function number(n) { return n.toLocaleString('en'); }

  function percent(part, whole) { return whole ? (100 * part / whole).toFixed(2) + ' %' : '0 %'; }

  function moment(us) { return new Date(us / 1000).toISOString().slice(0, 16).replace('T', ' '); }

  function scale(c, most) {
    c.svg.append(node('text', {x: left - 6, y: top + 10, 'text-anchor': 'end'}, number(most)));
    c.svg.append(node('text', {x: left - 6, y: height - bottom, 'text-anchor': 'end'}, '0'));
  }

  // overTime draws requests, and the part of them that is denied, over time.
  function overTime(host, from, to, requests, denied) {
    const total = requests.reduce((a, b) => a + b, 0), refused = denied.reduce((a, b) => a + b, 0);
    const c = canvas(host, 'Requests over time: ' + number(total) + ', of which ' + number(refused) + ' are denied');
    const most = Math.max(1, ...requests), room = height - top - bottom, step = c.inner / Math.max(1, requests.length);
    requests.forEach((n, i) => {
      const full = room * n / most, part = room * denied[i] / most, x = left + i * step, w = Math.max(1, step - 1);
      c.svg.append(node('rect', {class: 'allowed', x, width: w, y: top + room - full, height: Math.max(0, full - part)}));
      c.svg.append(node('rect', {class: 'denied', x, width: w, y: top + room - part, height: part}));
    });
    scale(c, most);
    c.svg.append(node('text', {x: left, y: height - 6}, moment(from)));
    c.svg.append(node('text', {x: c.width - 4, y: height - 6, 'text-anchor': 'end'}, moment(to) + ' UTC'));
  }

  // needs draws how many clients need each number, and a line after point at. It returns a function that maps a
  // horizontal position to the nearest point.
  function needs(host, field, points, at) {
    const c = canvas(host, 'Clients by the ' + field + ' that they need');
    const most = Math.max(1, ...points.map(p => p.need)), room = height - top - bottom, step = c.inner / points.length;
    let labelled = -Infinity;
    points.forEach((p, i) => {
      // The square root keeps one abuser visible beside a thousand others.
      const h = p.need ? Math.max(4, room * Math.sqrt(p.need / most)) : 0, x = left + i * step;
      c.svg.append(node('rect', {class: i > at ? 'denied' : 'allowed', x: x + 1, width: Math.max(1, step - 2), y: top + room - h, height: h}));
      const text = number(p.n), wide = 8 * text.length + 8;
      if (x - labelled > wide && x + wide / 2 < c.width) {
        labelled = x;
        c.svg.append(node('text', {x: x + step / 2, y: height - 6, 'text-anchor': 'middle'}, text));
      }
    });
    scale(c, most);
    const x = left + (at + 1) * step;
    c.svg.append(node('line', {class: 'mark', x1: x, x2: x, y1: 0, y2: height - bottom}));
    return position => Math.min(points.length - 1, Math.max(0, Math.round((position - left) / step) - 1));
  }

  function tryLimit(section, {advice, grid}) {
    const points = grid.points, sent = grid.requests.reduce((a, b) => a + b, 0);
    const suggested = points.findIndex(p => advice.suggested && p.n === advice.suggested.n);
    if (!points.length) return;
    section.hidden = false;
    const slider = section.querySelector('input'), button = section.querySelector('button');
    const chart = section.querySelector('.needs'), times = section.querySelector('.times');
    let nearest;
    slider.max = points.length - 1;
    function show() {
      const at = Number(slider.value), p = points[at];
      nearest = needs(chart, advice.field, points, at);
      overTime(times, grid.from_us, grid.to_us, grid.requests, p.denied);
      slider.setAttribute('aria-valuetext', advice.field + ' ' + number(p.n) + ': ' + number(p.clients) + ' clients denied');
      section.querySelector('.outcome').textContent = advice.field + ' ' + number(p.n) + ' denies a request of ' + number(p.clients) + ' of ' +
        number(advice.clients) + ' clients (' + percent(p.clients, advice.clients) + '), and ' + number(p.requests) + ' of ' +
        number(sent) + ' requests (' + percent(p.requests, sent) + ').';
      section.querySelector('.yaml').textContent = p.limit;
    }
    function suggest() {
      slider.value = suggested >= 0 ? suggested : points.length - 1;
      show();
    }
    function drag(event) {
      const box = chart.getBoundingClientRect();
      slider.value = nearest(event.clientX - box.left);
      show();
    }
    chart.addEventListener('pointerdown', event => { chart.setPointerCapture(event.pointerId); drag(event); });
    chart.addEventListener('pointermove', event => { if (chart.hasPointerCapture(event.pointerId)) drag(event); });
    slider.addEventListener('input', show);
    button.hidden = suggested < 0;
    button.addEventListener('click', suggest);
    suggest();
    return show;
  }

  const redraw = [];
  document.querySelectorAll('.try').forEach(section => {
    const show = tryLimit(section, data.limits[section.dataset.limit]);
    if (show) redraw.push(show);
  });
  redraw.push(() => overTime(document.getElementById('all-chart'), data.from_us, data.to_us, data.requests || [], data.denied || []));
  let width = 0;
  function all() {
    if (width === window.innerWidth) return;
    width = window.innerWidth;
    redraw.forEach(draw => draw());
  }
  window.addEventListener('resize', all);
  all();
})();
