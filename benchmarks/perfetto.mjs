// Ask Perfetto's trace processor, in its WebAssembly build, about a Chrome trace:
//
//   node benchmarks/perfetto.mjs ENGINE TRACE SQL...
//
// ENGINE is the folder with engine_bundle.js and trace_processor.wasm of Perfetto's page.
// Prints the rows of each query as one line of JSON. Talks to it as its page does: in
// messages of protos/perfetto/trace_processor/trace_processor.proto.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";
import zlib from "node:zlib";

const [engine, trace, ...queries] = process.argv.slice(2);
const APPEND = 1, FINALIZE = 2, QUERY = 3;
const INTEGER = 2, FLOAT = 3, TEXT = 4;
const PART = 16 << 20;

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return Buffer.from([...bytes, Number(rest)]);
}

const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const bytes = (field, value) =>
  Buffer.concat([varint((field << 3) | 2), varint(value.length), value]);

class Message {
  constructor(content) {
    this.content = content;
    this.at = 0;
  }

  get done() {
    return this.at >= this.content.length;
  }

  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.content[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asIntN(64, value);
    }
  }

  bytes(size) {
    this.at += size;
    return this.content.subarray(this.at - size, this.at);
  }

  *fields() {
    while (!this.done) {
      const key = Number(this.varint());
      const read = [() => this.varint(), () => this.bytes(8)][key & 7];
      yield [key >> 3, read ? read() : this.bytes(Number(this.varint()))];
    }
  }
}

// What a worker of the page would have around it.
const replies = [];
let waiting = Buffer.alloc(0);
const port = {
  postMessage(data) {
    waiting = Buffer.concat([waiting, Buffer.from(data)]);
    while (waiting.length > 1) {
      const message = new Message(waiting);
      message.varint();
      const size = Number(message.varint());
      if (waiting.length < message.at + size) return;
      replies.push(message.bytes(size));
      waiting = waiting.subarray(message.at);
    }
  },
};
const worker = {
  ArrayBuffer, BigInt64Array, BigUint64Array, Error, Float32Array, Float64Array,
  Int16Array, Int32Array, Int8Array, Promise, TextDecoder, TextEncoder, TypeError, URL,
  Uint16Array, Uint32Array, Uint8Array, WebAssembly, clearTimeout, performance, setTimeout,
  WorkerGlobalScope: class {},
  addEventListener() {},
  console: { log() {}, warn() {}, error() {}, info() {} },
  importScripts() {},
  location: { href: "file:///" },
  postMessage() {},
  XMLHttpRequest: class {
    open(_method, url) {
      this.name = path.basename(url);
    }

    send() {
      this.status = 200;
      this.response = new Uint8Array(fs.readFileSync(path.join(engine, this.name))).buffer;
    }
  },
};
worker.self = worker;
const code = fs.readFileSync(path.join(engine, "engine_bundle.js"), "utf8");
vm.runInContext(code, vm.createContext(worker));
worker.onmessage({ data: port });
// It says to nobody that it is ready, which is soon: it compiles in place.
await new Promise((done) => setTimeout(done, 300));

let asked = 0;
function ask(what, ...parts) {
  const request = Buffer.concat([number(1, ++asked), number(2, what), ...parts]);
  port.onmessage({ data: new Uint8Array(bytes(1, request)) });
  return replies.splice(0).flatMap((reply) => [...new Message(reply).fields()]);
}

function fail(text) {
  console.error(String(text));
  process.exit(1);
}

function rows(answers) {
  const names = [], cells = [];
  for (const [field, result] of answers) {
    if (field !== 203) continue;
    for (const [part, value] of new Message(result).fields()) {
      if (part === 1) names.push(String(value));
      else if (part === 2 && value.length) fail(value);
      else if (part === 3) cells.push(...batch(value));
    }
  }
  const all = [];
  while (cells.length) all.push(cells.splice(0, names.length));
  return all;
}

function* batch(content) {
  const found = Object.fromEntries(new Message(content).fields());
  const [kinds, integers, floats] = [1, 2, 3].map(
    (field) => new Message(found[field] ?? Buffer.alloc(0)),
  );
  const texts = String(found[5] ?? "").split("\0");
  while (!kinds.done) {
    const kind = Number(kinds.varint());
    if (kind === INTEGER) yield Number(integers.varint());
    else if (kind === FLOAT) yield floats.bytes(8).readDoubleLE();
    else yield kind === TEXT ? texts.shift() : null;
  }
}

let content = fs.readFileSync(trace);
if (content[0] === 0x1f && content[1] === 0x8b) content = zlib.gunzipSync(content);
for (let at = 0; at < content.length; at += PART) {
  for (const [field, result] of ask(APPEND, bytes(101, content.subarray(at, at + PART)))) {
    const said = field === 201 ? [...new Message(result).fields()] : [];
    for (const [part, text] of said) if (part === 2) fail(text);
  }
}
ask(FINALIZE);
for (const sql of queries) {
  console.log(JSON.stringify(rows(ask(QUERY, bytes(103, bytes(1, Buffer.from(sql)))))));
}
process.exit(0);
