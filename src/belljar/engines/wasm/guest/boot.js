// What programs expect of a JavaScript host, as far as there is one here. Evaluated once per zygote;
// answers with the names of its modules, for `import`.
(() => {
  "use strict";
  const host = globalThis.host;
  delete globalThis.host;

  // -- values as text -----------------------------------------------------------------------------

  const quote = (text) =>
    text.includes("'") && !text.includes('"')
      ? JSON.stringify(text)
      : "'" + JSON.stringify(text).slice(1, -1).replace(/\\"/g, '"').replace(/'/g, "\\'") + "'";

  const key = (name) =>
    typeof name === "symbol" ? `[${String(name)}]` : /^[A-Za-z_$][\w$]*$/.test(name) ? name : quote(name);

  function inspect(value, depth = 2, seen = []) {
    switch (typeof value) {
      case "string":
        return quote(value);
      case "bigint":
        return `${value}n`;
      case "symbol":
        return String(value);
      case "number":
        return Object.is(value, -0) ? "-0" : String(value);
      case "function": {
        const kind = /^class\b/.test(Function.prototype.toString.call(value)) ? "class" : "Function";
        if (kind === "class") return `[class ${value.name || "(anonymous)"}]`;
        return value.name ? `[Function: ${value.name}]` : "[Function (anonymous)]";
      }
      case "object":
        break;
      default:
        return String(value);
    }
    if (value === null) return "null";
    if (seen.includes(value)) return "[Circular *1]";
    if (value instanceof Error) return describe(value);
    if (value instanceof Date) return isNaN(value) ? "Invalid Date" : value.toISOString();
    if (value instanceof RegExp) return String(value);
    if (value instanceof Promise) return "Promise {}";
    const name = value.constructor ? value.constructor.name : "[Object: null prototype]";
    const list = Array.isArray(value);
    if (depth < 0) return list ? "[Array]" : `[${name || "Object"}]`;
    const inner = [...seen, value];
    const below = (item) => inspect(item, depth - 1, inner);
    const most = 100;
    let parts = [];
    let prefix = "";
    let [open, close] = ["{", "}"];
    if (list || ArrayBuffer.isView(value)) {
      [open, close] = ["[", "]"];
      const items = Array.from(list ? value : value.length === undefined ? [] : value);
      parts = items.slice(0, most).map(below);
      if (items.length > most) parts.push(`... ${items.length - most} more items`);
      if (!list) prefix = `${name}(${items.length}) `;
      else if (name !== "Array") prefix = `${name}(${items.length}) `;
    } else if (value instanceof Map) {
      prefix = `Map(${value.size}) `;
      parts = [...value].slice(0, most).map(([k, v]) => `${below(k)} => ${below(v)}`);
    } else if (value instanceof Set) {
      prefix = `Set(${value.size}) `;
      parts = [...value].slice(0, most).map(below);
    } else if (value instanceof String || value instanceof Number || value instanceof Boolean) {
      return `[${name}: ${inspect(value.valueOf())}]`;
    } else if (name !== "Object") {
      prefix = `${name} `;
    }
    if (!ArrayBuffer.isView(value)) {
      for (const own of Reflect.ownKeys(value)) {
        const property = Object.getOwnPropertyDescriptor(value, own);
        if (!property.enumerable || (list && typeof own === "string" && /^\d+$/.test(own))) continue;
        const shown = property.get ? (property.set ? "[Getter/Setter]" : "[Getter]") : below(property.value);
        parts.push(`${key(own)}: ${shown}`);
        if (parts.length > most) break;
      }
    }
    if (!parts.length) return `${prefix}${open}${close}`;
    const short = parts.reduce((length, part) => length + part.length + 2, prefix.length);
    if (short <= 72 && !parts.some((part) => part.includes("\n")))
      return `${prefix}${open} ${parts.join(", ")} ${close}`;
    if (list && parts.every((part) => part.length <= 6)) return `${prefix}${open}\n${rows(parts)}\n${close}`;
    return `${prefix}${open}\n${parts.map((part) => "  " + part.replace(/\n/g, "\n  ")).join(",\n")}\n${close}`;
  }

  function rows(parts) {
    const width = Math.max(...parts.map((part) => part.length));
    const columns = Math.min(16, Math.max(1, Math.floor(76 / (width + 2))));
    const lines = [];
    for (let i = 0; i < parts.length; i += columns)
      lines.push("  " + parts.slice(i, i + columns).map((part) => part.padStart(width)).join(", "));
    return lines.join(",\n");
  }

  const describe = (error) => {
    const stack = String(error.stack || "").trimEnd();
    return stack ? `${error.name}: ${error.message}\n${stack}` : `${error.name}: ${error.message}`;
  };

  function format(...values) {
    let text = "";
    if (typeof values[0] === "string" && values.length > 1) {
      const pattern = values.shift();
      text = pattern.replace(/%[sdifjoOc%]/g, (mark) => {
        if (mark === "%%") return "%";
        if (!values.length) return mark;
        const value = values.shift();
        if (mark === "%s") return typeof value === "object" ? inspect(value, 0) : String(value);
        if (mark === "%d") return String(Number(value));
        if (mark === "%i") return String(parseInt(value));
        if (mark === "%f") return String(parseFloat(value));
        if (mark === "%j") return JSON.stringify(value);
        return mark === "%c" ? "" : inspect(value, 4);
      });
      if (values.length) text += " ";
    }
    return text + values.map((value) => (typeof value === "string" ? value : inspect(value))).join(" ");
  }

  // -- console, process, timers -------------------------------------------------------------------

  let indent = "";
  const say = (operation) => (...values) => {
    host[operation]((indent + format(...values)).replace(/\n/g, "\n" + indent) + "\n");
  };
  const counts = new Map();
  const clocks = new Map();
  const now = () => Number(host.now());
  const console = {
    log: say("print"),
    info: say("print"),
    debug: say("print"),
    dir: (value) => console.log(inspect(value)),
    table: (value) => console.log(value),
    warn: say("complain"),
    error: say("complain"),
    trace: (...values) => console.error("Trace:", ...values),
    assert: (condition, ...values) => {
      if (!condition) console.error("Assertion failed" + (values.length ? ":" : ""), ...values);
    },
    count: (label = "default") => {
      counts.set(label, (counts.get(label) || 0) + 1);
      console.log(`${label}: ${counts.get(label)}`);
    },
    group: (...values) => {
      if (values.length) console.log(...values);
      indent += "  ";
    },
    groupEnd: () => {
      indent = indent.slice(2);
    },
    time: (label = "default") => clocks.set(label, now()),
    timeEnd: (label = "default") => console.log(`${label}: ${(now() - clocks.get(label)).toFixed(3)}ms`),
  };

  const binary = (data) => {
    let text = "";
    for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
    return text;
  };
  const bytes = (text) => Uint8Array.from(text, (c) => c.charCodeAt(0));
  // Strings travel as UTF-8, bytes as one character each.
  const utf8 = (text) => unescape(encodeURIComponent(String(text).toWellFormed()));
  const content = (data) =>
    ArrayBuffer.isView(data)
      ? binary(new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
      : utf8(data);
  const decode = (text) => {
    try {
      return decodeURIComponent(escape(text));
    } catch {
      return text;
    }
  };

  class Buffer extends Uint8Array {
    static from(data, encoding = "utf8") {
      if (typeof data !== "string") return new Buffer(data instanceof ArrayBuffer ? data : [...data]);
      if (encoding === "hex") return new Buffer((data.match(/../g) || []).map((pair) => parseInt(pair, 16)));
      if (encoding === "base64") return Buffer.from(atob(data), "latin1");
      return new Buffer(bytes(encoding === "latin1" || encoding === "binary" ? data : utf8(data)));
    }
    static alloc(size, fill = 0) {
      return new Buffer(size).fill(fill);
    }
    static concat(list) {
      return Buffer.from(list.flatMap((item) => [...item]));
    }
    static isBuffer(value) {
      return value instanceof Buffer;
    }
    static byteLength(text) {
      return utf8(text).length;
    }
    toString(encoding = "utf8") {
      if (encoding === "hex") return Array.from(this, (byte) => byte.toString(16).padStart(2, "0")).join("");
      if (encoding === "base64") return btoa(binary(this));
      return encoding === "latin1" || encoding === "binary" ? binary(this) : decode(binary(this));
    }
  }

  // The engine was seeded before it was forked; every sandbox needs numbers of its own (sfc32).
  function seeded() {
    let [a, b, c, d] = new Uint32Array(bytes(host.random("16")).buffer);
    const next = () => {
      const t = (((a + b) | 0) + d) | 0;
      d = (d + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = ((c << 21) | (c >>> 11)) + t | 0;
      return t >>> 0;
    };
    for (let i = 0; i < 16; i++) next();
    return function random() {
      return (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000;
    };
  }

  class Exit {}
  let order = { path: "/workspace/main.js", env: {} };
  const process = {
    argv: ["node", ""],
    env: {},
    exitCode: undefined,
    platform: "wasi",
    arch: "wasm32",
    version: "v0.0.0-quickjs",
    versions: { quickjs: "ng" },
    pid: 1,
    cwd: () => "/workspace",
    exit: (code) => {
      host.exit(String(Number(code ?? process.exitCode ?? 0) & 255));
      throw new Exit();
    },
    hrtime: Object.assign(
      (since) => {
        const ms = now();
        const [s, ns] = [Math.floor(ms / 1000), Math.floor((ms % 1000) * 1e6)];
        if (!since) return [s, ns];
        const difference = (s - since[0]) * 1e9 + ns - since[1];
        return [Math.floor(difference / 1e9), difference % 1e9];
      },
      { bigint: () => BigInt(Math.round(now() * 1e6)) },
    ),
    uptime: () => now() / 1000,
    memoryUsage: () => ({ heapUsed: 0, heapTotal: 0, rss: 0 }),
    nextTick: (callback, ...values) => queueMicrotask(() => callback(...values)),
    on: () => process,
    once: () => process,
    stdout: { write: (text) => (host.print(String(text)), true), isTTY: false },
    stderr: { write: (text) => (host.complain(String(text)), true), isTTY: false },
  };

  const timers = new Map();
  let lastTimer = 0;
  const later = (callback, ms, values, every) => {
    if (typeof callback !== "function") throw new TypeError("The callback must be a function");
    const wait = Math.max(1, Number(ms) || 0);
    timers.set(++lastTimer, { due: now() + wait, wait, every, run: () => callback(...values) });
    return lastTimer;
  };
  function tick() {
    const due = [...timers].filter(([, timer]) => timer.due <= now()).sort((a, b) => a[1].due - b[1].due);
    for (const [id, timer] of due.slice(0, 1)) {
      if (timer.every) timer.due = now() + timer.wait;
      else timers.delete(id);
      timer.run();
      return 0;
    }
    if (!timers.size) return -1;
    return Math.max(0, Math.min(...[...timers.values()].map((timer) => timer.due)) - now());
  }
  const clear = (id) => void timers.delete(id);

  // -- modules ------------------------------------------------------------------------------------

  const parts = (path) => String(path).split("/").filter((part) => part && part !== ".");
  const path = {
    sep: "/",
    normalize: (p) => path.join(p),
    join: (...all) => {
      const text = all.join("/");
      const out = [];
      for (const part of parts(text)) part === ".." ? out.pop() : out.push(part);
      return (text.startsWith("/") ? "/" : "") + out.join("/") || ".";
    },
    resolve: (...all) => all.reduce((base, p) => (p.startsWith("/") ? path.join(p) : path.join(base, p)), "/workspace"),
    dirname: (p) => p.replace(/\/?[^/]*\/*$/, "") || (p.startsWith("/") ? "/" : "."),
    basename: (p, end = "") => {
      const last = parts(p).pop() || "";
      return end && last.endsWith(end) ? last.slice(0, -end.length) : last;
    },
    extname: (p) => (/.(\.[^./]*)$/.exec(path.basename(p)) || ["", ""])[1],
    isAbsolute: (p) => p.startsWith("/"),
  };

  const failing = (call, file) => {
    try {
      return call();
    } catch (error) {
      const [, code] = /^([A-Z]+):/.exec(error.message) || [];
      if (code) Object.assign(error, { code, path: file, message: `${error.message}, '${file}'` });
      throw error;
    }
  };
  const encoding = (options) => (typeof options === "string" ? options : options && options.encoding);
  const isInput = (file) => file === 0 || file === "/dev/stdin";
  const fs = {
    readFileSync: (file, options) => {
      if (isInput(file)) {
        const text = host.input();
        return encoding(options) ? decode(text) : Buffer.from(text, "latin1");
      }
      return failing(
        () => (encoding(options) ? host.readText(String(file)) : Buffer.from(host.read(String(file)), "latin1")),
        file,
      );
    },
    writeFileSync: (file, data) => void failing(() => host.write(String(file), content(data)), file),
    appendFileSync: (file, data) => void failing(() => host.append(String(file), content(data)), file),
    existsSync: (file) => {
      try {
        host.status(String(file));
        return true;
      } catch {
        return false;
      }
    },
    readdirSync: (file) => failing(() => JSON.parse(host.list(String(file))), file),
    statSync: (file) => {
      const { size, folder, ms } = failing(() => JSON.parse(host.status(String(file))), file);
      return { size, mtimeMs: ms, mtime: new Date(ms), isDirectory: () => folder, isFile: () => !folder };
    },
    mkdirSync: (file, options) => {
      if (!options || !options.recursive) return void failing(() => host.makeFolder(String(file)), file);
      let here = String(file).startsWith("/") ? "" : ".";
      for (const part of parts(file)) {
        here += "/" + part;
        if (!fs.existsSync(here)) failing(() => host.makeFolder(here), here);
      }
    },
    unlinkSync: (file) => void failing(() => host.remove(String(file)), file),
    rmdirSync: (file) => void failing(() => host.removeFolder(String(file)), file),
    renameSync: (file, to) => void failing(() => host.rename(String(file), String(to)), file),
  };
  fs.promises = Object.fromEntries(
    ["readFile", "writeFile", "appendFile", "readdir", "stat", "mkdir", "unlink", "rmdir", "rename"].map((name) => [
      name,
      async (...values) => fs[name + "Sync"](...values),
    ]),
  );

  function assert(condition, message) {
    if (!condition) throw message instanceof Error ? message : new AssertionError(message || "The expression evaluated to a falsy value");
  }
  class AssertionError extends Error {
    name = "AssertionError";
  }
  const same = (a, b) => Object.is(a, b) || inspect(a, 20) === inspect(b, 20);
  Object.assign(assert, {
    ok: assert,
    AssertionError,
    equal: (a, b, m) => assert(a == b, m || `${inspect(a)} == ${inspect(b)}`),
    strictEqual: (a, b, m) => assert(Object.is(a, b), m || `${inspect(a)} !== ${inspect(b)}`),
    notStrictEqual: (a, b, m) => assert(!Object.is(a, b), m || `${inspect(a)} === ${inspect(b)}`),
    deepEqual: (a, b, m) => assert(same(a, b), m || `${inspect(a)} deepEqual ${inspect(b)}`),
    deepStrictEqual: (a, b, m) => assert(same(a, b), m || `${inspect(a)} deepEqual ${inspect(b)}`),
    throws: (call, m) => {
      try {
        call();
      } catch {
        return;
      }
      assert(false, typeof m === "string" ? m : "Missing expected exception");
    },
  });

  const webcrypto = {
    getRandomValues: (array) => {
      const random = bytes(host.random(String(array.byteLength)));
      new Uint8Array(array.buffer, array.byteOffset, array.byteLength).set(random);
      return array;
    },
    randomUUID: () => {
      const b = Buffer.from(host.random("16"), "latin1");
      b[6] = (b[6] & 15) | 64;
      b[8] = (b[8] & 63) | 128;
      const hex = b.toString("hex");
      return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
    },
  };
  const crypto = {
    ...webcrypto,
    webcrypto,
    randomBytes: (count) => webcrypto.getRandomValues(new Buffer(count)),
    randomInt: (low, high) => (high === undefined ? Math.floor(Math.random() * low) : low + Math.floor(Math.random() * (high - low))),
  };

  const builtIn = { crypto, buffer: { Buffer }, fs, "fs/promises": fs.promises, path, process, assert, util: { inspect, format } };
  const loaded = new Map();

  function requireFrom(folder) {
    return function require(name) {
      const bare = String(name).replace(/^node:/, "");
      if (Object.hasOwn(builtIn, bare)) return builtIn[bare];
      const at = path.isAbsolute(bare) ? bare : path.join(folder, bare);
      const found = /^[./]/.test(bare) && [at, at + ".js", at + ".json", at + "/index.js"].find(isFile);
      if (!found) throw Object.assign(new Error(`Cannot find module '${name}'`), { code: "MODULE_NOT_FOUND" });
      if (!loaded.has(found)) {
        const module = { exports: {}, id: found, filename: found };
        loaded.set(found, module);
        if (found.endsWith(".json")) module.exports = JSON.parse(fs.readFileSync(found, "utf8"));
        else execute(found, module);
      }
      return loaded.get(found).exports;
    };
  }
  const isFile = (file) => fs.existsSync(file) && fs.statSync(file).isFile();

  function execute(file, module) {
    const source = fs.readFileSync(file, "utf8").replace(/^#!.*/, "");
    const folder = path.dirname(file);
    const code = host.compile(source, file);
    const require = requireFrom(folder);
    code.call(module.exports, module.exports, require, module, file, folder);
  }
  const inside = {
    begin: () => {
      order = JSON.parse(host.start());
      process.env = order.env;
      process.argv[1] = order.path;
      Math.random = seeded();
    },
    // What a script finds around it; a module does without.
    main: () => {
      const module = { exports: {}, id: ".", filename: order.path };
      const folder = path.dirname(order.path);
      const around = { module, exports: module.exports, require: requireFrom(folder) };
      for (const [name, value] of Object.entries({ ...around, __filename: order.path, __dirname: folder }))
        hidden(name, value);
    },
    status: () => process.exitCode ?? 0,
    tick,
    require: requireFrom("/workspace"),
  };
  const hidden = (name, value) =>
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  hidden(Symbol.for("belljar"), Object.freeze(inside));
  hidden("console", console);
  hidden("process", process);
  hidden("global", globalThis);
  hidden("setTimeout", (callback, ms, ...values) => later(callback, ms, values, false));
  hidden("setInterval", (callback, ms, ...values) => later(callback, ms, values, true));
  hidden("setImmediate", (callback, ...values) => later(callback, 0, values, false));
  hidden("clearTimeout", clear);
  hidden("clearInterval", clear);
  hidden("clearImmediate", clear);
  hidden("TextEncoder", class TextEncoder { encode(text = "") { return bytes(utf8(text)); } });
  hidden("TextDecoder", class TextDecoder { decode(data = new Uint8Array()) { return decode(content(data)); } });
  hidden("crypto", webcrypto);
  hidden("Buffer", Buffer);
  return JSON.stringify(Object.fromEntries(Object.entries(builtIn).map(([name, module]) => [name, Object.keys(module)])));
})();
