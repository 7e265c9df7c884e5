// Runs the test files that an npm package ships, one process each, and writes down how each
// assertion (TAP) or, where a file does not speak TAP, each file ended.
const { spawnSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const record = fs.openSync(process.env.COMPAT_OUTCOMES, 'w');
const note = (name, outcome, detail = '') =>
  fs.writeSync(record, JSON.stringify({ name, outcome, detail: detail.slice(-4000) }) + '\n');

const home = path.join(process.cwd(), 'node_modules', process.env.COMPAT_TARGET);
const folder = path.join(home, 'test');
const files = fs.readdirSync(folder).filter((name) => /\.[cm]?js$/.test(name)).sort();

for (const file of files) {
  note(file, 'started');
  const ended = spawnSync(process.execPath, [path.join(folder, file)], {
    cwd: home,
    encoding: 'utf8',
    timeout: 60_000,
    killSignal: 'SIGKILL',
    maxBuffer: 1 << 26,
  });
  note(file, ended.status === 0 ? 'passed' : 'failed', ended.stderr || String(ended.error ?? ''));
  const seen = new Map();
  for (const line of ended.stdout.split('\n')) {
    const found = /^(not )?ok \d+ ?(.*)$/.exec(line);
    if (!found) continue;
    const title = `${file}: ${found[2].replaceAll(process.cwd(), '')}`;
    const times = (seen.get(title) ?? 0) + 1;
    seen.set(title, times);
    const skipped = /# (skip|todo)/i.test(found[2]);
    note(`${title} #${times}`, skipped ? 'skipped' : found[1] ? 'failed' : 'passed', line);
  }
}
note('', 'complete');
