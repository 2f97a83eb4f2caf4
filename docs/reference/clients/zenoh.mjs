// A Zenoh client on the TCP sockets of Node.js 18 or later: what a node of a mesh needs of Zenoh's protocol, version 9.
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect } from "node:net";

const LEASE_MS = 10_000; // a router closes a link that was silent for so long
const [INIT, OPEN, CLOSE, KEEP_ALIVE, FRAME, FRAGMENT] = [1, 2, 3, 4, 5, 6]; // between the ends of a link
const [INTEREST, RESPONSE_FINAL, RESPONSE, REQUEST, PUSH, DECLARE, OAM] = [0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f];
const [KEY, SUBSCRIBER, QUERYABLE, TOKEN, FINAL] = [0, 2, 4, 6, 0x1a]; // what DECLARE declares; an odd kind withdraws
const [PUT, QUERY, REPLY, ERROR] = [1, 3, 4, 5]; // the body of PUSH, of REQUEST and (two) of RESPONSE
const ENCODINGS = ["zenoh/bytes", "zenoh/string", "", "application/octet-stream", "text/plain", "application/json"];
const CUSTOM = 0xffff; // an encoding that has no number: its name is in the schema

// A message is a header byte and its fields. Bits 0 to 4 of the header are the kind, bit 7 says that extensions follow.
const pack = (...parts) => Buffer.concat(parts.map((part) => (typeof part === "number" ? Buffer.of(part) : part)));
const block = (content) => pack(number(Buffer.byteLength(content)), Buffer.from(content));
const key = (text) => pack(0, block(text)); // 0: no part of the key was sent before under a number

function number(value) { // seven bits in each byte, the lowest first; bit 7 says that more follow
  const bytes = [];
  for (; value > 0x7f; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return Buffer.from([...bytes, value]);
}

function encoding(name = "zenoh/bytes") {
  const known = ENCODINGS.indexOf(name);
  return known >= 0 ? number(known << 1) : pack(number((CUSTOM << 1) | 1), block(name));
}

function put({ payload, encoding: name, attachment }) {
  const extensions = attachment ? pack(0x43, block(attachment)) : pack();
  return pack(PUT | 0x40 | (attachment ? 0x80 : 0), encoding(name), extensions, block(payload));
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }
  get done() {
    return this.at === this.bytes.length;
  }
  take(count = this.bytes.length - this.at) {
    if (this.at + count > this.bytes.length) throw new Error("a message of Zenoh ends too early");
    return this.bytes.subarray(this.at, (this.at += count));
  }
  byte() {
    return this.take(1)[0];
  }
  number() {
    let value = 0;
    for (let place = 0; ; place++) { // the ninth byte is the last one and has eight bits
      const byte = this.byte();
      value += (place === 8 ? byte : byte & 0x7f) * 2 ** (7 * place);
      if (byte < 0x80 || place === 8) return value;
    }
  }
  block() {
    return this.take(this.number());
  }
  extensions(header) { // by their number: a byte string, a number, or true
    const found = {};
    for (let more = header & 0x80; more; ) {
      const extension = this.byte();
      const form = extension & 0x60;
      found[extension & 0x0f] = form === 0x40 ? this.block() : form === 0x20 ? this.number() : true;
      more = extension & 0x80;
    }
    return found;
  }
  encoding() {
    const code = this.number();
    const schema = code & 1 ? this.block().toString() : "";
    if (code >> 1 === CUSTOM) return schema;
    return (ENCODINGS[code >> 1] ?? `zenoh encoding ${code >> 1}`) + (schema && `;${schema}`);
  }
  value() { // a put, or a deletion, which has neither encoding nor payload
    const header = this.byte();
    const isPut = (header & 0x1f) === PUT;
    if (header & 0x20) this.number(), this.block(); // the time, and who gave it
    const name = isPut && header & 0x40 ? this.encoding() : ENCODINGS[0];
    const { 3: attachment } = this.extensions(header);
    return { payload: isPut ? this.block() : pack(), encoding: name, attachment };
  }
}

const batch = (bytes) => pack(bytes.length & 0xff, bytes.length >> 8, bytes); // of messages, behind its length

async function* batches(socket) {
  let bytes = pack();
  for await (const chunk of socket) {
    bytes = pack(bytes, chunk);
    for (let end; bytes.length >= 2 && bytes.length >= (end = 2 + bytes.readUInt16LE()); bytes = bytes.subarray(end))
      yield new Reader(bytes.subarray(2, end));
  }
}

