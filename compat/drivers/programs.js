// Runs programs from npm, one command line each, and writes down a digest of what each printed.
const { spawnSync } = require('node:child_process');
const { createHash } = require('node:crypto');
const fs = require('node:fs');

const record = fs.openSync(process.env.COMPAT_OUTCOMES, 'w');
const note = (name, outcome, detail = '') =>
  fs.writeSync(record, JSON.stringify({ name, outcome, detail: detail.slice(-4000) }) + '\n');

const home = `${process.cwd()}/node_modules`;
for (const line of process.env.COMPAT_LINES.split('\n')) {
  const ended = spawnSync(process.execPath, line.split(' '), {
    cwd: home,
    encoding: 'utf8',
    timeout: 120_000,
    killSignal: 'SIGKILL',
    maxBuffer: 1 << 28,
  });
  const printed = (ended.stdout + ended.stderr).replaceAll(home, '');
  const digest = createHash('sha256').update(printed).digest('hex').slice(0, 16);
  const name = `${line} → ${printed.length} characters, ${digest}`;
  note(name, ended.status === 0 ? 'passed' : 'failed', printed);
}
note('', 'complete');
