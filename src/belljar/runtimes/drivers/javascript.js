// Runs one cell after the other in the global scope of this Node process, as a REPL does:
// V8's own REPL mode lets top-level declarations be made again and knows top-level await.
// Cells come as JSON lines on descriptor 3, {"cell": {code, name, number}}, and end with
// {"done": {number, status, exit_code, error, value}} (guest/translator.py).
'use strict';
{
  const fs = require('node:fs');
  const inspector = require('node:inspector');
  const net = require('node:net');
  const nodeModule = require('node:module');
  const stream = require('node:stream');
  const util = require('node:util');
  const vm = require('node:vm');
  const { promiseHooks } = require('node:v8');

  const typescript = process.argv.pop() === 'typescript';
  const TEXT_CHARS = 32 * 1024;
  const INTERRUPTED = 130;
  const EXIT = new Error('process.exit() was called');
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const { parse, stringify } = JSON;
  const write = fs.writeSync;
  const inspect = util.inspect;
  const exitReally = process.reallyExit;

  // -- standard streams: written at once, so that all is in the pipe when a cell ends ------------

  function writeAll(descriptor, chunk) {
    for (let rest = chunk; rest.length; ) {
      try {
        rest = rest.subarray(write(descriptor, rest));
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        Atomics.wait(pause, 0, 0, 1); // another program has left the pipe non-blocking
      }
    }
  }

  function output(descriptor) {
    const made = new stream.Writable({
      decodeStrings: true,
      write(chunk, _, done) {
        try {
          writeAll(descriptor, chunk);
          done();
        } catch (error) {
          done(error);
        }
      },
    });
    made.fd = descriptor;
    made.on('error', () => {});
    made.destroy = () => made; // the next cell writes, too
    made.end = (chunk, ...more) => {
      if (chunk?.length) made.write(chunk);
      more.concat(chunk).find((one) => typeof one === 'function')?.();
      return made;
    };
    return made;
  }

  for (const [name, descriptor] of [['stdout', 1], ['stderr', 2]]) {
    const made = output(descriptor);
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => made });
  }
  let stdin;
  Object.defineProperty(process, 'stdin', {
    configurable: true,
    enumerable: true,
    get: () => (stdin ??= fs.createReadStream(null, { fd: 0, autoClose: false })),
  });
  const complain = (text) => writeAll(2, Buffer.from(text.endsWith('\n') ? text : text + '\n'));

  // -- evaluation --------------------------------------------------------------------------------

  const session = new inspector.Session();

  function giveUp(error) {
    complain(`belljar: V8 cannot go on: ${error?.message}`);
    exitReally.call(process, 70);
  }

  function ask(method, parameters) {
    let answer;
    session.post(method, parameters, (error, result) => (answer = error ? { error } : result));
    return answer;
  }

  // Objects come out of V8's hands by being given to a function of ours.
  let taken;
  let taker;

  function connect() {
    session.connect();
    globalThis.belljarTake = (value) => (taken = value);
    const found = ask('Runtime.evaluate', { expression: 'globalThis.belljarTake' });
    delete globalThis.belljarTake;
    if (!found.result) giveUp(found.error);
    taker = found.result.objectId;
  }
  connect();

  function take({ objectId, unserializableValue, value }) {
    if (!objectId && !unserializableValue) return value;
    const found = objectId ? { objectId } : { unserializableValue };
    taken = undefined;
    ask('Runtime.callFunctionOn', {
      objectId: taker,
      functionDeclaration: 'function (value) { this(value); }',
      arguments: [found],
    });
    const result = taken;
    taken = undefined;
    return result;
  }

  // import() of code that V8 compiles for us: by Node's own loader.
  try {
    const { internalBinding } = require('internal/test/binding');
    const { privateSymbols } = internalBinding('util');
    const { vm_dynamic_import_default_internal: byDefault } = internalBinding('symbols');
    globalThis[privateSymbols.host_defined_option_symbol] = byDefault;
  } catch {} // another Node than ours: import() is then refused, all else works

  let synchronous = false;
  const interruptible = new vm.Script('belljarStart()');

  function evaluate(source, told) {
    const expression = { expression: source, replMode: true, awaitPromise: true, silent: true };
    globalThis.belljarStart = () => {
      delete globalThis.belljarStart;
      // The first is the cell's own. Were it collected, V8 would tell us in the midst of that, and
      // Node would not survive it: somebody has to hold what the code waits for.
      const stop = promiseHooks.onInit((promise) => {
        stop();
        cell.promise = promise;
      });
      session.post('Runtime.evaluate', { ...expression, objectGroup: 'cell' }, told);
    };
    synchronous = true;
    try {
      interruptible.runInThisContext({ breakOnSigint: true, displayErrors: false });
    } finally {
      synchronous = false;
    }
  }

  function compiles(source) {
    try {
      new vm.Script(source);
      return true;
    } catch {
      return false;
    }
  }

  function javascript(code) {
    if (!typescript) return code;
    try {
      return nodeModule.stripTypeScriptTypes(code, { mode: 'strip' });
    } catch (error) {
      if (error.code !== 'ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX') throw error;
      return nodeModule.stripTypeScriptTypes(code, { mode: 'transform' }); // enums and the like
    }
  }

  // Static imports are for modules; what they mean can be had here as well.
  const IMPORT =
    /^[ \t]*import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|(\{[^}]*\})\s*)?(?:from\s*)?(["'])([^"'\n]+)\4[^\S\n]*;?/gm;

  function withoutImports(code) {
    return code.replace(IMPORT, (_, one, all, names, _quote, from) => {
      const parts = [];
      if (one) parts.push(`default: ${one}`);
      if (names) parts.push(names.slice(1, -1).replace(/\s+as\s+/g, ': '));
      const imported = `await import(${stringify(from)})`;
      if (all) return `const ${all} = ${imported};` + (one ? ` const ${one} = ${all}.default;` : '');
      return parts.length ? `const { ${parts.join(', ')} } = ${imported};` : `${imported};`;
    });
  }

  // -- a cell ------------------------------------------------------------------------------------

  let cell;
  let source = '';

  function begin(order) {
    if (cell?.abandoned) {
      // It may still wait, and V8 may have been stopped while it made something that it needs.
      session.disconnect();
      connect();
    }
    cell = { ...order, ended: false, abandoned: false, promise: null };
    stdin = undefined;
    process.exitCode = undefined;
    process.removeListener('SIGINT', interrupted);
    process.on('SIGINT', interrupted);
    try {
      source = javascript(order.code);
    } catch (error) {
      fail(error);
      return;
    }
    if (/^\s*\{/.test(source) && !/;\s*$/.test(source) && compiles(`(${source}\n)`)) {
      source = `(${source}\n)`; // an object, not a block
    }
    attempt(cell, withoutImports);
  }

  function attempt(current, mend) {
    const named = `${source}\n//# sourceURL=${current.name.replace(/\s/g, '-')}`;
    try {
      evaluate(named, (error, answer) => {
        if (current.ended) return;
        if (error) return /terminated/.test(error.message) ? interrupted() : giveUp(error);
        const details = answer.exceptionDetails;
        if (!details) return settle(current, take(answer.result));
        const thrown = details.exception ? take(details.exception) : undefined;
        const module = /import statement outside a module/.test(thrown?.message);
        const mended = mend && module ? mend(source) : source;
        if (mended === source) return fail(thrown, details);
        source = mended;
        attempt(current, null);
      });
    } catch (error) {
      if (current.ended) return;
      if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') interrupted();
      else giveUp(error);
    }
  }

  function settle(current, value) {
    if (!util.types.isPromise(value)) return finish(current, value);
    // `main()` as the last line: what it does is the cell's work.
    Promise.prototype.then.call(
      value,
      (result) => current.ended || finish(current, result),
      (error) => current.ended || fail(error),
    );
  }

  function finish(current, value) {
    let text = null;
    try {
      text = value === undefined ? null : inspect(value);
    } catch (error) {
      return fail(error);
    }
    const code = Number(process.exitCode ?? 0) & 255;
    end({ status: code ? 'error' : 'ok', exit_code: code, value: text && cut(text) });
  }

  function fail(thrown, details) {
    const error = describe(thrown, details);
    complain(`Uncaught ${error.traceback}`);
    end({ status: 'error', exit_code: 1, error });
  }

  function interrupted() {
    if (!cell || cell.ended) return;
    cell.abandoned = true;
    const message = 'Script execution was interrupted by SIGINT';
    complain(message);
    const error = { name: 'Interrupted', message, traceback: message + '\n' };
    end({ status: 'error', exit_code: INTERRUPTED, error });
  }

  function end(told) {
    if (!cell || cell.ended) return;
    cell.ended = true;
    session.post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
    session.post('Runtime.discardConsoleEntries');
    talk.write(stringify({ done: { number: cell.number, ...told } }) + '\n');
  }

  function describe(thrown, details) {
    let name = typeof thrown;
    let message;
    let trace;
    try {
      if (util.types.isNativeError(thrown) || thrown instanceof Error) {
        name = String(thrown.name);
        message = String(thrown.message);
        trace = withoutOurs(inspect(thrown));
      } else {
        message = trace = inspect(thrown);
      }
    } catch {
      message = trace = 'an error that cannot be shown';
    }
    if (name === 'SyntaxError' && details && !details.stackTrace) {
      const lines = source.split('\n');
      const at = Math.min(details.lineNumber, lines.length - 1); // the end is one line below
      const mark = ' '.repeat(Math.min(details.columnNumber, lines[at].length)) + '^';
      trace = `${cell.name}:${at + 1}\n${lines[at]}\n${mark}\n\n${trace}`;
    }
    return { name: cut(name), message: cut(message), traceback: cut(trace) + '\n' };
  }

  // Frames below the code's: of this file, and of what it calls to run the code.
  const OURS =
    /\n +at [^\n]*(?:node:inspector:|node:internal\/modules\/typescript:|\[eval\]:)[^]*?(?=\n(?! +at )|$)/g;

  function withoutOurs(trace) {
    return trace.replace(OURS, '');
  }

  function cut(text) {
    return text.length > TEXT_CHARS ? text.slice(0, TEXT_CHARS) + '…' : text;
  }

  // -- what would end the process ----------------------------------------------------------------

  process.exit = (code) => {
    const status = Number(code ?? process.exitCode ?? 0) & 255;
    if (!cell || cell.ended) return undefined; // a timer that an earlier cell left behind
    process.exitCode = undefined;
    cell.abandoned = true;
    end({ status: 'exit', exit_code: status });
    // Nothing can catch the first; it is not for callbacks, whose bookkeeping Node would miss.
    if (synchronous) session.post('Runtime.terminateExecution');
    throw EXIT;
  };
  process.on('unhandledRejection', (reason) => {
    if (reason !== EXIT) complain(`Uncaught (in promise) ${shown(reason)}`);
  });
  process.on('uncaughtException', (error) => {
    if (error === EXIT) return;
    if (cell && !cell.ended) fail(error);
    else complain(`Uncaught ${shown(error)}`);
  });

  function shown(value) {
    try {
      return withoutOurs(inspect(value));
    } catch {
      return 'an error that cannot be shown';
    }
  }

  // -- cells -------------------------------------------------------------------------------------

  if (typescript) javascript(''); // loads the compiler, while nobody waits

  const talk = new net.Socket({ fd: 3, readable: true, writable: true });
  let received = '';
  talk.setEncoding('utf8');
  talk.on('data', (text) => {
    received += text;
    for (let at; (at = received.indexOf('\n')) >= 0; ) {
      const line = received.slice(0, at);
      received = received.slice(at + 1);
      begin(parse(line).cell);
    }
  });
  talk.on('close', () => exitReally.call(process, 0));
  talk.on('error', () => exitReally.call(process, 0));
}
