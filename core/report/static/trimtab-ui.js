/* The report's charts and buttons: plain functions over one vendored ECharts build. No framework, no network, no
   storage needed. Text is HTML made by Python; here is only what is drawn, and what answers to a pointer or a key.

   TT.chrome(root)        theme switch, copy buttons, relative times
   TT.report(root, data)  the timeline, and the first decision worth a look
   TT.timeline(el, data)  one chart; returns {draw, destroy} */
(function (g) {
  'use strict';
  var NB = '\u202f', MINUTE = 60, EC = g.echarts, live = [];
  var MARK = 24, ROW = 26; // px: a decision's button, and one row of them

  function whole(x) { return x == null ? '\u2013' : String(Math.round(x)).replace(/\B(?=(\d{3})+(?!\d))/g, NB); }
  function samples(x) {
    if (x == null) return '\u2013';
    if (Math.abs(x) < 999.5) return whole(x);
    return (Math.abs(x) >= 99950 ? whole(x / 1e3) : (x / 1e3).toFixed(1)) + NB + 'k';
  }
  function two(x) { return ('0' + x).slice(-2); }
  function clock(s) {
    s = Math.floor(s + 1e-9);
    var h = Math.floor(s / 3600), m = Math.floor(s % 3600 / 60);
    return (h ? h + ':' + two(m) : m) + ':' + two(s % 60);
  }
  function utc(iso, s) { return new Date(new Date(iso).getTime() + s * 1e3).toISOString().slice(11, 19) + ' UTC'; }
  function esc(s) {
    return String(s).replace(/[&<>"']/g, function (c) {
      return { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' }[c];
    });
  }
  function tidy(x) { return String(Math.round(x * 100) / 100); }
  function root(el) { return el.closest('.tt'); }
  function tokens(el) {
    var style = getComputedStyle(root(el));
    return function (name) { return style.getPropertyValue('--' + name).trim(); };
  }
  function nearest(times, t) {
    var best = -1, gap = Infinity;
    times.forEach(function (x, i) { var d = Math.abs(x - t); if (d < gap) { gap = d; best = i; } });
    return best;
  }
  function inForce(plans, t) {
    var found = plans[0];
    plans.forEach(function (p) { if (p.t <= t) found = p; });
    return found;
  }
  function steps(most, wanted) { // a round step, so that about `wanted` of them reach `most`
    var raw = most / wanted, power = Math.pow(10, Math.floor(Math.log(raw) / Math.LN10));
    var found = [1, 2, 2.5, 5, 10].filter(function (f) { return f * power >= raw * 0.999; })[0];
    return found * power;
  }
  function tick(T, width) {
    var want = T / Math.max(3, Math.min(9, Math.floor(width / 95)));
    var known = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
    return known.filter(function (s) { return s >= want; })[0] || 86400 * Math.ceil(want / 86400);
  }
  function tickText(v, step, T) {
    var last = v + step > T + 1e-6;
    if (v % step) return '';
    if (v === 0) return '0';
    if (step < MINUTE) return T <= 2 * MINUTE ? v + (last || v === step ? '\u00a0s' : '') : clock(v);
    if (T > 3 * 3600) return tidy(v / 3600) + (last || v === step ? '\u00a0h' : '');
    return v / MINUTE + (last || v === step ? '\u00a0min' : '');
  }
  function margins(el) { return el.clientWidth < 520 ? { left: 40, right: 12 } : { left: 50, right: 16 }; }
  function row(name, value) { return '<tr><th>' + name + '</th><td>' + value + '</td></tr>'; }

  /* ---- pieces of a chart */
  function polygon(color, points) {
    return {
      type: 'custom', silent: true, clip: true, z: 1, tooltip: { show: false }, encode: { x: -1, y: -1 },
      data: points.map(function (_, i) { return i; }),
      renderItem: function (p, api) {
        var shape = points[p.dataIndex].map(function (q) { return api.coord(q); });
        return { type: 'polygon', shape: { points: shape }, style: { fill: color } };
      }
    };
  }
  function labels(points, c, grid) {
    return {
      type: 'scatter', xAxisIndex: grid, yAxisIndex: grid, silent: true, symbolSize: .01, z: 6,
      itemStyle: { opacity: 1 }, tooltip: { show: false },
      data: points.map(function (p) {
        return {
          value: [p.x, p.y],
          label: {
            show: true, position: 'top', distance: 2, offset: [2, 0], align: 'left', formatter: p.text, fontSize: 12,
            fontWeight: 600, color: c('ink'), textBorderWidth: 3, textBorderColor: c('surface')
          }
        };
      })
    };
  }
  function mount(el, height, options) { // redraws itself on resize and on a change of theme
    var plot = el.querySelector('.plot'), chart = EC.init(plot, null, { renderer: 'svg' }), width = el.clientWidth;
    var self = {
      el: el, chart: chart,
      draw: function () {
        plot.style.height = height() + 'px';
        chart.resize();
        chart.setOption(options(tokens(el)), true);
        if (self.after) self.after(tokens(el));
      },
      destroy: function () {
        if (watch) watch.disconnect();
        chart.dispose();
        live = live.filter(function (x) { return x !== self; });
      }
    };
    var watch = g.ResizeObserver && new ResizeObserver(function () {
      if (Math.abs(el.clientWidth - width) > 1) { width = el.clientWidth; self.draw(); }
    });
    if (watch) watch.observe(el);
    live.push(self);
    return self;
  }

  /* ---- marks of events: told apart by shape, because colours can come close */
  var EVENT = {
    straggler: ['Straggler', 'M7 1.5 13 12.5H1Z', 'warn-mark'], hot_ps: ['Hot PS', 'M7 .8 13.2 7 7 13.2 .8 7Z', 'hot'],
    crash: ['Lost', 'M2.5 2.5l9 9m0-9l-9 9', 'bad'], recovery: ['Recovered', 'M7 .8a6.2 6.2 0 1 0 .01 0Z', 'good'],
    memory: ['Memory', 'M1.5 1.5h11v11h-11Z', 'mem'], note: ['Note', 'M7 3.5a3.5 3.5 0 1 0 .01 0Z', 'ink-3']
  };
  function glyph(kind, c) {
    var e = EVENT[kind] || EVENT.note, line = kind === 'crash';
    return '<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true"><path d="' + e[1] + '" ' +
      (line ? 'fill="none" stroke="' + c(e[2]) + '" stroke-width="2.8" stroke-linecap="round"' : 'fill="' + c(e[2]) + '"') +
      '/>' + (kind === 'recovery' ? '<path d="M4 7.2l2.2 2.2L10.2 5" fill="none" stroke-width="1.8" stroke="' + c('surface') + '"/>' : '') +
      '</svg>';
  }
  function crowd(items, at, rows, gap) { // greedy rows; what fits in none joins its neighbour
    var last = rows.map(function () { return -Infinity; }), groups = [];
    items.forEach(function (item) {
      var x = at(item), free = last.findIndex(function (seen) { return x - seen >= gap; });
      if (free < 0) { groups[groups.length - 1].items.push(item); return; }
      last[free] = x;
      groups.push({ x: x, row: free, items: [item] });
    });
    return groups;
  }

  /* ---- the timeline */
  function timeline(el, d) {
    var T = d.job.duration_s;
    d.throughput.t.concat(d.decisions.map(function (x) { return x.t; }), d.plans.map(function (x) { return x.t; }),
      d.events.map(function (x) { return x.t; })).forEach(function (t) { if (t > T) T = t; });
    T = T || 1;
    var lanes = d.plans.length ? [
      ['<b>Workers</b>', function (p) { return p.workers; }],
      ['<b>Parameter servers</b> (PS)', function (p) { return p.ps; }],
      ['<b>CPU cores</b>, workers and PSs', function (p) { return p.workers * p.worker_cores + p.ps * p.ps_cores; }]
    ] : [];
    var TALL = 190, LANE = 44, events = d.events.slice().sort(function (a, b) { return a.t - b.t; });
    var decisions = d.decisions.slice().sort(function (a, b) { return a.t - b.t; });
    function width() { var m = margins(el); return Math.max(1, el.clientWidth - m.left - m.right); }
    function px(x) { return x.t / T * width(); }
    function placed() {
      var marks = crowd(decisions, px, [0, 1], MARK), rows = marks.some(function (m) { return m.row; }) ? 2 : 1;
      var eventsTop = 2 + rows * ROW, top = eventsTop + (events.length ? ROW : 0) + 26, lanesTop = top + TALL + 28;
      return { marks: marks, eventsTop: eventsTop, top: top, lanes: lanes.map(function (_, i) { return lanesTop + i * (LANE + 22); }) };
    }
    function height() {
      var p = placed();
      return (p.lanes.length ? p.lanes[p.lanes.length - 1] + LANE : p.top + TALL) + 30;
    }
    var values = d.throughput.v.concat(d.predicted.map(function (p) { return p.hi == null ? p.p50 : p.hi; }));
    var most = values.reduce(function (a, b) { return b != null && b > a ? b : a; }, 0) || 1;
    var stepY = steps(most * 1.02, 5), maxY = Math.ceil(most * 1.02 / stepY) * stepY, thousand = maxY >= 5000;
    var names = [], self = mount(el, height, function (c) {
      var m = margins(el), p = placed(), stepX = tick(T, el.clientWidth);
      var grids = [{ left: m.left, right: m.right, top: p.top, height: TALL }].concat(p.lanes.map(function (t) {
        return { left: m.left, right: m.right, top: t, height: LANE };
      }));
      var quiet = { show: false }, low = grids.length - 1;
      var band = d.predicted.filter(function (q) { return q.lo != null && q.hi != null; }).map(function (q) {
        return [[q.t0, q.lo], [q.t1, q.lo], [q.t1, q.hi], [q.t0, q.hi]];
      });
      var series = [polygon(c('band'), band)].concat(d.predicted.map(function (q) {
        return {
          type: 'line', data: [[q.t0, q.p50], [q.t1, q.p50]], symbol: 'none', silent: true, z: 2, tooltip: quiet,
          lineStyle: { color: c('measured'), width: 1.2, type: [4, 3] }
        };
      }));
      series.push({
        type: 'line', name: 'measured', symbol: 'none', z: 4, connectNulls: false, itemStyle: { color: c('measured') },
        lineStyle: { color: c('measured'), width: 2 },
        data: d.throughput.t.map(function (t, i) { return [t, d.throughput.v[i]]; })
      });
      lanes.forEach(function (lane, i) {
        var points = d.plans.map(function (q) { return [q.t, lane[1](q)]; }), said = [], before = null;
        points.push([T, points[points.length - 1][1]]);
        d.plans.forEach(function (q) {
          var v = lane[1](q);
          if (v !== before) said.push({ x: q.t, y: v, text: tidy(v) });
          before = v;
        });
        series.push({
          type: 'line', step: 'end', xAxisIndex: i + 1, yAxisIndex: i + 1, data: points, symbol: 'none', z: 3,
          lineStyle: { color: c('plan'), width: 1.8 }, areaStyle: { color: c('plan-fill'), opacity: 1 }
        }, labels(said, c, i + 1));
      });
      return {
        animation: false, grid: grids, series: series, axisPointer: { link: [{ xAxisIndex: 'all' }] },
        textStyle: { fontFamily: getComputedStyle(root(el)).fontFamily, fontSize: 12, color: c('ink-2') },
        aria: { enabled: true, label: { enabled: false } },
        xAxis: grids.map(function (_, i) {
          var shown = i === low;
          return {
            type: 'value', gridIndex: i, min: 0, max: T, interval: stepX, splitLine: quiet,
            axisLine: { show: true, onZero: false, lineStyle: { color: c(shown ? 'line-2' : 'line') } },
            axisTick: { show: shown, length: 4, lineStyle: { color: c('line-2') } },
            axisLabel: {
              show: shown, color: c('ink-3'), fontSize: 12, margin: 8, showMaxLabel: T % stepX === 0,
              formatter: function (v) { return tickText(v, stepX, T); }
            }
          };
        }),
        yAxis: [{
          type: 'value', min: 0, max: maxY, interval: stepY, axisLine: quiet, axisTick: quiet,
          splitLine: { lineStyle: { color: c('line') } },
          axisLabel: { color: c('ink-3'), fontSize: 12, margin: 8, formatter: function (v) { return tidy(thousand ? v / 1e3 : v); } }
        }].concat(lanes.map(function (lane, i) {
          var top = Math.max.apply(0, d.plans.map(lane[1])) || 1;
          return { type: 'value', gridIndex: i + 1, min: 0, max: top * 1.62, show: false };
        })),
        tooltip: {
          trigger: 'axis', confine: true, className: 'tt-tip', transitionDuration: 0, padding: 0, borderWidth: 0,
          backgroundColor: 'transparent', axisPointer: { type: 'line', lineStyle: { width: 0 } },
          formatter: function (ps) { return tip(ps[0].axisValue); }
        }
      };
    });
    function tip(t) {
      var i = nearest(d.throughput.t, t), plan = d.plans.length ? inForce(d.plans, t) : null;
      var q = d.predicted.filter(function (s) { return s.t0 <= t && t < s.t1; })[0];
      var text = '<div class="h">' + clock(t) + '<span>' + utc(d.job.started_at, t) + '</span></div><table>' +
        row('Measured', (i < 0 ? '\u2013' : whole(d.throughput.v[i])) + ' samples/s') +
        (q && q.lo != null ? row('Predicted (80' + NB + '%)', samples(q.lo) + ' to ' + samples(q.hi)) :
          row('Predicted', q ? samples(q.p50) : '\u2013'));
      if (plan) text += row('Workers', plan.workers + ' × ' + tidy(plan.worker_cores) + ' cores') +
        row('PSs', plan.ps + ' × ' + tidy(plan.ps_cores) + ' cores');
      return text + '</table>';
    }

    /* what stands over the chart: names of the lanes, hairlines, the cursor, buttons, their pop-up */
    function layer(name) { var x = document.createElement('div'); x.className = name; el.appendChild(x); return x; }
    var hairs = layer('hairs under'), marks = layer('marks'), pop = layer('pop');
    pop.hidden = true;
    function name(i, html) {
      if (!names[i]) { names[i] = layer('lane'); names[i].innerHTML = html; }
      return names[i];
    }
    function show(button, html) {
      pop.innerHTML = html;
      pop.hidden = false;
      var a = el.getBoundingClientRect(), b = button.getBoundingClientRect();
      pop.style.left = Math.max(0, Math.min(b.left - a.left - 20, a.width - 272)) + 'px';
      pop.style.top = b.bottom - a.top + 4 + 'px';
    }
    function button(kind, label, html, press) {
      var b = document.createElement('button');
      b.type = 'button';
      b.className = kind;
      b.setAttribute('aria-label', label);
      ['mouseenter', 'focus'].forEach(function (e) { b.addEventListener(e, function () { show(b, html); }); });
      ['mouseleave', 'blur'].forEach(function (e) { b.addEventListener(e, function () { pop.hidden = true; }); });
      b.addEventListener('click', press || function () { show(b, html); });
      marks.appendChild(b);
      return b;
    }
    function decisionText(x) {
      return '<b>' + x.n + '. ' + esc(x.action) + '</b>' + clock(x.t) + ' · ' +
        (x.measured != null && x.predicted ? 'predicted ' + samples(x.predicted.p50) + ', measured ' + samples(x.measured) : esc(x.reason));
    }
    function quiet(x) { return x.kind === 'hold' || x.advised; }
    self.after = function (c) {
      var m = margins(el), p = placed();
      [hairs, marks].forEach(function (x) { x.style.left = m.left + 'px'; x.style.right = m.right + 'px'; x.textContent = ''; });
      name(0, '<b>Throughput</b>, ' + (thousand ? 'thousand ' : '') + 'samples/s').style.top = p.top - 22 + 'px';
      lanes.forEach(function (lane, i) { name(i + 1, lane[0]).style.top = p.lanes[i] - 15 + 'px'; });
      var cursor = document.createElement('div');
      cursor.className = 'cur';
      cursor.style.top = p.top + 'px';
      cursor.style.bottom = '30px';
      marks.appendChild(cursor);
      self.cursor = function (share) { cursor.style.left = share * 100 + '%'; cursor.style.opacity = share == null ? 0 : .9; };
      decisions.forEach(function (x) {
        var h = document.createElement('div');
        h.className = 'hair' + (quiet(x) || x.kind === 'start' ? ' quiet' : '');
        h.dataset.n = x.n;
        h.style.left = x.t / T * 100 + '%';
        h.style.top = 2 + ROW / 2 + 'px';
        h.style.bottom = '30px';
        hairs.appendChild(h);
      });
      p.marks.forEach(function (group) {
        var x = group.items[0], many = group.items.length > 1;
        var label = many ? group.items.length + ' decisions from ' + clock(x.t) : 'Decision ' + x.n + ' at ' + clock(x.t) + ': ' + x.action;
        var out = group.items.some(function (one) { return one.verdict === 'outside'; });
        var kind = 'mk ' + (group.items.every(quiet) ? 'hold' : group.items.some(function (one) { return one.kind === 'stop'; }) ? 'stop' : 'change');
        var b = button(kind + (many ? ' many' : '') + (out ? ' out' : ''), label, group.items.slice(0, 4).map(decisionText).join('<br>'), function () { pop.hidden = true; select(root(el), x.n); });
        b.dataset.n = group.items.map(function (one) { return one.n; }).join(' ');
        b.innerHTML = '<i>' + (many ? group.items.length + '\u00d7' : x.n) + '</i>';
        b.style.left = x.t / T * 100 + '%';
        b.style.top = 2 + ROW / 2 + group.row * ROW + 'px';
      });
      crowd(events, px, [0], 20).forEach(function (group) {
        var x = group.items[0], many = group.items.length > 1;
        var label = many ? group.items.length + ' events from ' + clock(x.t) : EVENT[x.kind][0] + ' at ' + clock(x.t) + ': ' + x.title;
        var html = group.items.slice(0, 5).map(function (one) { return '<b>' + esc(one.title) + '</b>' + clock(one.t) + ' · ' + esc(one.text); }).join('<br>');
        var b = button('ev', label, html);
        b.innerHTML = glyph(x.kind, c);
        b.style.left = 'calc(' + x.t / T * 100 + '% - 12px)';
        b.style.top = p.eventsTop + ROW / 2 + 'px';
      });
      mark(root(el), root(el).dataset.n);
    };
    self.chart.getZr().on('mousemove', function (e) {
      var share = (e.offsetX - margins(el).left) / width();
      self.cursor(share >= 0 && share <= 1 ? share : null);
    });
    self.chart.getZr().on('globalout', function () { self.cursor(null); });
    self.draw();
    return self;
  }

  /* ---- the decision that is shown: card, button and hairline go together */
  function mark(rt, n) {
    rt.querySelectorAll('.mk').forEach(function (x) { x.setAttribute('aria-pressed', String(x.dataset.n.split(' ').indexOf(String(n)) >= 0)); });
    rt.querySelectorAll('.hair').forEach(function (x) { x.classList.toggle('sel', x.dataset.n === String(n)); });
  }
  function select(rt, n) {
    var cards = [].slice.call(rt.querySelectorAll('.card')), numbers = cards.map(function (x) { return +x.dataset.n; });
    var place = numbers.indexOf(+n), nav = rt.querySelector('.dnav');
    if (place < 0) return;
    rt.dataset.n = n;
    cards.forEach(function (x, i) { x.hidden = i !== place; });
    mark(rt, n);
    [['prev', -1], ['next', 1]].forEach(function (pair) {
      var b = nav.querySelector('[data-go=' + pair[0] + ']'), to = numbers[place + pair[1]];
      b.disabled = to == null;
      b.onclick = function () { select(rt, to); };
    });
    nav.querySelector('[data-pos]').textContent = 'Decision ' + (place + 1) + ' of ' + cards.length;
  }

  /* ---- theme, copy, start */
  function setTheme(rt, mode) {
    var dark = mode === 'dark' || (mode !== 'light' && g.matchMedia && g.matchMedia('(prefers-color-scheme: dark)').matches);
    rt.classList.toggle('dark', !!dark);
    rt.dataset.mode = mode;
    rt.querySelectorAll('[data-theme-set]').forEach(function (b) { b.setAttribute('aria-pressed', String(b.dataset.themeSet === mode)); });
    live.forEach(function (x) { if (root(x.el) === rt) x.draw(); });
  }
  function copy(button) {
    var code = button.parentNode.querySelector('code');
    function done() { button.textContent = 'Copied'; setTimeout(function () { button.textContent = 'Copy'; }, 1500); }
    function byHand() { // a sandboxed frame refuses the clipboard
      var range = document.createRange(), selection = getSelection();
      range.selectNodeContents(code);
      selection.removeAllRanges();
      selection.addRange(range);
      try { if (document.execCommand('copy')) done(); } catch (e) { /* it stays selected */ }
    }
    if (navigator.clipboard && g.isSecureContext) navigator.clipboard.writeText(code.textContent).then(done, byHand); else byHand();
  }
  function chrome(rt) {
    var mode = 'auto';
    try { mode = localStorage.getItem('tt-theme') || 'auto'; } catch (e) { /* a sandboxed frame has no storage */ }
    setTheme(rt, mode);
    rt.querySelectorAll('[data-theme-set]').forEach(function (b) {
      b.addEventListener('click', function () {
        setTheme(rt, b.dataset.themeSet);
        try { localStorage.setItem('tt-theme', b.dataset.themeSet); } catch (e) { /* as above */ }
      });
    });
    if (g.matchMedia) g.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', function () { if (rt.dataset.mode === 'auto') setTheme(rt, 'auto'); });
    rt.querySelectorAll('[data-copy]').forEach(function (b) { b.addEventListener('click', function () { copy(b); }); });
    rt.querySelectorAll('time[data-rel]').forEach(function (t) {
      var s = (Date.now() - new Date(t.dateTime)) / 1e3;
      if (s < 0) return;
      t.textContent = s < 90 ? 'just now' : s < 5400 ? Math.round(s / 60) + ' min ago' : s < 129600 ? Math.round(s / 3600) + ' h ago' : Math.round(s / 86400) + ' days ago';
    });
  }
  function report(rt, d) {
    var chart = rt.querySelector('[data-chart=timeline]');
    if (chart) timeline(chart, d);
    if (rt.querySelector('.card')) {
      var first = d.decisions.filter(function (x) { return x.kind === 'stop' || x.verdict === 'outside'; })[0] ||
        d.decisions.filter(function (x) { return x.kind !== 'start' && x.kind !== 'hold'; })[0] || d.decisions[0];
      select(rt, first.n);
    }
  }
  g.TT = { timeline: timeline, select: select, setTheme: setTheme, chrome: chrome, report: report };
})(globalThis);