function matcher(pattern) { // "*" is one part of a key, "/**" any number of them, and neither matches "@..."
  const escaped = pattern.replace(/[.+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^${escaped.replace(/\/\*\*|\*/g, (wild) => (wild === "*" ? "[^/@][^/]*" : "(/[^/@][^/]*)*"))}$`);
}

/** Connect to a router, such as "tcp/127.0.0.1:7447". */
export async function open(address) {
  const [, host, port] = address.match(/^tcp\/\[?([^\]]+)\]?:(\d+)$/) ?? [];
  if (!port) throw new Error(`${address} is no address. Give one such as tcp/127.0.0.1:7447.`);
  const socket = connect(Number(port), host).setNoDelay();
  await once(socket, "connect");
  try {
    const link = batches(socket);
    const ask = async (kind, message) => {
      socket.write(batch(message));
      const { value: answer } = await link.next();
      const header = answer?.byte();
      if ((header & 0x3f) !== (kind | 0x20)) throw new Error(`${address} is no router of Zenoh 1, or refuses clients`);
      return { header, answer };
    };
    // Version 9, an identity of 16 bytes, a client. Extension 7: first fragments are marked.
    const { header, answer } = await ask(INIT, pack(INIT | 0x80, 9, 0xf2, randomBytes(16), 0x27, 1));
    answer.byte(); // the version of the router
    answer.take(1 + (answer.byte() >> 4)); // its identity
    const limit = header & 0x40 ? answer.take(3).readUInt16LE(1) : 0xffff; // a byte on the size of numbers, then this
    const cookie = answer.block();
    await ask(OPEN, pack(OPEN, number(LEASE_MS), 0, block(cookie))); // 0: the first sequence number
    return new Session(socket, link, limit);
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

/** A connection to a router. Values are `{ payload, encoding, attachment }`: bytes, a name, and bytes or undefined. */
class Session {
  #socket;
  #limit; // bytes in a batch
  #failure; // what ended the connection
  #declared = [];
  #keys = new Map(); // the keys to which the router has given numbers
  #requests = new Map();
  #fragments = {}; // of the message that is arriving, for either channel
  #sequence = 0;

  constructor(socket, link, limit) {
    this.#socket = socket;
    this.#limit = limit;
    const alive = setInterval(() => this.#write(pack(KEEP_ALIVE)), LEASE_MS / 4);
    this.#receive(link)
      .catch((error) => (this.#failure = error))
      .finally(() => {
        clearInterval(alive);
        this.#failure ??= new Error("the router or this program has closed it");
        for (const { fail } of this.#requests.values()) fail(this.#ended());
      });
  }
  /** Call `received(value, key)` for each message on keys that match. */
  subscribe(pattern, received) {
    this.#declare(SUBSCRIBER, pattern, received);
  }
  /** Answer requests on keys that match with the value that `answer(value, key)` returns; an exception is an error. */
  serve(pattern, answer) {
    this.#declare(QUERYABLE, pattern, answer, pack(0x21, 1)); // complete
  }
  /** Declare a liveliness token; the router withdraws it when the connection ends. */
  token(text) {
    this.#declare(TOKEN, text);
  }
  put(text, value) {
    this.#send(pack(PUSH | 0x20, key(text), put(value)));
  }
  /** Send a request and return the replies: values with `ok`, which is false for errors. */
  async get(text, { payload, encoding: name, attachment }, timeoutMs = 5000) {
    const id = this.#sequence; // of the message that has the request: no other request has it
    const content = pack(attachment ? 0xc3 : 0x43, block(pack(encoding(name), Buffer.from(payload))));
    const attached = attachment ? pack(0x45, block(attachment)) : pack();
    this.#send(pack(REQUEST | 0x20, number(id), key(text), QUERY | 0x80, content, attached));
    return new Promise((resolve, reject) => {
      const end = (settle) => (result) => {
        clearTimeout(timer);
        this.#requests.delete(id);
        settle(result);
      };
      const timer = setTimeout(() => end(reject)(new Error(`${text}: no answer in ${timeoutMs} ms`)), timeoutMs);
      this.#requests.set(id, { replies: [], finish: end(resolve), fail: end(reject) });
    });
  }
  async close() {
    this.#write(pack(CLOSE | 0x20, 0)); // the whole session, for no special reason
    this.#socket.end();
    if (!this.#socket.closed) await once(this.#socket, "close");
  }
  #ended() {
    return new Error("the connection to the router has ended", { cause: this.#failure });
  }
  #write(message) {
    if (this.#failure) throw this.#ended();
    this.#socket.write(batch(message));
  }
  #next() { // sequence numbers have 28 bits
    const sequence = this.#sequence;
    this.#sequence = (sequence + 1) % 2 ** 28;
    return number(sequence);
  }
  #send(message) { // on the reliable channel, as one frame or in fragments
    const room = this.#limit - 8; // behind a header, a sequence number and a mark
    if (message.length <= room) return this.#write(pack(FRAME | 0x20, this.#next(), message));
    for (let at = 0; at < message.length; at += room) {
      const more = at + room < message.length ? 0x40 : 0;
      const header = FRAGMENT | 0x20 | more | (at ? 0 : 0x80);
      this.#write(pack(header, this.#next(), at ? pack() : 0x02, message.subarray(at, at + room))); // 2: the first one
    }
  }
  #declare(kind, pattern, call, extensions) {
    this.#declared.push({ kind, matches: matcher(pattern), call });
    const header = kind | 0x20 | (extensions ? 0x80 : 0);
    this.#send(pack(DECLARE, header, number(this.#declared.length), key(pattern), extensions ?? pack()));
  }
  #declaredFor(kind, text) {
    return this.#declared.filter((one) => one.kind === kind && one.matches.test(text));
  }
  #key(reader, header) { // a number of a key that the router has declared, or 0, and what comes after that key
    const start = this.#keys.get(reader.number()) ?? "";
    return start + (header & 0x20 ? reader.block() : "");
  }
  async #receive(link) {
    for await (const batch of link) while (!batch.done) this.#message(batch);
  }
  #message(reader) {
    const header = reader.byte();
    switch (header & 0x1f) {
      case FRAME:
        reader.number(); // its sequence number; messages follow
        return reader.extensions(header);
      case FRAGMENT:
        return this.#fragment(reader, header);
      case KEEP_ALIVE:
        return reader.extensions(header);
      case CLOSE:
        reader.take();
        return this.#socket.end();
      case PUSH: {
        const text = this.#key(reader, header);
        reader.extensions(header);
        const value = reader.value();
        return this.#declaredFor(SUBSCRIBER, text).forEach(({ call }) => call(value, text));
      }
      case REQUEST:
        return this.#request(reader, header);
      case RESPONSE:
        return this.#response(reader, header);
      case RESPONSE_FINAL: {
        const request = this.#requests.get(reader.number());
        reader.extensions(header);
        return request?.finish(request.replies);
      }
      case DECLARE:
        return this.#declaration(reader, header);
      case INTEREST: { // this client tells the router what it declares without being asked
        reader.number();
        const options = header & 0x60 ? reader.byte() : 0;
        if (options & 0x10) this.#key(reader, options);
        return reader.extensions(header);
      }
      case OAM: // what routers tell each other of the network
        reader.number();
        reader.extensions(header);
        return header & 0x40 ? reader.block() : header & 0x20 ? reader.number() : undefined;
      default:
        throw new Error(`a message of Zenoh that this client does not read: ${header & 0x1f}`);
    }
  }
  #fragment(reader, header) { // of one message that is longer than a batch
    const channel = header & 0x20; // reliable or not
    reader.number();
    const { 2: first, 3: dropped } = reader.extensions(header);
    if (first) this.#fragments[channel] = [];
    const part = reader.take();
    this.#fragments[channel]?.push(part);
    if (header & 0x40 && !dropped) return; // more follow
    const parts = this.#fragments[channel];
    if (parts && !dropped) this.#message(new Reader(pack(...parts)));
    this.#fragments[channel] = undefined;
  }
  #request(reader, header) {
    const id = number(reader.number());
    const text = this.#key(reader, header);
    reader.extensions(header);
    const query = reader.byte();
    if (query & 0x20) reader.number(); // how replies are consolidated
    if (query & 0x40) reader.block(); // parameters
    const { 3: body, 5: attachment } = reader.extensions(query);
    const content = new Reader(body ?? Buffer.of(0));
    const value = { encoding: content.encoding(), payload: content.take(), attachment };
    this.#answer(id, text, value).catch((error) => this.#socket.destroy(error));
  }
  async #answer(id, text, value) {
    const [service] = this.#declaredFor(QUERYABLE, text);
    if (service) {
      let reply;
      try {
        reply = pack(REPLY, put(await service.call(value, text)));
      } catch (error) {
        const facts = { module: "", name: error.name, text: error.message };
        reply = pack(ERROR | 0x40, encoding("application/json"), block(JSON.stringify(facts)));
      }
      this.#send(pack(RESPONSE | 0x20, id, key(text), reply));
    }
    this.#send(pack(RESPONSE_FINAL, id));
  }
  #response(reader, header) {
    const request = this.#requests.get(reader.number());
    this.#key(reader, header);
    reader.extensions(header);
    const body = reader.byte();
    const ok = (body & 0x1f) === REPLY;
    if (ok && body & 0x20) reader.number(); // how replies are consolidated
    const name = !ok && body & 0x40 ? reader.encoding() : ENCODINGS[0];
    reader.extensions(body);
    request?.replies.push({ ok, ...(ok ? reader.value() : { encoding: name, payload: reader.block() }) });
  }
  #declaration(reader, header) {
    if (header & 0x20) reader.number(); // the interest that it answers
    reader.extensions(header);
    const body = reader.byte();
    const kind = body & 0x1f;
    const id = kind === FINAL ? 0 : reader.number();
    const text = kind < FINAL && kind % 2 === 0 ? this.#key(reader, body) : "";
    reader.extensions(body);
    if (kind === KEY) this.#keys.set(id, text);
  }
}
